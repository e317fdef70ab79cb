"""One checker over one subject, in a process and a folder of their own. Out: a row."""

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

_HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Contestant:
    """A checker that can be run here.

    Attributes:
        checker: The entry.
        python: The interpreter of its environment.
        version: What was installed.
        modes: Those that are asked for and that it has.
    """

    checker: Checker
    python: Path
    version: str
    modes: tuple[str, ...]


def run(contestant: Contestant, mode: str, subject: Subject, timeout: float) -> Row:
    """The row of one run."""
    checker = contestant.checker
    setting = checker.settings[mode]
    with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        folder = Path(temporary)
        calls = folder / "calls"
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / f"{FORM}.py").write_text(setting.form)
        described = {**asdict(subject), "calls": str(calls)}
        # Whatever could make one run differ from another: options of pytest, the environment of the interpreter that
        # runs this, and CI, under which some checkers judge otherwise.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON", "CI"))
        }
        variables = {
            **inherited,
            # Put there and not by the process itself: some checkers report what a test does to sys.path.
            "PYTHONPATH": os.pathsep.join((str(_HERE), *subject.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": temporary,
            "BENCH_RUN": json.dumps(described),
            **setting.environment,
        }
        command = [str(contestant.python), *checker.command, *setting.arguments]
        began = time.perf_counter()
        output, code = _output_of(command, folder, variables, timeout)
        seconds = time.perf_counter() - began
        count = int(calls.read_text()) if calls.exists() else None
    outcome = outcome_of(checker, output, code)
    # Nothing is named by an output that reports no leak.
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


def _output_of(command: list[str], folder: Path, variables: dict[str, str], timeout: float) -> tuple[str, int | None]:
    """What a command printed, and how it ended: None if it had to be ended."""
    printed = folder / "output"
    # Into a file: a child that a subject leaks would hold a pipe open, and be waited for.
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
        # Waited for without a timeout, for which `wait` would look every 50 ms only.
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
            # The whole session, since children outlive a run that failed before it could end them.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return printed.read_text(encoding="utf-8", errors="replace"), None if overdue.is_set() else code
