"""Define the stash keys under which the plugin's modules share values.

`SETTINGS` is set on every config; `PROCESS` and `ARGUMENTS`, and for a run that measures peaks
`SIZE` and `METER`, on that of a process that was started for one test. The keys from `PLAN` on are
set on items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_leakcheck.baseline.known_leaks import KnownLeaks
    from pytest_leakcheck.config.plan import Plan
    from pytest_leakcheck.config.scaling_marker import Sweep
    from pytest_leakcheck.config.settings import Settings
    from pytest_leakcheck.model.finding import Finding
    from pytest_leakcheck.plugin.pytest_residue import Residue
    from pytest_leakcheck.runner.environment import ForkGuard
    from pytest_leakcheck.runner.peak_meter import Meter
    from pytest_leakcheck.runner.repetition import Repetition
    from pytest_leakcheck.runner.user_gauges import Gauges


class Iteration:
    """The state of an item being repeated: the number of its iteration, from 1, and its error."""

    def __init__(self, residue: Residue, repetition: Repetition, gauges: Gauges) -> None:
        self.residue, self.repetition, self.gauges = residue, repetition, gauges
        self.count = 0
        self.error: BaseException | None = None


class FirstRun:
    """What is known of the session's own run of an item that the second pass judges.

    Attributes:
        reported: A report of it was made in this process.
        passed: All of its reports so far have passed.
        seconds: How long it took.
        judging: The second pass has reached the item.
    """

    __slots__ = ("judging", "passed", "reported", "seconds")

    def __init__(self) -> None:
        self.reported, self.passed, self.judging = False, True, False
        self.seconds = 0.0


SETTINGS: Final[pytest.StashKey[Settings]] = pytest.StashKey()
# The known leaks of the project, or None without a file of them. Set on the config of each process
# that measures.
KNOWN: Final[pytest.StashKey[KnownLeaks | None]] = pytest.StashKey()
# The meter of the peaks; set only while the test body runs.
METER: Final[pytest.StashKey[Meter]] = pytest.StashKey()
# The size at which this process runs a ``scaling_budget`` test; 0 in a run for the ``peak=`` of a
# budget.
SIZE: Final[pytest.StashKey[int]] = pytest.StashKey()
# What the report states about this process; added to the environment in the recording of each
# repetition.
PROCESS: Final[pytest.StashKey[Mapping[str, str]]] = pytest.StashKey()
# The command line of the session that started this process.
ARGUMENTS: Final[pytest.StashKey[tuple[str, ...]]] = pytest.StashKey()

PLAN: Final[pytest.StashKey[Plan]] = pytest.StashKey()
# Why the item is not to be judged, in a few words for the summary; empty or missing if it is.
NOT_ASKED: Final[pytest.StashKey[str]] = pytest.StashKey()
# Set on an item that waits for the second pass, or is judged in it; the others are judged at their
# turn.
FIRST_RUN: Final[pytest.StashKey[FirstRun]] = pytest.StashKey()
SWEEP: Final[pytest.StashKey[Sweep]] = pytest.StashKey()
FINDINGS: Final[pytest.StashKey[list[Finding]]] = pytest.StashKey()
# Why the item has no verdict: a debugger is at work, or it does not use its fixture. Empty if it
# may have one.
UNMEASURED: Final[pytest.StashKey[str]] = pytest.StashKey()
# One of these reasons.
STOPPED: Final = "stopped in a debugger"
REPEATING: Final[pytest.StashKey[Iteration]] = pytest.StashKey()
# The process that measures the item. A process that the test forks must exit if it returns from the
# test to the plugin.
FORK_GUARD: Final[pytest.StashKey[ForkGuard]] = pytest.StashKey()
# Seconds that the repetition took: all iterations, and any run for the ``peak=`` of a budget.
REPEATED: Final[pytest.StashKey[float]] = pytest.StashKey()
