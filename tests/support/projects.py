"""A project in its own folder, run by pytest in a separate process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import Resource, with_rows_of

ROOT = Path(__file__).parents[2]
# The interpreter with the oldest supported pytest, which ./ci/test installs.
OLDEST = str(ROOT / ".venv" / "oldest" / "bin" / "python")


# What a leaky test file begins with.
HEAD = """
    import os
    import pytest
    KEPT = []
    def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))
"""
# Plugins that hardly any project uses: Hypothesis is loaded whole as a session ends, which would take more than the rest;
# asyncio with anyio take a third of what plain pytest takes, and allure as much.
_MIN_TIME = "--leakcheck-min-time"
_INI = "[pytest]\naddopts = -p no:hypothesispytest -p no:anyio -p no:allure_pytest"
# A conftest for verdicts alone: no culprit is looked for, which takes longer than the verdict.
UNNAMED = """
    from pytest_leakcheck.runner.phases import Trial

    Trial.diagnoses = False
"""


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest came to.

    `findings` has a row for each verdict: its own fields, and those of the test's finding that belong to it.
    """

    status: int
    text: str
    findings: list[dict[str, Any]]
    recordings: list[dict[str, Any]]
    scaled: dict[str, Any] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def verdicts(self) -> dict[tuple[str, str], str]:
        """By name of the test and resource."""
        return {(one["test"].rpartition("::")[2], one["resource"]): one["verdict"] for one in self.findings}

    @property
    def last_line(self) -> str:
        """pytest's own count, without the time."""
        return self.text.strip().splitlines()[-1].strip("= ").rpartition(" in ")[0]

    @property
    def one_line(self) -> str:
        """The text without the breaks that depend on the width of the terminal."""
        return " ".join(self.text.split())

    def finding(self, test: str, resource: str = "fd") -> dict[str, Any]:
        return next(one for one in self.findings if one["test"].endswith(test) and one["resource"] == resource)


