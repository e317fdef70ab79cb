"""A page with everything on it, and texts that would do harm if they were not escaped; and a browser to open it with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.report.html.page import Card, Chart, Curve, Entry, Limit, Page, Part, Section

NASTY: Final = "<script>alert('x')</script> & \"quoted\" $x_1^{$ \\ \x00 é 漢 <img src=http://127.0.0.1:9/x>"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Headless, and with none of what Chromium fetches for itself.
_QUIET: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
)


def full_page() -> Page:
    """Everything that a page may have, and harmful text wherever text may be."""
    rising = tuple((float(x), 32.0 + 9 * x) for x in range(18))
    level = tuple((float(x), 32.0) for x in range(18))
    memory = tuple((float(x), 5e8 + 1.2e7 * x) for x in range(200))
    leaky = Curve("leaky", rising, "bad", ((8.0, 104.0), (17.0, 185.0)))
    shared = Chart(f"fd: {NASTY}", "count", NASTY, (leaky, Curve(NASTY, level, "good")), NASTY)
    limit = Limit(9e4, 8e9, f"limit {NASTY}")
    own = Chart("heap: bytes in use", "bytes", "second", (Curve("", memory, "unsure"),), "It grows.", limit)
    part = Part(
        NASTY,
        ((NASTY, NASTY), ("opened", f"{'a' * 300}\n  {'long ' * 60}")),
        ((9, NASTY, False), (10, NASTY, True)),
        ((NASTY, ""), (NASTY, NASTY)),
        command=NASTY,
    )
    second, third = (Part("What to do", command=f"pytest {name}") for name in ("'b'", '"c"'))
    tests = (Entry(NASTY, NASTY, "bad"), Entry("test_two"))
    cards = (
        Card(f"fd leaks {NASTY}", "bad", NASTY, (NASTY,), NASTY, (part,), (shared,), tests, "cause-1", "thread"),
        Card("heap grows", "unsure", "leak", parts=(second,), charts=(own,), anchor="cause-2", resource="heap"),
        Card("a file", "bad", "leak", parts=(third,), tests=(*tests, *tests), resource="fd"),
    )
    sections = (
        Section("Causes", NASTY, cards),
        Section("Table", columns=("fd", NASTY), table=((NASTY, "bad", "cause-2", ((NASTY, "bad"), ("", "plain"))),)),
        Section("Green", entries=(Entry("test_green", NASTY, "good"),), folded=True),
        Section("Fix", diff=f"--- a\n+++ b\n@@ -1 +1 @@\n-{NASTY}\n+{NASTY}\n"),
    )
    return Page(f"An incident {NASTY}", ((NASTY, "bad"),), (NASTY,), ((NASTY, NASTY),), sections, partial=True)


@dataclass(frozen=True, slots=True)
class Visit:
    """What a browser did with a page.

    Attributes:
        dom: The document when it was loaded.
        fetched: The addresses on the network that it asked for.
        logged: Lines of the page's console.
    """

    dom: str
    fetched: list[str]
    logged: list[str]

    def told(self) -> dict[str, Any]:
        """What a harness page has written into its element ``told``."""
        found = re.search(r'<pre id="told">(.*?)</pre>', self.dom, re.DOTALL)
        assert found is not None, self.dom
        value: dict[str, Any] = json.loads(found[1])
        return value


def find_browser() -> str | None:
    """A Chromium of this machine."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def visit(browser: str, page: Path, folder: Path, *options: str) -> Visit:
    """Open a page, and note what it fetches and logs."""
    network = folder / "network.json"
    command = [browser, *_QUIET, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={network}", *options]
    done = subprocess.run(
        [*command, "--dump-dom", page.resolve().as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    # Of the requests, those of the page itself; what the browser wants for itself is not its doing.
    addresses = {
        event["params"]["url"]
        for event in json.loads(network.read_text(encoding="utf-8"))["events"]
        if "url" in event.get("params", {}) and event["params"].get("initiator") not in (None, "not an origin")
    }
    logged = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Visit(done.stdout, sorted(url for url in addresses if url.startswith(("http", "ws"))), logged)
