"""Run what writes files again and again, and end it while it writes: ``python writers.py WAY WRITER TIMES FOLDER``.

Each run is a fork of this process, which has loaded all modules. It prints a JSON object: the number of runs, how many did
not come to their end, and what was lost, destroyed or left.
"""

from __future__ import annotations

import atexit
import errno
import html
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck import cli
from pytest_leakcheck.report.json_file import FirstLine, read, to_line
from pytest_leakcheck.runner import phases
from pytest_leakcheck.watch.status_text import page_of_ledger

# To search for causes would take most of the time.
phases.Trial.diagnoses = False
SESSIONS: Final = 8
TESTS: Final = "import os\n" + "".join(
    f"KEPT_{n} = []\ndef test_{n}(): KEPT_{n}.append(os.open(os.devnull, 0))\n" for n in range(SESSIONS)
)
# A person has added the reason, and a later version the last key.
_ENTRY: Final = {
    "finding": "0" * 40,
    "resource": "fd",
    "verdict": "leak",
    "rate": 1.0,
    "owner": "a.B",
    "site": "",
    "seen": "2026-01-01",
    "tests": ["t.py::t"],
    "reason": "mine",
}
KNOWN: Final = {"schema": 1, "known": [_ENTRY], "later": 1}
PAGE: Final = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta name="generator" content="pytest-leakcheck">\nold</html>\n'
)
SUMMARY: Final = "what an earlier step has written\n"
WRITES: Final = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"}


