"""Every key of what the plugin keeps on pytest's `config` and items.

On the config: `SETTINGS`, `METER`, and in a process that was started for one test `SIZE`, `PROCESS`, `ARGUMENTS`, `ENCODING`.
On an item: the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_leakcheck.config.plan import Plan
    from pytest_leakcheck.config.scaling_marker import Sweep
    from pytest_leakcheck.config.settings import Settings
    from pytest_leakcheck.model.finding import Finding
    from pytest_leakcheck.plugin.pytest_residue import Residue
    from pytest_leakcheck.runner.fork_guard import Origin
    from pytest_leakcheck.runner.peak_meter import Meter
    from pytest_leakcheck.runner.repetition import Repetition
    from pytest_leakcheck.runner.user_gauges import Gauges


class Iteration:
    """The state of an item that is being repeated."""

    def __init__(self, residue: Residue, repetition: Repetition, gauges: Gauges) -> None:
        self.residue = residue
        self.repetition = repetition
        self.gauges = gauges
        self.count = 0
        self.error: BaseException | None = None


SETTINGS: Final[pytest.StashKey[Settings]] = pytest.StashKey()
# While one run of a test is metered.
METER: Final[pytest.StashKey[Meter]] = pytest.StashKey()
# The size of the axis.
SIZE: Final[pytest.StashKey[int]] = pytest.StashKey()
# What the report says of the process.
PROCESS: Final[pytest.StashKey[Mapping[str, str]]] = pytest.StashKey()
# The command line of the session that the process belongs to.
ARGUMENTS: Final[pytest.StashKey[tuple[str, ...]]] = pytest.StashKey()
# The encoding of that session's terminal.
ENCODING: Final[pytest.StashKey[str]] = pytest.StashKey()

PLAN: Final[pytest.StashKey[Plan]] = pytest.StashKey()
SWEEP: Final[pytest.StashKey[Sweep]] = pytest.StashKey()
FINDINGS: Final[pytest.StashKey[list[Finding]]] = pytest.StashKey()
REPEATING: Final[pytest.StashKey[Iteration]] = pytest.StashKey()
# The process that the item is measured in: a child that the test has forked must leave.
ORIGIN: Final[pytest.StashKey[Origin]] = pytest.StashKey()
# Seconds that all runs but the last have taken.
REPEATED: Final[pytest.StashKey[float]] = pytest.StashKey()
