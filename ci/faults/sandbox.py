"""Run pytest over one small project in a separate folder, with a time limit, and collect what it leaves behind.

Each run has its own project folder, its own TMPDIR and its own process session. A fault may therefore delete or fill
its temporary folder, and every process that it starts can be found and killed at the end.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

# Environment variable that marks all processes of one run, except those that a fault starts with an empty environment.
_MARK: Final = "FAULT_RUN"
# Variables that would change what pytest or the plugin does.
_CHANGES_PYTEST: Final = ("PYTEST", "PYTHON", "COV_", "LEAKCHECK")
_CI: Final = ("CI", "BUILD_NUMBER", "COLUMNS")
_THIRD_PARTY: Final = ("hypothesispytest", "anyio", "asyncio", "pytest_cov", "timeout", "xdist")
# Seconds between two polls of a process, and seconds in which processes must end after pytest has ended.
_POLL_SECONDS: Final = 0.02
_GRACE_SECONDS: Final = 5.0
# More processes than any fault needs: a run that exceeds it is killed, so that it does not take down the machine.
_MOST_PROCESSES: Final = 600
_OUTPUT_CHARS: Final = 4_000_000
_MOUNT_SMALL_TMP: Final = 'mount -t tmpfs -o size=256k none "$TMPDIR" && exec "$@"'

# Logs each test that has ended to a file, also if the terminal is closed. The functions are saved because faults
# replace those of `os`.
_CONFTEST: Final = """
import os

_OPEN, _WRITE, _CLOSE, _GETPID = os.open, os.write, os.close, os.getpid
_LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "outcomes")

