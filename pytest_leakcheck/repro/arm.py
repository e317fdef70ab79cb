"""The arms of an incident: each its tests in a pytest of its own, followed until all end or are interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO, TypeAlias

from pytest_leakcheck.end_tree import end_tree
from pytest_leakcheck.repro import FEED

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_REPORT: Final = "report.json"
# Between two looks at what the arm tells, in seconds; as often as it tells it.
_LOOK: Final = 0.1
# After an interrupt: what pytest gets to end its fixtures and write its report.
_LEAVE: Final = 10.0

_PLUGINS: Final = ("pytest_leakcheck.plugin", "leakcheck_incidents.material", "pytest_leakcheck.repro.feed")

# What the arm tells, as `feed` writes it.
Event: TypeAlias = Mapping[str, Any]
Follower: TypeAlias = Callable[[Sequence[Event]], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How an arm is run.

    Attributes:
        iterations: So many, where given.
        ceiling: As of ``--leakcheck-ceiling``; empty for none.
        width: Columns of what it writes.
        colour: Whether that is coloured.
    """

    iterations: int | None = None
    ceiling: str = ""
    width: int = 80
    colour: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether it is run in another way than the catalogue's figures were found."""
        return self.iterations is not None or bool(self.ceiling)

    def arguments(self) -> list[str]:
        """For pytest."""
        given = [f"--leakcheck-iterations={self.iterations}"] if self.iterations is not None else []
        given += [f"--leakcheck-ceiling={self.ceiling}"] if self.ceiling else []
        return [*given, f"--color={'yes' if self.colour else 'no'}"]


@dataclass(frozen=True, slots=True)
class Run:
    """What became of an arm.

    Attributes:
        arm: Its name.
        status: The exit status of pytest.
        said: What it wrote.
        report: As ``--leakcheck-json`` wrote it; without findings where it did not come to that.
        interrupted: It was ended before all was done.
    """

    arm: str
    status: int
    said: str
    report: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def findings(self) -> list[dict[str, Any]]:
        return list(self.report.get("findings", ()))


def run_arms(incident: Incident, arms: Sequence[str], options: Options, follower: Follower) -> tuple[Run, ...]:
    """Run them side by side, each in an empty folder, so that no configuration of the user's plays a part.

    They have nothing in common: each has processes, a Hub and a device of its own, and nothing that is counted depends on
    how fast it runs. So as many run at a time as there are cores. An interrupt (Ctrl-C) ends them and all that they have
    started; what they came to until then is returned, also of those that were still to come, which is nothing.

    Args:
        incident: What to run.
        arms: Which tests of it.
        options: How.
        follower: Called some ten times a second with what the arms have told since.
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
                follower([event for one in started for event in next(one.told)])
                time.sleep(_LOOK)
        except KeyboardInterrupt:
            interrupted = {one.arm for one in started if one.runs}
            _interrupt([one.process for one in started])
        finally:
            for one in started:
                end_tree(one.process, grace=0, group=True)
        follower([event for one in started for event in next(one.told)])
        runs = [one.run(interrupted=one.arm in interrupted) for one in started]
        return (*runs, *(Run(arm, -signal.SIGINT, "", interrupted=True) for arm in waiting))


@dataclass(frozen=True, slots=True)
class _Started:
    """An arm that runs.

    Attributes:
        arm: Its name.
        folder: Where it runs, and writes its report.
        process: Its pytest.
        said: What that writes.
        told: Each time, what `feed` has written since.
    """

    arm: str
    folder: Path
    process: subprocess.Popen[bytes]
    said: BinaryIO
    told: Iterator[list[Event]]

    @property
    def runs(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def run(self, *, interrupted: bool) -> Run:
        """What became of it, once it has ended."""
        self.said.seek(0)
        text = self.said.read().decode(errors="replace")
        return Run(self.arm, self.process.returncode, text, _report(self.folder / _REPORT), interrupted)


@contextlib.contextmanager
def _started(incident: Incident, arm: str, options: Options) -> Iterator[_Started]:
    with tempfile.TemporaryDirectory(prefix="leakcheck-") as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = command_of(incident, arm, options, folder / _REPORT)
        feed = folder / "feed"
        feed.touch()
        # What else is installed for pytest is not part of the incident.
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        environment = {**os.environ, **alone, FEED: str(feed), "COLUMNS": str(options.width)}
        with (folder / "said").open("w+b") as said, feed.open(encoding="utf-8") as lines:
            # In a group of its own: an interrupt is passed on once, by us, and all that it starts can be ended with it.
            process = subprocess.Popen(  # noqa: S603 - the command is made of the catalogue's words and checked options
                command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                yield _Started(arm, folder, process, said, _events(lines))
            finally:
                # Only where another one could not be started.
                if process.returncode is None:
                    end_tree(process, grace=0, group=True)


def command_of(incident: Incident, arm: str, options: Options, report: Path) -> list[str]:
    """What runs an arm and writes its report there."""
    command = [sys.executable, "-m", "pytest", "--leakcheck", f"--leakcheck-json={report}"]
    command += ["-q", "--no-header", "-p", "no:cacheprovider", "--leakcheck-summary=all", *options.arguments()]
    for plugin in (*_PLUGINS, *incident.plugins):
        command += ["-p", plugin]
    return [*command, "-k", _tests_of(incident, arm), "--pyargs", incident.tests]


def _tests_of(incident: Incident, arm: str) -> str:
    """For ``pytest -k``: those of this arm in which something must be found."""
    tests = dict.fromkeys(one.test for one in incident.arms[arm])
    return f"{arm} and ({' or '.join(tests)})"


def _events(file: TextIO) -> Iterator[list[Event]]:
    """Each time, what was written since the last: whole lines."""
    rest = ""
    while True:
        *lines, rest = (rest + file.read()).split("\n")
        yield [json.loads(line) for line in lines]


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
