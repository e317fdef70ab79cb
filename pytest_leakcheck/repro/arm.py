"""One arm of an incident: its tests in a pytest of its own, followed until it ends or is interrupted."""

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
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeAlias

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


def run_arm(incident: Incident, arm: str, options: Options, follower: Follower) -> Run:
    """Run it in an empty folder, so that no configuration of the user's plays a part.

    An interrupt (Ctrl-C) ends it and all that it has started; what it came to until then is returned.

    Args:
        incident: What to run.
        arm: Which tests of it.
        options: How.
        follower: Called some ten times a second with what the arm has told since.
    """
    with tempfile.TemporaryDirectory(prefix="leakcheck-") as name, _soft_limits(incident.limits):
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = command_of(incident, arm, options, folder / _REPORT)
        feed = folder / "feed"
        feed.touch()
        # What else is installed for pytest is not part of the incident.
        alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        environment = {**os.environ, **alone, FEED: str(feed), "COLUMNS": str(options.width)}
        with (folder / "said").open("w+b") as said, feed.open(encoding="utf-8") as lines:
            told = _events(lines)
            # In a group of its own: an interrupt is passed on once, by us, and all that it starts can be ended with it.
            process = subprocess.Popen(  # noqa: S603 - the command is made of the catalogue's words and checked options
                command, cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
            interrupted = False
            try:
                while process.poll() is None:
                    follower(next(told))
                    time.sleep(_LOOK)
            except KeyboardInterrupt:
                interrupted = True
                _interrupt(process)
            finally:
                _end(process)
            follower(next(told))
            said.seek(0)
            text = said.read().decode(errors="replace")
        return Run(arm, process.returncode, text, _report(folder / _REPORT), interrupted)


def command_of(incident: Incident, arm: str, options: Options, report: Path) -> list[str]:
    """What runs an arm and writes its report there."""
    command = [sys.executable, "-m", "pytest", "--leakcheck", f"--leakcheck-json={report}"]
    command += ["-q", "--no-header", "-p", "no:cacheprovider", "--leakcheck-summary=all", *options.arguments()]
    for plugin in (*_PLUGINS, *incident.plugins):
        command += ["-p", plugin]
    return [*command, "-k", arm, "--pyargs", incident.tests]


def _events(file: TextIO) -> Iterator[list[Event]]:
    """Each time, what was written since the last: whole lines."""
    rest = ""
    while True:
        *lines, rest = (rest + file.read()).split("\n")
        yield [json.loads(line) for line in lines]


def _report(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would: pytest ends its fixtures, and writes what it has."""
    # A second Ctrl-C ends it at once.
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.send_signal(signal.SIGINT)
        process.wait(_LEAVE)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever is left of its group."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    elif process.poll() is None:
        process.kill()
    process.wait()


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