def _log(*entry):
    try:
        log = _OPEN(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        _WRITE(log, ascii((_GETPID(), *entry)).encode() + b"\\n")
        _CLOSE(log)
    except OSError:
        pass

def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _log("outcome", report.nodeid, report.outcome)

def pytest_runtest_logfinish(nodeid):
    _log("finished", nodeid, "")
"""


@dataclass(slots=True)
class Ran:
    """The result of one run, with the verdicts by resource and pytest's own outcome by name of the test.

    `status` is negative for a signal, None if the run took too long and was killed. `whole`: the JSON report was written
    to the end. `files` are entries of TMPDIR that were left, without those that plain pytest leaves; `processes` the
    command lines of those that still ran 5 s after the end.
    """

    status: int | None
    text: str
    verdicts: dict[str, dict[str, str]]
    whole: bool
    outcomes: dict[str, str]
    files: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)

    @property
    def last_words(self) -> str:
        """The end of the output on one line."""
        return " / ".join(line for line in self.text.strip().splitlines()[-4:] if line.strip())[-300:]


class Sandbox:
    """A folder with a project and a TMPDIR, in which pytest runs one or more times."""

    _numbers = itertools.count()

    def __init__(self, folder: Path) -> None:
        """Create the folders below `folder`, which must not exist yet."""
        self.project = folder / "project"
        self.tmp = folder / "tmp"
        self.report = self.project / "report.json"
        self._output = folder / "output"
        self._mark = f"{os.getpid()}-{next(self._numbers)}"
        self.project.mkdir(parents=True)
        self.tmp.mkdir()
        self.write("conftest.py", _CONFTEST)

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        (self.project / name).write_text(text, encoding="utf-8")

    def start(
        self,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        plugins: Iterable[str] = (),
        small_tmp: bool = False,
        fresh: bool = True,
    ) -> subprocess.Popen[bytes]:
        """Start pytest with these options and variables, and with `plugins` of `_THIRD_PARTY`.

        `small_tmp` mounts a file system of 256 KiB on TMPDIR, visible to this run only; it needs root. `fresh` forgets the
        results of an earlier run in this folder.
        """
        if fresh:
            (self.project / "outcomes").unlink(missing_ok=True)
            self.report.unlink(missing_ok=True)
        self.tmp.mkdir(exist_ok=True)
        blocked = " ".join(f"-p no:{name}" for name in _THIRD_PARTY if name not in plugins)
        self.write("pytest.ini", f"[pytest]\naddopts = -p no:cacheprovider {blocked}\n")
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_CHANGES_PYTEST) and name not in _CI
        }
        own = {"TMPDIR": str(self.tmp), _MARK: self._mark, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "pytest", *options]
        if small_tmp:
            command = ["unshare", "--mount", "sh", "-c", _MOUNT_SMALL_TMP, "sh", *command]
        with self._output.open("wb") as output:
            # A file and not a pipe: a process that a fault leaves running would keep the pipe open.
            return subprocess.Popen(
                command,
                cwd=self.project,
                env=inherited | own | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, process: subprocess.Popen[bytes], limit: float) -> Ran:
        """Wait for pytest until `limit` seconds have passed, kill all that is left, and return the result."""
        status = self._wait(process, time.monotonic() + limit)
        if status is not None:
            wait_until(lambda: not self.processes(process.pid), _GRACE_SECONDS)
        left = self.processes(process.pid)
        commands = [_command(pid) for pid in left]
        self._kill(process)
        with suppress(OSError):
            process.wait(10)
        verdicts, whole = self.read_verdicts()
        outcomes = {name: what for pid, kind, name, what in self.log() if pid == process.pid and kind == "outcome"}
        files = sorted(path.name for path in self.tmp.iterdir()) if self.tmp.is_dir() else []
        with self._output.open("rb") as output:
            text = output.read(_OUTPUT_CHARS).decode(errors="replace")
        return Ran(
            status=status,
            text=text,
            verdicts=verdicts,
            whole=whole,
            outcomes=outcomes,
            files=[name for name in files if not name.startswith("pytest-of-")],
            processes=commands,
        )

    def run(self, options: Sequence[str] = (), *, limit: float, **settings: Any) -> Ran:
        """Run pytest to its end; `settings` as for `start`."""
        return self.finish(self.start(options, **settings), limit)

    def log(self) -> list[tuple[int, str, str, str]]:
        """Return the process, kind, test and outcome of each line that the project's conftest.py has written."""
        found = []
        log = self.project / "outcomes"
        for line in log.read_text(encoding="ascii").splitlines() if log.exists() else ():
            with suppress(ValueError, SyntaxError):
                pid, kind, test, outcome = ast.literal_eval(line)
                found.append((pid, kind, short_name(test), outcome))
        return found

    def read_verdicts(self) -> tuple[dict[str, dict[str, str]], bool]:
        """Return the verdicts of the JSON report, and whether its last line is there."""
        found: dict[str, dict[str, str]] = {}
        whole = False
        text = self.report.read_text(encoding="utf-8", errors="replace") if self.report.is_file() else ""
        for line in text.split("\n"):
            # The last line of a killed session may be incomplete.
            with suppress(ValueError):
                content = json.loads(line)
                whole = "session" in content
                if "test" in content:
                    of_test = found.setdefault(short_name(content["test"]), {})
                    of_test.update({one["resource"]: one["verdict"] for one in content["verdicts"]})
        return found, whole

    def processes(self, leader: int) -> list[int]:
        """Return the processes of the run that still exist, without zombies."""
        mark = f"{_MARK}={self._mark}\0".encode()
        found = []
        for name in (path.name for path in Path("/proc").iterdir()):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with suppress(OSError, ValueError, IndexError):
                state, _parent, _group, session = _read_status(name)
                if state == "Z":
                    continue
                if int(session) == leader or mark in Path(f"/proc/{name}/environ").read_bytes() + b"\0":
                    found.append(int(name))
        return found

    def _wait(self, process: subprocess.Popen[bytes], end: float) -> int | None:
        looks = 0
        while time.monotonic() < end:
            status = process.poll()
            if status is not None:
                return status
            looks += 1
            if looks % 25 == 0 and len(self.processes(process.pid)) > _MOST_PROCESSES:
                return None
            time.sleep(_POLL_SECONDS)
        return None

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        for _ in range(50):
            if not (left := self.processes(process.pid)):
                return
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            process.poll()
            time.sleep(_POLL_SECONDS)


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, at most so long; return whether it does."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def short_name(nodeid: str) -> str:
    """Return a node id without its file."""
    return nodeid.partition("::")[2]


def _read_status(pid: str) -> list[str]:
    """Return state, parent, group and session of a process."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:4]


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:80]
    return "ended"
