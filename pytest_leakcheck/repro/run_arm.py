"""Run the arms (variants of the code) of an incident, each in its own pytest process."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import DESCRIPTORS
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.json_file import Document, read
from pytest_leakcheck.runner.processes.end_tree import end_tree, has_ended

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_REPORT_NAME: Final = "report.json"
# Seconds between two reads of an arm's output.
_POLL_SECONDS: Final = 0.1
# Seconds that pytest gets after an interrupt to tear down its fixtures and write its report.
_INTERRUPT_GRACE_SECONDS: Final = 10.0

_PLUGINS: Final = ("pytest_leakcheck.plugin", "leakcheck_incidents.material")

# A callback that gets the name of an arm and the next part of its output.
Show: TypeAlias = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run.

    `iterations` is None for as many as the verdict needs; `ceiling` is the value for ``--leakcheck-ceiling``, empty for
    none; `width` is the number of columns of the output.
    """

    iterations: int | None = None
    ceiling: str = ""
    width: int = 80
    colour: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether these options change the figures of a run, so that those in the catalog do not apply."""
        return self.iterations is not None or bool(self.ceiling)

    def arguments(self) -> list[str]:
        """Return the options that pytest takes as arguments; the width is not one of them."""
        given = [f"--leakcheck-iterations={self.iterations}"] if self.iterations is not None else []
        given += [f"--leakcheck-ceiling={self.ceiling}"] if self.ceiling else []
        return [*given, f"--color={'yes' if self.colour else 'no'}"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an arm.

    `status` is that of pytest; if a signal ended it, the negative number of the signal. Without a report, `report` is
    None.
    """

    arm: str
    status: int
    report: Document | None = None
    interrupted: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings in the report; empty if there is no report."""
        return self.report.findings if self.report is not None else ()

    @property
    def verdicts(self) -> tuple[tuple[Finding, Verdict], ...]:
        return tuple((finding, verdict) for finding in self.findings for verdict in finding.verdicts)


def run_arms(incident: Incident, arms: Sequence[str], options: Options, show: Show) -> tuple[Run, ...]:
    """Run the arms in parallel, each in its own pytest process and folder, and return a run for each, in their order.

    The arms share no processes, local Hugging Face Hub or device, and no counter depends on how fast an arm runs, so as
    many run at a time as there are cores. An empty ``pytest.ini`` per folder shuts out the user's configuration. `show`
    gets the output in the order of `arms`: that of the first while it runs, that of the next once the first has ended.

    An interrupt (Ctrl-C) ends the arms and everything that they have started. The runs then have what was found until
    then; arms that had not started get an empty `Run`.
    """
    cores = os.cpu_count() or 1
    with contextlib.ExitStack() as ending, _lower_soft_limits(incident.limits):
        waiting = list(arms)
        started: list[_StartedArm] = []
        interrupted: set[str] = set()
        try:
            while waiting or any(one.runs for one in started):
                free = cores - sum(one.runs for one in started)
                with _delay_interrupt():
                    started += [ending.enter_context(_start_arm(incident, arm, options)) for arm in waiting[:free]]
                    del waiting[:free]
                _show_output(started, show)
                time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            interrupted = {one.arm for one in started if one.runs}
            _interrupt_arms([one.process for one in started])
        finally:
            for one in started:
                end_tree(one.process, grace=0, group=True)
        runs = [one.run(interrupted=one.arm in interrupted) for one in started]
        # An interrupted arm without a report is left out, because its output ends with a traceback of pytest or of the
        # interpreter.
        _show_output([one for one, run in zip(started, runs, strict=True) if run.report or not run.interrupted], show)
        return (*runs, *(Run(arm, -signal.SIGINT, interrupted=True) for arm in waiting))


@dataclass(frozen=True, slots=True)
class _StartedArm:
    """An arm that was started; `decoder` is incremental, because a read may end in the middle of a character."""

    arm: str
    folder: Path
    process: subprocess.Popen[bytes]
    output: BinaryIO
    decoder: codecs.IncrementalDecoder

    @property
    def runs(self) -> bool:
        return not has_ended(self.process)

    def run(self, *, interrupted: bool) -> Run:
        """Return the result; the process must have ended."""
        return Run(self.arm, self.process.returncode, _read_report(self.folder / _REPORT_NAME), interrupted)


@contextlib.contextmanager
def _start_arm(incident: Incident, arm: str, options: Options) -> Iterator[_StartedArm]:
    with tempfile.TemporaryDirectory(prefix="leakcheck-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = command_of(incident, arm, options, folder / _REPORT_NAME)
        # Load no other installed pytest plugins: they are not part of the incident.
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        environment = {**os.environ, **alone, "COLUMNS": str(options.width)}
        with (folder / "output").open("wb") as written, (folder / "output").open("rb") as output:
            # The arm gets its own process group. An interrupt then reaches it only once, through this process, and
            # everything that the arm starts can be ended together with it.
            process = subprocess.Popen(  # noqa: S603 - the command has words of the catalog and checked options
                command, cwd=folder, env=environment, stdout=written, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                yield _StartedArm(arm, folder, process, output, codecs.getincrementaldecoder("utf-8")("replace"))
            finally:
                # The status is still None only if a later arm could not be started.
                if process.returncode is None:
                    end_tree(process, grace=0, group=True)


def command_of(incident: Incident, arm: str, options: Options, report: Path) -> list[str]:
    """Return the command that runs an arm and writes its report."""
    command = [sys.executable, "-m", "pytest", "--leakcheck", f"--leakcheck-json={report}"]
    command.append("--leakcheck-json-readings=all")
    command += ["-v", "--no-header", "-p", "no:cacheprovider", "--leakcheck-summary=all", *options.arguments()]
    for plugin in (*_PLUGINS, *incident.plugins):
        command += ["-p", plugin]
    return [*command, "-k", _select_tests(incident, arm), "--pyargs", incident.tests]


def _select_tests(incident: Incident, arm: str) -> str:
    """Return the ``pytest -k`` expression for the arm's tests with expectations."""
    tests = dict.fromkeys(one.test for one in incident.arms[arm])
    return f"{arm} and ({' or '.join(tests)})"


def _show_output(arms: Sequence[_StartedArm], show: Show) -> None:
    """Show new output up to the first arm that still runs; later arms have to wait, so that output does not mix."""
    for one in arms:
        runs = one.runs
        show(one.arm, one.decoder.decode(one.output.read()))
        if runs:
            return


def _read_report(path: Path) -> Document | None:
    return read(path.read_text(encoding="utf-8")) if path.exists() else None


@contextlib.contextmanager
def _delay_interrupt() -> Iterator[None]:
    """Delay Ctrl-C until the block ends, so that the caller knows each started arm and can end it."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(signal.SIGINT, None)


def _interrupt_arms(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Send SIGINT, on which pytest writes its report, and wait up to `_INTERRUPT_GRACE_SECONDS` for all to end."""
    until = time.monotonic() + _INTERRUPT_GRACE_SECONDS
    # A second Ctrl-C ends the wait; the caller then kills the arms at once.
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait(max(0.0, until - time.monotonic()))


@contextlib.contextmanager
def _lower_soft_limits(limits: dict[str, int]) -> Iterator[None]:
    """Lower the soft descriptor limit of this process, which child processes inherit, and restore it afterwards."""
    if DESCRIPTORS not in limits or sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = limits[DESCRIPTORS] if soft == resource.RLIM_INFINITY else min(limits[DESCRIPTORS], soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