class Writer:
    """A command, the files that it writes, and what they hold before."""

    def __init__(self, name: str, folder: Path, files: Path) -> None:
        self.name, self.folder, self.files = name, folder, files
        (folder / "test_it.py").write_text(TESTS)
        (folder / "notes.txt").write_text("mine")
        self.rows = ""

    def restore(self) -> None:
        """Put back what was before, except what killed runs have left."""
        for path in self.files.iterdir():
            if path.is_file() and not path.name.startswith("."):
                path.unlink()
        (self.folder / "known.json").unlink(missing_ok=True)
        if self.name == "session":
            (self.files / "known.json").write_text(json.dumps(KNOWN))
            (self.files / "out.json").write_text(to_line(FirstLine({})))
            (self.files / "out.html").write_text(PAGE)
            (self.files / "summary.md").write_text(SUMMARY)
        elif self.name == "report":
            (self.files / "out.json").write_text(to_line(FirstLine({})))
            (self.files / "out.html").write_text(PAGE)
        else:
            (self.files / "watch.jsonl").write_text(self.rows)

    def run(self, *tests: str) -> int:
        """Run the command in this process, which is a fork."""
        os.chdir(self.folder)
        files = self.files
        if self.name == "session":
            os.environ |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(files / "summary.md"), "CI": ""}
            return int(
                pytest.main(
                    [
                        "-q",
                        "-c",
                        os.devnull,
                        "--rootdir=.",
                        "-p",
                        "no:asyncio",
                        "-p",
                        "no:hypothesispytest",
                        "--leakcheck-scope=all",
                        "--leakcheck-iterations=17",
                        "--leakcheck-warmup=1",
                        "--leakcheck-fail-on=none",
                        f"--leakcheck-baseline={files / 'known.json'}",
                        "--leakcheck-update-baseline",
                        f"--leakcheck-json={files / 'out.json'}",
                        f"--leakcheck-html={files / 'out.html'}",
                        *(tests or ("test_it.py::test_0", "test_it.py::test_1")),
                    ]
                )
            )
        if self.name == "report":
            return cli.main(["report", str(files / "out.json"), "--no-open"])
        ledger = str(files / "watch.jsonl")
        return cli.main(["watch", "--interval", "0.01", "--ledger", ledger, "--", "sleep", "0.3"])

    def find_damage(self) -> Iterator[str]:
        """Yield what is not as before, nor as the command was to leave it."""
        if (self.folder / "notes.txt").read_text() != "mine" or (self.folder / "test_it.py").read_text() != TESTS:
            yield "a file of the project has changed"
        names = {path.name for path in self.files.iterdir()}
        texts = {name: (self.files / name).read_text() for name in names if not name.startswith(".")}
        yield from {"session": self._of_session, "report": self._of_report, "watch": self._of_watch}[self.name](texts)

    def _of_session(self, texts: dict[str, str]) -> Iterator[str]:
        kept = False
        with suppress(LookupError, ValueError):
            known = json.loads(texts["known.json"])
            kept = _ENTRY.items() <= known["known"][0].items() and known["later"] == 1
        if not kept:
            yield f"the file of known leaks: {texts.get('known.json')!r}"
        if not texts.get("summary.md", "").startswith(SUMMARY):
            yield "the summary has lost what was in it"
        yield from self._of_report(texts)

    def _of_report(self, texts: dict[str, str]) -> Iterator[str]:
        page = texts.get("out.html", "")
        if page != PAGE and not (page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")):
            yield f"the page: {page[:99]!r} ... {page[-99:]!r}"
        try:
            read(self.files / "out.json")
        except Exception as error:  # noqa: BLE001 - each is one
            yield f"the report: {error!r}"

    def _of_watch(self, texts: dict[str, str]) -> Iterator[str]:
        ledger = texts.get("watch.jsonl", "")
        if not ledger.startswith(self.rows):
            yield "the ledger has lost rows"
        try:
            page_of_ledger(self.files / "watch.jsonl")
        except Exception as error:  # noqa: BLE001 - each is one
            yield f"the ledger: {error!r}"

    def find_left(self) -> Iterator[str]:
        """Yield what a run that came to its end has left of killed ones."""
        for path in (*self.files.iterdir(), *Path(os.environ["TMPDIR"]).iterdir()):
            # Only a session looks for folders that killed processes have left. One whose lock does not yet say whose it
            # is, and so is empty, may be that of a session that has just begun.
            is_ours = path.name.startswith("leakcheck-") and self.name == "session"
            if path.suffix == ".tmp" or (
                is_ours and any(one.name != "lock" or one.stat().st_size for one in path.iterdir())
            ):
                yield f"left: {path}"


def ours() -> bool:
    """Return whether a line of the plugin is at work, directly or through the standard library."""
    frame: Any = sys._getframe(2)
    standard = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
    while frame is not None:
        file = frame.f_code.co_filename
        if not (file.startswith("<") or (file.startswith(standard) and "site-packages" not in file)):
            return f"{os.sep}pytest_leakcheck{os.sep}" in file
        frame = frame.f_back
    return False


def at_write(number: int, act: Callable[[], None], count: Callable[[int], None] = lambda _: None) -> None:
    """Act before the plugin's write of this number, in the order of audit events, and count them."""
    seen = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        if (event in WRITES or flags & (os.O_WRONLY | os.O_RDWR)) and ours():
            seen[0] += 1
            count(seen[0])
            if seen[0] == number:
                act()

    sys.addaudithook(hook)


def refuse_open(number: int) -> None:
    """Let the plugin's opening of this number fail, as without a descriptor that is left."""
    seen = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # A module that cannot be loaded is no file of the user's.
        if event == "open" and not str(arguments[0]).endswith((".py", ".pyc")) and ours():
            seen[0] += 1
            if seen[0] == number:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    sys.addaudithook(hook)


def forked(do: Callable[[], int], said: Path) -> int:
    """Return the number of a fork that does this, and writes what it prints to a file."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        status = 70
        try:
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            status = do()
            # What removes the temporary folders.
            atexit._run_exitfuncs()
        finally:
            os._exit(status)
    return pid


class Trial:
    """Runs of one writer that are cut off in one way."""

    def __init__(self, writer: Writer, said: Path, chance: random.Random) -> None:
        self.writer, self.said, self.chance = writer, said, chance
        self.wrong: list[str] = []
        self.cut = 0
        writes = said.with_name("writes")

        def count(number: int) -> None:
            writes.write_text(str(number))

        def run() -> int:
            at_write(0, os.abort, count)
            return writer.run()

        # A first run tells what is written, how often, and how long it takes.
        self.run(writer.run)
        if writer.name == "watch":
            writer.rows = (writer.files / "watch.jsonl").read_text()
        began = time.monotonic()
        self.run(run)
        self.seconds, self.writes = time.monotonic() - began, int(writes.read_text())
        self.check("first run")

    def run(self, do: Callable[[], int]) -> int:
        self.writer.restore()
        return end_of(forked(do, self.said))

    def check(self, what: str, *, died: bool = False) -> None:
        self.wrong += [f"{what}: {one}" for one in self.writer.find_damage()]
        text = self.said.read_text(errors="replace")
        if not died and ("INTERNALERROR" in text or "Traceback (most" in text):
            self.wrong.append(f"{what}: {text[-2000:]}")

    def kill(self, turn: int) -> None:
        """Kill a run before one of its writes, and another one at any time."""
        at = self.chance.randint(1, self.writes)

        def run() -> int:
            at_write(at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            return self.writer.run()

        if turn % 2:
            status = self.run(run)
        else:
            self.writer.restore()
            pid = forked(self.writer.run, self.said)
            time.sleep(self.chance.uniform(0, self.seconds))
            os.kill(pid, signal.SIGKILL)
            status = end_of(pid)
        self.cut += status < 0
        self.check(f"killed {f'before write {at}' if turn % 2 else 'at any time'}", died=status < 0)

    def open(self, turn: int) -> None:
        """Let one opening of a file fail."""

        def run() -> int:
            refuse_open(turn + 1)
            return self.writer.run()

        self.run(run)
        self.cut += os.strerror(errno.EMFILE) in self.said.read_text(errors="replace")
        self.check(f"opening {turn + 1} fails")

    def disk(self, turn: int) -> None:
        """Leave from 0 to 64 KiB on the disk."""
        self.writer.restore()
        filler = self.writer.files / ".filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            file.write(bytes(self.chance.randint(0, 64) << 10))
        end_of(forked(self.writer.run, self.said))
        filler.unlink()
        self.cut += os.strerror(errno.ENOSPC) in self.said.read_text(errors="replace")
        self.check(f"turn {turn} on a small disk")

    def together(self, some: int) -> None:
        """Run several at once; each session finds another leak."""
        self.writer.restore()
        folder, tests = self.said.parent, [f"test_it.py::test_{number}" for number in range(some)]
        pids = [forked(partial(self.writer.run, test), folder / f"said-{test[-1]}") for test in tests]
        self.cut += sum(end_of(pid) != 0 for pid in pids)
        self.check(f"{some} at once")
        if self.writer.name == "session":
            known = json.loads((self.writer.files / "known.json").read_text())["known"]
            lost = set(tests) - {test for one in known for test in one["tests"]}
            self.wrong += [f"{some} at once: lost the leak of {one}" for one in lost]
            summary = html.unescape((self.writer.files / "summary.md").read_text())
            self.wrong += [f"the summary has nothing of {test}" for test in tests if test not in summary]

    def finish(self) -> None:
        """Run it to its end, which leaves nothing of the killed ones."""
        status = self.run(self.writer.run)
        self.check(f"last run, {status}")
        self.wrong += self.writer.find_left()
        if status:
            self.wrong.append(f"the last run ended with {status}: {self.said.read_text(errors='replace')[-2000:]}")


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(way: str, name: str, times: int, folder: Path) -> dict[str, Any]:
    """Run the writer so many times in this way; the folder ``files`` is mounted already if it is to be small."""
    for inner in ("project", "files", "tmp"):
        (folder / inner).mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(folder / "tmp")
    trial = Trial(Writer(name, folder / "project", folder / "files"), folder / "said", random.Random(f"{way} {name}"))
    for turn in range(times):
        if way.isdigit():
            trial.together(int(way))
        else:
            getattr(trial, way)(turn)
    trial.finish()
    return {"runs": times, "writes": trial.writes, "cut": trial.cut, "wrong": trial.wrong}


if __name__ == "__main__":
    way, name, times, folder = sys.argv[1:]
    sys.stdout.write(json.dumps(main(way, name, int(times), Path(folder).resolve())) + "\n")
