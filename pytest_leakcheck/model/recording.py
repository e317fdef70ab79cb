"""Describe readings as JSON that processes share: a `Series` per counter, a `Recording` per test.

A test with an axis, an argument that takes growing sizes, is measured in separate processes: each
size yields one `Point`. A world is a group of ranks: processes or threads that run the test
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Final, Literal, TypeAlias

from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resources import RESIDENT, Kind, OfResource, check_resource

Collector: TypeAlias = Literal["on", "off"]
Stopped: TypeAlias = Literal["judged", "iterations", "time", "failed", "interrupted", "lost"]
Engine: TypeAlias = Literal["", "thread", "process", "gloo", "ray"]
Figure: TypeAlias = Literal["total", "per_rank", "at_least"]
# Why readings were corrected: what counted ended by itself while it was waited for; the growth is
# judged without that wait; it belongs to other programs, or is of unknown origin and gone; it was
# garbage; the harness made it.
Why: TypeAlias = Literal["ended", "put_back", "foreign", "garbage", "harness"]

# The reason for a missing peak if no other is recorded: the test never called ``leakcheck.gauge``.
NOT_READ: Final = "it was not read"
# No more corrections of a recording are kept.
MOST_CORRECTIONS: Final = 200
# The composition of a peak is analyzed at this share of it, because a second run does not quite
# reach the same peak.
_NEAR_PEAK_RATIO: Final = 0.9


@dataclass(frozen=True, slots=True)
class Series(OfResource):
    """The readings of one counter.

    Attributes:
        resource: A key of `resources.RESOURCES`, or ``gauge:<name>`` for a user-defined counter.
        readings: x[0] ... x[n]: the counter at the end of warm-up and after each of n iterations,
            in its unit.
        released: For each of the n iterations, the amount that only the cyclic garbage collector
            released; empty if this is not tracked.
        kind: How the readings were obtained.
    """

    SPARSE: ClassVar = True

    resource: str
    readings: tuple[int, ...]
    released: tuple[int, ...] = ()
    kind: Kind = "measured"

    def check(self) -> None:
        """Raise `InputError` for a value from a file without readings or a known resource."""
        check_resource(self.resource)
        if not self.readings:
            raise InputError("readings: expected at least one, got none")

    @property
    def iterations(self) -> int:
        return len(self.readings) - 1

    def since(self, iteration: int) -> Series:
        """Return the series as if it began after this many iterations."""
        return replace(self, readings=self.readings[iteration:], released=self.released[iteration:])

    @property
    def rises(self) -> dict[int, int]:
        """The amount by which the counter rose in each iteration in which it did."""
        steps = enumerate(pairwise(self.readings), 1)
        return {at: after - before for at, (before, after) in steps if after > before}


@dataclass(frozen=True, slots=True)
class Correction:
    """A change of readings after they were made.

    Attributes:
        resource: The counter.
        by: What was added to each of the readings, in its unit; mostly negative.
        first: The first of these readings, from 0, the start level.
        last: The last one; None for all that follow.
        why: What the readings had counted.
    """

    SPARSE: ClassVar = True

    resource: str
    by: int
    first: int
    last: int | None
    why: Why


@dataclass(frozen=True, slots=True)
class UserPhase:
    """A part of a test that ended with ``leakcheck.checkpoint(label)``.

    Attributes:
        label: The label passed to ``checkpoint``.
        amounts: By resource, in its unit. For a repeated test: the amount that the phase added in
            the last iteration. For a test that ran once for its peaks: the highest peak above the
            start of all phases with this label.
        count: The number of phases with this label, if the test ran once for its peaks; else 1.
    """

    label: str
    amounts: Mapping[str, int]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Fullest:
    """The child process that gained most descriptors, each process having a limit of its own.

    Attributes:
        process: Its command line.
        held: The number of its descriptors, with those that it has inherited.
        gained: How many of them are new since the first reading.
        of: How many descriptors all processes together gained.
    """

    process: str
    held: int
    gained: int
    of: int


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
        limits: By resource, the value at which the process fails: RLIMIT_NOFILE, the memory of the
            machine, cgroup or device in bytes, or a lower limit set by the test. Resources without
            a known limit are missing.
        unavailable: By resource, the reason why it could not be read.
        environment: Versions and machine, for the report.
        peaks: The peak of each counter above the start while the test ran once, in its unit.
        exact: Whether the memory peak was read between two calls. Else it may be the kernel's
            coarser high-water mark.
        at_calls: If it is that mark, the highest peak that was read between two calls, in bytes;
            else 0.
        phases: The amounts of the phases of the test, in the order in which their labels first
            ended.
        fullest: The child process that is first to reach its limit, for a red verdict on
            descriptors.
        corrections: How the readings of the series were changed, in this order; the first
            `MOST_CORRECTIONS`.
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
    exact: bool = False
    at_calls: int = 0
    phases: tuple[UserPhase, ...] = ()
    fullest: Fullest | None = None
    corrections: tuple[Correction, ...] = ()

    def kind(self, resource: str) -> Kind:
        found = self.find(resource)
        return found.kind if found is not None else "measured"

    def find(self, resource: str) -> Series | None:
        return next((series for series in self.series if series.resource == resource), None)


@dataclass(frozen=True, slots=True)
class Sizing:
    """A request to run a test at one size; `axis` is empty if the test is not run over one.

    The `engine` starts the world of ranks; empty if the test starts the world or needs none.
    `naming` is the memory above the start level, in bytes, at which to find what the memory
    consists of; 0 to measure only the peak.
    """

    axis: str
    size: int
    resources: tuple[str, ...]
    engine: Engine = ""
    naming: int = 0

    @property
    def of_processes(self) -> bool:
        """Whether each rank runs in a separate process."""
        return self.engine not in ("", "thread")

    @property
    def ranks(self) -> int:
        """The number of processes that run the test."""
        return self.size if self.of_processes else 1


@dataclass(frozen=True, slots=True)
class Point:
    """The peaks at one size.

    Attributes:
        size: The value of the axis; 0 if the test is not run over an axis.
        recordings: One per rank process; a single one with the engine ``thread`` or none.
        children: Peak memory of child processes, in bytes, as observed from the supervising
            process.
        seconds: Wall time, including start-up.
    """

    DERIVED: ClassVar = ("peaks",)

    size: int
    recordings: tuple[Recording, ...]
    children: int = 0
    seconds: float = 0.0

    def peak(self, resource: str, figure: Figure) -> int:
        """Return the peak above the start: the highest rank's for ``per_rank``, else the sum.

        The sum is over all ranks; that of resident memory includes the child processes. The ranks'
        peaks may not coincide.
        """
        peaks = [peak for recording in self.recordings for peak in peaks_of(recording, resource)]
        own = max(peaks) if figure == "per_rank" else sum(peaks)
        return own + (self.children if resource == RESIDENT and figure != "per_rank" else 0)

    @property
    def peaks(self) -> dict[str, int]:
        """The sum over all ranks of each resource's peak, as `peak` returns it."""
        names = {
            name.partition("@")[0] for recording in self.recordings for name in recording.peaks
        }
        return {name: self.peak(name, "total") for name in sorted(names)}

    @property
    def near_peak(self) -> int:
        """Bytes above the start, slightly below a rank's highest reading.

        At this level, that rank's memory is analyzed.
        """
        read = [one.at_calls or max(peaks_of(one, RESIDENT)) for one in self.recordings]
        return round(_NEAR_PEAK_RATIO * max(read))

    def kind(self, resource: str) -> Kind:
        """Return how the readings of a resource were obtained, which is the same in all ranks."""
        return self.recordings[0].kind(resource)

    def why_not(self, resource: str) -> str:
        """Return why a resource has no peak, or an empty string if it has one."""
        for recording in self.recordings:
            if not peaks_of(recording, resource):
                return recording.unavailable.get(resource, NOT_READ)
        return ""


