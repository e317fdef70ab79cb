"""Run one leak checker over one subject in a separate process and folder, and read the result from its output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from checkers import FORM, Checker
from subjects import Subject
from venvs import inherited

_BENCH_FOLDER: Final = Path(__file__).resolve().parent
# Characters of the output that are stored before and after the match that reports a leak. After an error or a timeout,
# the last _CHARS_AFTER characters are stored.
_CHARS_BEFORE, _CHARS_AFTER = 200, 2000


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one checker over one subject.

    `outcome` is "found" (only if the process ended by itself), "quiet", "undecided", "error" or "timeout". `line`, `thing`
    and `owner` state whether the report names these, and are None if the subject has none. `calls` is None if the process
    did not end normally. `message` is the report of a leak, or the end of the output after an error or a timeout.
    """

    checker: str
    subject: str
    leaky: bool
    outcome: str
    line: bool | None
    thing: bool | None
    owner: bool | None
    calls: int | None
    seconds: float
    message: str


def run(checker: Checker, python: Path, subject: Subject, timeout: float) -> Row:
    """Run a checker over a subject, with the interpreter of its environment."""
    with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        folder = Path(temporary)
        calls = folder / "calls"
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / f"{FORM}.py").write_text(checker.form)
        variables = {
            # Without CI, which changes the verdicts of some checkers.
            **inherited(),
            # Set here and not in code, because some checkers report changes to sys.path.
            "PYTHONPATH": os.pathsep.join((str(_BENCH_FOLDER), *subject.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": temporary,
            "BENCH_RUN": json.dumps({**asdict(subject), "calls": str(calls)}),
            **checker.environment,
        }
        began = time.perf_counter()
        output, code = run_command([str(python), *checker.command], folder, variables, timeout)
        seconds = time.perf_counter() - began
        count = int(calls.read_text()) if calls.exists() else None
    outcome = outcome_of(checker, output, code)
    # Names count only in a report of a leak.
    line, thing, owner = named(subject, output if outcome == "found" else "")
    message = _message_of(checker, output, outcome)
    return Row(
        checker.name, subject.name, subject.leaky, outcome, line, thing, owner, count, round(seconds, 3), message
    )


def run_command(
    command: list[str], folder: Path, variables: Mapping[str, str], timeout: float
) -> tuple[str, int | None]:
    """Run a command in its own session; return its output and its exit status, None if it ran out of time."""
    printed = folder / "output"
    # The output goes to a file, because a leaked child process would keep a pipe open, and reading would wait for the
    # end of that process.
    with printed.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout)
        # Kill the whole session, because child processes outlive a run that failed before it could end them.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return printed.read_text(encoding="utf-8", errors="replace"), code


def outcome_of(checker: Checker, output: str, code: int | None) -> str:
    """Return the outcome of a run from its output and its exit status, which is None if it was killed."""
    if code is None:
        return "timeout"
    if code < 0:
        # A process that died of a signal is not trusted, whatever it printed.
        return "error"
    if checker.leak and re.search(checker.leak, output, re.MULTILINE):
        return "found"
    if checker.undecided and re.search(checker.undecided, output, re.MULTILINE):
        return "undecided"
    return "error" if code else "quiet"


def _message_of(checker: Checker, output: str, outcome: str) -> str:
    if outcome in ("quiet", "undecided"):
        return ""
    found = re.search(checker.leak, output, re.MULTILINE) if outcome == "found" else None
    return (
        output[max(0, found.start() - _CHARS_BEFORE) : found.end() + _CHARS_AFTER] if found else output[-_CHARS_AFTER:]
    )


def named(subject: Subject, report: str) -> tuple[bool | None, bool | None, bool | None]:
    """Return whether a report names a leaking line, the leaked object and its owner; None if the subject has none."""
    # Two kinds of text do not count, so they are replaced. A place in the subject's file contains the file's name,
    # which may describe the leak (leaky_mmap.py). A frame in the owner's code does not state what the owner keeps
    # alive.
    places = rf"\S*\b{re.escape(subject.file)}\S*(?: line \d+, in \S+)?"
    prose = re.sub(places, "PLACE", report).replace(subject.name, "SUBJECT")
    numbers = "|".join(map(str, subject.lines))
    line = rf"\b{re.escape(subject.file)}(?::|\"?,? line )(?:{numbers})\b"
    return (
        re.search(line, report) is not None if subject.lines else None,
        re.search(subject.thing, prose) is not None if subject.thing else None,
        re.search(subject.owner, prose) is not None if subject.owner else None,
    )