class Project:
    """Files of a user's project, and pytest over them."""

    def __init__(self, folder: Path, pytester: pytest.Pytester | None = None) -> None:
        self.folder = folder
        self._pytester = pytester
        self.write("pytest.ini", f"{_INI} -p no:asyncio\n")

    def load_asyncio(self) -> None:
        """Have coroutines run, by pytest-asyncio."""
        self.write("pytest.ini", f"{_INI}\nasyncio_default_fixture_loop_scope = function\n")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    def copy(self, program: str, name: str = "test_it.py", **constants: object) -> Path:
        """Copy a program of the folder `sessions` beside the calling test, and set constants of the program."""
        folder = Path(sys._getframe(1).f_code.co_filename).with_name("sessions")
        text = (folder / program).read_text(encoding="utf-8")
        for constant, value in constants.items():
            text, count = re.subn(rf"^{constant} = .*$", f"{constant} = {value!r}", text, flags=re.MULTILINE)
            assert count == 1, constant
        return self.write(name, text)

    def lines(self, name: str = "findings.json") -> list[dict[str, Any]]:
        """Return the lines of a JSON report as they are: the first, one per finding, and the last."""
        return [json.loads(line) for line in (self.folder / name).read_text(encoding="utf-8").split("\n")[:-1]]

    def run(
        self,
        *arguments: str,
        leakcheck: bool = True,
        python: str = sys.executable,
        cache: bool = False,
        limit: float = 600,
        **environment: str,
    ) -> Outcome:
        """Run pytest for at most `limit` seconds; with `leakcheck`, measuring, and with a JSON report.

        With `cache`, it knows what failed last.
        """
        command = self._command(arguments, leakcheck=leakcheck, python=python, cache=cache)
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
        return self._outcome(done.returncode, done.stdout + done.stderr)

    def run_here(self, *arguments: str, leakcheck: bool = True) -> Outcome:
        """As `run`, in this process: for sessions that end before they measure, since starting a process takes longest.

        Needs the fixture ``project_here``.
        """
        assert self._pytester is not None
        command = self._command(arguments, leakcheck=leakcheck, python="", cache=False)
        # The filters of this session are in force for the whole process.
        with warnings.catch_warnings():
            warnings.resetwarnings()
            ran = self._pytester.runpytest_inprocess(*command[command.index("pytest") + 1 :])
        return self._outcome(int(ran.ret), "\n".join([*ran.outlines, *ran.errlines]))

    def run_test(self, text: str, *arguments: str, **settings: Any) -> Outcome:
        """As `run`, of a project whose tests are this text."""
        self.write("test_it.py", text)
        return self.run(*arguments, **settings)

    def run_test_here(self, text: str, *arguments: str, leakcheck: bool = True) -> Outcome:
        """As `run_test`, in this process."""
        self.write("test_it.py", text)
        return self.run_here(*arguments, leakcheck=leakcheck)

    def run_on_terminal(
        self, *arguments: str, answer: Callable[[bytes], bytes] = lambda _: b"", cache: bool = False, **environment: str
    ) -> Outcome:
        """As `run`, in a terminal of 80 columns of its own.

        Args:
            arguments: Arguments of pytest.
            answer: Is called with all output so far whenever there is more; what it returns is typed.
            cache: Whether pytest knows what failed last.
            environment: Further variables.
        """
        command = self._command(arguments, leakcheck=True, python=sys.executable, cache=cache)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.folder)
            os.execve(command[0], command, _environment({"TERM": "xterm", **environment}))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        said = b""
        # At its end, a terminal fails to be read.
        with contextlib.suppress(OSError):
            while more := os.read(terminal, 1 << 16):
                said += more
                os.write(terminal, answer(said))
        _pid, status = os.waitpid(pid, 0)
        os.close(terminal)
        return self._outcome(os.waitstatus_to_exitcode(status), said.decode(errors="replace"))

    def _command(self, arguments: Iterable[str], *, leakcheck: bool, python: str, cache: bool) -> list[str]:
        report = self.folder / "findings.json"
        report.unlink(missing_ok=True)
        command = [python, "-m", "pytest", *(() if cache else ("-p", "no:cacheprovider")), *arguments]
        if leakcheck:
            command += ["--leakcheck", f"--leakcheck-json={report}", "--leakcheck-json-readings=all"]
            if not any(one.startswith(_MIN_TIME) for one in arguments):
                # The tests of the waiting itself set it. Elsewhere it would cost each memory leak 3 s.
                command.append(f"{_MIN_TIME}=0")
        return command

    def _outcome(self, status: int, text: str) -> Outcome:
        written = self.lines() if (self.folder / "findings.json").exists() else []
        # A project may have counters of its own, which this process does not know.
        names = {verdict["resource"] for one in written for verdict in one.get("verdicts", ())}
        with with_rows_of({name: Resource(name, "count", name) for name in names}):
            found = [whole(decode(Finding, one)) for one in written if "test" in one]
        readings = [one["recording"] for one in found]
        scaled = {one["test"]: one["scaled"] for one in found if one["scaled"]}
        return Outcome(status, text, rows(found), readings, scaled, time.time())


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "COV_")) and name not in ("CI", "BUILD_NUMBER", "COLUMNS")
    }
    hurried = {
        "PYTEST_PLUGINS": ",".join(filter(None, (given.get("PYTEST_PLUGINS"), "hurried"))),
        "PYTHONPATH": os.pathsep.join(filter(None, (given.get("PYTHONPATH"), str(ROOT / "tests" / "support")))),
    }
    return {**clean, "PYTHONIOENCODING": "utf-8", "COLUMNS": "80", **given, **hurried}


def whole(value: Any) -> Any:
    """As `encode`, with what has its default."""
    if is_dataclass(value):
        found = {str(one.metadata.get("key", one.name)): whole(getattr(value, one.name)) for one in fields(value)}
        return found | {name: whole(getattr(value, name)) for name in getattr(value, "DERIVED", ())}
    if isinstance(value, Mapping):
        return {key: whole(one) for key, one in value.items()}
    return [whole(one) for one in value] if isinstance(value, (list, tuple)) else value


def rows(findings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each verdict of the findings in a report; only the worst one has the cause."""
    nothing: dict[str, Any] = {
        "culprit": None,
        "site": None,
        "owner": None,
        "third_party": "",
        "fingerprint": None,
        "known": "",
        "seen": [],
    }
    found = []
    for one in findings:
        sizes = (one["scaled"] or {}).get("points", [])
        for at, verdict in enumerate(one["verdicts"]):
            resource = verdict["resource"]
            points = [{"size": point["size"], "peak": point["peaks"].get(resource, 0)} for point in sizes]
            of_finding = {name: nothing[name] if at else one[name] for name in nothing}
            held = one["held"].get(resource, [])
            found.append({"test": one["test"], "held": held, "points": points, **of_finding, **verdict})
    return found


def line_of(what: str, text: str) -> int | None:
    """The first line of the text that ends in this mark; None where none does."""
    marked = [number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"# of {what}")]
    return marked[0] if marked else None
