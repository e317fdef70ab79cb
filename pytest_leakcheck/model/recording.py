"""What was read, as values with a JSON form: a `Series` per counter, a `Recording` per test.

A recording made in another process (an xdist worker, a fresh child) is judged and rendered like one made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from pytest_leakcheck.model.resources import Kind

Collector: TypeAlias = Literal["on", "off"]
Stopped: TypeAlias = Literal["judged", "iterations", "time", "failed", "interrupted", "lost"]


@dataclass(frozen=True, slots=True)
class Series:
    """The readings of one counter.

    Attributes:
        resource: A key of `resources.RESOURCES`, or ``gauge:<name>`` for a counter of the user's own.
        readings: x[0] ... x[n]: the counter at the end of warm-up and after each of n iterations, in its unit.
        released: For each of the n iterations, how much of it only the cyclic garbage collector gave back; empty
            where that is not followed.
        kind: How the readings came about.
    """

    resource: str
    readings: tuple[int, ...]
    released: tuple[int, ...] = ()
    kind: Kind = "measured"

    @property
    def iterations(self) -> int:
        return len(self.readings) - 1


@dataclass(frozen=True, slots=True)
class Phase:
    """What ended with ``leakcheck.checkpoint(label)``.

    Attributes:
        label: As it was given.
        amounts: By resource, in its unit. In a repeated test, what the phase added in the last iteration; where a test
            ran once for its peaks, how far it stood above the start at its highest, of several with one label the most.
        count: How many there were in one run.
    """

    label: str
    amounts: Mapping[str, int]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """All series of one test, with what is needed to judge and to compare them later.

    Attributes:
        test: The node id, or the name given to `measure`.
        series: One per counter, all of the same length.
        warmup: Iterations that ran before x[0].
        seconds: Wall time of warm-up and iterations, probes included.
        collector: Whether the program's cyclic collector was on when the last reading was taken.
        stopped: Why the repetition ended; ``lost`` where the process that it ran in did.
        limits: For some resources, where this process would die: RLIMIT_NOFILE, memory of machine or cgroup, in bytes.
        unavailable: Why an instrument is absent, by resource.
        environment: Versions and machine, for the report.
        peaks: How far each counter stood above the start at its highest while the test ran once, in its unit.
        phases: The same for its parts, in the order in which they first ended.
    """

    SCHEMA: ClassVar[int] = 1

    test: str
    series: tuple[Series, ...]
    warmup: int = 0
    seconds: float = 0.0
    collector: Collector = "on"
    stopped: Stopped = "judged"
    limits: Mapping[str, int] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()

    def kind(self, resource: str) -> Kind:
        """How the readings of a resource came about."""
        found = self.find(resource)
        return found.kind if found is not None else "measured"

    def find(self, resource: str) -> Series | None:
        """The series of a resource, or None where it was not read."""
        return next((series for series in self.series if series.resource == resource), None)
