"""Describe readings in a JSON form that processes can exchange: a `Series` per counter, a `Recording` per test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from pytest_leakcheck.model.resources import Kind, OfResource

Collector: TypeAlias = Literal["on", "off"]
Stopped: TypeAlias = Literal["judged", "iterations", "time", "failed", "interrupted", "lost"]


@dataclass(frozen=True, slots=True)
class Series(OfResource):
    """The readings of one counter.

    Attributes:
        resource: A key of `resources.RESOURCES`, or ``gauge:<name>`` for a user-defined counter.
        readings: x[0] ... x[n]: the counter at the end of warm-up and after each of n iterations, in its unit.
        released: For each of the n iterations, the amount that only the cyclic garbage collector released; empty if
            this is not tracked.
        kind: How the readings were obtained.
    """

    SPARSE: ClassVar = True

    resource: str
    readings: tuple[int, ...]
    released: tuple[int, ...] = ()
    kind: Kind = "measured"

    @property
    def iterations(self) -> int:
        return len(self.readings) - 1


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a test that ended with ``leakcheck.checkpoint(label)``.

    Attributes:
        label: The label passed to ``checkpoint``.
        amounts: By resource, in its unit. For a repeated test: the amount that the phase added in the last iteration.
            For a test that ran once for its peaks: the highest peak above the start of all phases with this label.
        count: The number of phases with this label, if the test ran once for its peaks; else 1.
    """

    label: str
    amounts: Mapping[str, int]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """All series of one test, with the data needed to judge and compare them later.

    Attributes:
        test: The node id, or the name given to `measure`.
        series: One per counter, all of the same length.
        warmup: The number of iterations before the first reading of each series.
        seconds: Wall time of warm-up and iterations, including the probes.
        collector: Whether the cyclic garbage collector of the program was on at the last reading.
        stopped: Why the repetition ended; ``lost`` if its process died.
        limits: By resource, the value at which the process fails: RLIMIT_NOFILE, the memory of the machine, cgroup or
            device in bytes, or a lower limit set by the test. Resources without a known limit are missing.
        unavailable: By resource, the reason why it could not be read.
        environment: Versions and machine, for the report.
        peaks: The peak of each counter above the start while the test ran once, in its unit.
        phases: The amounts of the phases of the test, in the order in which their labels first ended.
    """

    SCHEMA: ClassVar[int] = 1
    SPARSE: ClassVar = True

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
        found = self.find(resource)
        return found.kind if found is not None else "measured"

    def find(self, resource: str) -> Series | None:
        return next((series for series in self.series if series.resource == resource), None)
