"""Run the arms of an incident, each in its own pytest, and stream their output in order."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeAlias

from pytest_leakcheck.runner.processes.end_tree import end_tree, has_ended

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_REPORT: Final = "report.json"
# Seconds between two reads of an arm's output.
_POLL: Final = 0.1
# After an interrupt: what pytest gets to end its fixtures and write its report.
_LEAVE: Final = 10.0

_PLUGINS: Final = ("pytest_leakcheck.plugin", "leakcheck_incidents.material")

# Called with an arm and the next part of its output.
Show: TypeAlias = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How an arm is run.

    Attributes:
        iterations: Of each test; None for as many as needed.
        ceiling: As of ``--leakcheck-ceiling``; empty for none.
        width: Columns of its output.
        colour: Whether the output is coloured.
    """

    iterations: int | None = None
    ceiling: str = ""
    width: int = 80
    colour: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether the catalogue's figures do not apply to such a run."""
        return self.iterations is not None or bool(self.ceiling)

    def arguments(self) -> list[str]:
        """Return them as pytest arguments."""
        given = [f"--leakcheck-iterations={self.iterations}"] if self.iterations is not None else []
        given += [f"--leakcheck-ceiling={self.ceiling}"] if self.ceiling else []
        return [*given, f"--color={'yes' if self.colour else 'no'}"]


@dataclass(frozen=True, slots=True)
class Run:
    """The result of an arm.

    Attributes:
        arm: Its name.
        status: The exit status of pytest.
        report: What ``--leakcheck-json`` wrote; empty if it wrote none.
        interrupted: It was ended early.
    """

    arm: str
    status: int
    report: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.report.get("findings", ()))


def run_arms(incident: Incident, arms: Sequence[str], options: Options, show: Show) -> tuple[Run, ...]:
    """Run the arms side by side, each in an empty folder, so that no configuration of the user's plays a part.

    They share nothing: each has its own processes, Hub and device, and no counter depends on how fast it runs. So as many
    run at a time as there are cores. An interrupt (Ctrl-C) ends them and everything they have started, and returns what
    they found until then; arms that had not started get an empty `Run`.

    Args:
        incident: What to run.
        arms: Which tests of it.
        options: How.
        show: Called with each arm's output in the order of `arms`: that of the first while it runs, that of the next once
            the first has ended.
    """
    cores = os.cpu_count() or 1
    with contextlib.ExitStack() as ending, _soft_limits(incident.limits):
        waiting = list(arms)
        started: list[_Started] = []
        interrupted: set[str] = set()
        try:
            while waiting or any(one.runs for one in started):
                free = cores - sum(one.runs for one in started)
                with _interrupt_later():
                    started += [ending.enter_context(_started(incident, arm, options)) for arm in waiting[:free]]
                    del waiting[:free]
                _show(started, show)
                time.sleep(_POLL)
        except KeyboardInterrupt:
            interrupted = {one.arm for one in started if one.runs}
            _interrupt([one.process for one in started])
        finally:
            for one in started:
                end_tree(one.process, grace=0, group=True)
        runs = [one.run(interrupted=one.arm in interrupted) for one in started]
        # An interrupted arm without a report ends in a traceback of pytest or of the interpreter.
        _show([one for one, run in zip(started, runs, strict=True) if run.report or not run.interrupted], show)
        return (*runs, *(Run(arm, -signal.SIGINT, interrupted=True) for arm in waiting))


@dataclass(frozen=True, slots=True)
class _Started:
    """An arm that runs.

    Attributes:
        arm: Its name.
        folder: Where it runs, and writes its report.
        process: Its pytest.
        output: The file that it writes to, opened for reading.
        decoder: Of the output, which may be read up to the middle of a character.
    """

    arm: str
    folder: Path
    process: subprocess.Popen[bytes]
    output: BinaryIO
    decoder: codecs.IncrementalDecoder

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return not has_ended(self.process)

    def run(self, *, interrupted: bool) -> Run:
        """Return what became of it, once it has ended."""
        return Run(self.arm, self.process.returncode, _report(self.folder / _REPORT), interrupted)


@contextlib.contextmanager
def _started(incident: Incident, arm: str, options: Options) -> Iterator[_Started]:
    with tempfile.TemporaryDirectory(prefix="leakcheck-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = command_of(incident, arm, options, folder / _REPORT)
        # What else is installed for pytest is not part of the incident.
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        environment = {**os.environ, **alone, "COLUMNS": str(options.width)}
        with (folder / "output").open("wb") as written, (folder / "output").open("rb") as output:
            # In a group of its own: an interrupt is passed on once, by us, and all that it starts can be ended with it.
            process = subprocess.Popen(  # noqa: S603 - the command is made of the catalogue's words and checked options
                command, cwd=folder, env=environment, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                yield _Started(arm, folder, process, output, codecs.getincrementaldecoder("utf-8")("replace"))
            finally:
                # Only where another one could not be started.
                if process.returncode is None:
                    end_tree(process, grace=0, group=True)


def command_of(incident: Incident, arm: str, options: Options, report: Path) -> list[str]:
    """Return the command that runs an arm and writes its report."""
    command = [sys.executable, "-m", "pytest", "--leakcheck", f"--leakcheck-json={report}"]
    command += ["-v", "--no-header", "-p", "no:cacheprovider", "--leakcheck-summary=all", *options.arguments()]
    for plugin in (*_PLUGINS, *incident.plugins):
        command += ["-p", plugin]
    return [*command, "-k", _tests_of(incident, arm), "--pyargs", incident.tests]


def _tests_of(incident: Incident, arm: str) -> str:
    """Return the ``pytest -k`` expression of the tests with expectations in this arm."""
    tests = dict.fromkeys(one.test for one in incident.arms[arm])
    return f"{arm} and ({' or '.join(tests)})"


def _show(arms: Sequence[_Started], show: Show) -> None:
    """Show new output up to the first arm that still runs: output of two arms must not mix."""
    for one in arms:
        runs = one.runs
        show(one.arm, one.decoder.decode(one.output.read()))
        if runs:
            return


def _report(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


@contextlib.contextmanager
def _interrupt_later() -> Iterator[None]:
    """Ctrl-C in here takes effect when it is over: what has just been started must be known, to be ended."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(signal.SIGINT, None)


def _interrupt(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """As Ctrl-C would: pytest ends its fixtures, and writes what it has."""
    until = time.monotonic() + _LEAVE
    # A second Ctrl-C ends them at once.
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(max(0.0, until - time.monotonic()))


@contextlib.contextmanager
def _soft_limits(limits: dict[str, int]) -> Iterator[None]:
    """Lower what the child inherits, and put it back."""
    if "fd" not in limits or sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = limits["fd"] if soft == resource.RLIM_INFINITY else min(limits["fd"], soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