def peaks_of(recording: Recording, resource: str) -> tuple[int, ...]:
    """Return a resource's peaks in one process.

    There are several if the ranks are threads, each with its own gauge.
    """
    return tuple(
        peak for name, peak in recording.peaks.items() if name.partition("@")[0] == resource
    )


@dataclass(frozen=True, slots=True)
class Scaled:
    """All points of one test.

    Attributes:
        axis: The argument of the test that takes the size.
        engine: The engine that started the worlds; may be empty.
        points: The points in ascending order of size.
    """

    axis: str
    engine: Engine
    points: tuple[Point, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(point.size for point in self.points)

    def peaks(self, resource: str, figure: Figure) -> tuple[int, ...]:
        return tuple(point.peak(resource, figure) for point in self.points)

    def count_added_processes(self, figure: Figure) -> int:
        """Return how many processes a sum gains from the smallest size to the largest, or 1."""
        return (
            self.sizes[-1] - self.sizes[0]
            if figure == "total" and self.engine not in ("", "thread")
            else 1
        )

    def most_informative_point(self, quick: float) -> Point:
        """Return the point at which to analyze memory.

        It is quicker than `quick` seconds, or than three times the smallest.
        """
        # At least half of its peak comes from the size. An analysis makes a run about four times as
        # long.
        found = [
            point
            for point in self.points
            if point.seconds <= max(quick, 3 * self.points[0].seconds)
        ]
        twice = 2 * self.points[0].peak(RESIDENT, "total")
        return next((point for point in found if point.peak(RESIDENT, "total") >= twice), found[-1])

    def is_exact(self, resource: str) -> bool:
        """Return whether the peaks are exact at every size."""
        # Only that of resident memory may not be: from the kernel's coarser high-water mark, or
        # with child processes.
        if resource != RESIDENT:
            return True
        read = (recording.exact for point in self.points for recording in point.recordings)
        return all(read) and not any(point.children for point in self.points)


@dataclass(frozen=True, slots=True)
class Law:
    """The scaling law of the peak of one resource.

    Attributes:
        order: ``O(1)``, ``O(log n)``, ``O(n)``, or ``O(n^0.50)`` with the exponent.
        exponent: The exponent of the best fit; 0 means logarithmic, None means ``O(1)``.
        exponents: The interval that contains the exponent in about 95 % of cases; None for
            ``O(1)``.
        slope: Growth per unit of the axis, in the unit of the resource.
        slopes: The interval that contains the slope in at least 95 % of cases, if all peaks are
            equally uncertain.
        growth: The difference between the peaks at the largest and the smallest size.
        resolution: Growth up to this counts as constant: the requested resolution or the largest
            fall between sizes, whichever is larger.
        settles: For ``O(1)`` that grew at first: the size from which on the peak stays constant.
    """

    order: str
    exponent: float | None
    exponents: tuple[float, float] | None
    slope: float
    slopes: tuple[float, float]
    growth: int
    resolution: int
    settles: int | None = None
