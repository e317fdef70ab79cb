"""Run one leak checker over one subject (a piece of work that leaks or not), in a separate process and folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from checkers import FORM, Checker
from rows import Row, message_of, named, outcome_of
from subjects import Subject

_BENCH_FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Contestant:
    """A checker that can run on this machine.

    Attributes:
        checker: The checker.
        python: The interpreter of its environment.
        version: The installed versions.
        modes: The requested modes that it has.
    """

    checker: Checker
    python: Path
    version: str
    modes: tuple[str, ...]


def run(contestant: Contestant, mode: str, subject: Subject, timeout: float) -> Row:
    """Run a checker in one mode over a subject, and return the row."""
    checker = contestant.checker
    setting = checker.settings[mode]
    with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        folder = Path(temporary)
        calls = folder / "calls"
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / f"{FORM}.py").write_text(setting.form)
        described = {**asdict(subject), "calls": str(calls)}
        # Variables that could make runs differ are not inherited: options of pytest, settings of the interpreter, and
        # CI, which changes the verdicts of some checkers.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "CI"))
        }
        variables = {
            **inherited,
            # Set here and not in code, because some checkers report changes to sys.path.
            "PYTHONPATH": os.pathsep.join((str(_BENCH_FOLDER), *subject.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": temporary,
            "BENCH_RUN": json.dumps(described),
            **setting.environment,
        }
        command = [str(contestant.python), *checker.command, *setting.arguments]
        began = time.perf_counter()
        output, code = _run_command(command, folder, variables, timeout)
        seconds = time.perf_counter() - began
        count = int(calls.read_text()) if calls.exists() else None
    outcome = outcome_of(checker, output, code)
    # Names count only in a report of a leak.
    line, thing, owner = named(subject, output if outcome == "found" else "")
    return Row(
        checker=checker.name,
        mode=mode,
        version=contestant.version,
        subject=subject.name,
        leaky=subject.leaky,
        outcome=outcome,
        line=line,
        thing=thing,
        owner=owner,
        calls=count,
        seconds=round(seconds, 3),
        message=message_of(checker, output, outcome),
    )


def _run_command(command: list[str], folder: Path, variables: dict[str, str], timeout: float) -> tuple[str, int | None]:
    """Return the output of a command and its exit status; None if it had to be killed."""
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
        # `wait` with a timeout polls only every 50 ms, so a timer enforces the timeout.
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            process.kill()

        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            code: int | None = process.wait()
        finally:
            timer.cancel()
            # Kill the whole session, because child processes outlive a run that failed before it could end them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return printed.read_text(encoding="utf-8", errors="replace"), None if overdue.is_set() else code
