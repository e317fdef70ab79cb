"""What a test came to at each size of an axis: a `Point` per size, measured in processes of its own, with a JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import RESIDENT, Kind

Engine: TypeAlias = Literal["", "thread", "process", "gloo"]
Figure: TypeAlias = Literal["total", "per_rank", "at_least"]

# Of a gauge that the test has never called, nothing else is known.
NOT_READ: Final = "it was not read"
# In the environment of a recording whose peak of memory was read at that moment, and is not the kernel's coarser mark.
EXACT: Final = "memory peak"
# What a peak is made of is looked at a little below it, since it is never quite as high again.
_NEAR: Final = 0.9
ENGINES: Final = ("thread", "process", "gloo")


@dataclass(frozen=True, slots=True)
class Sizing:
    """One size to be run.

    Attributes:
        axis: The argument of the test that takes the size.
        size: Its value.
        resources: Whose peaks are wanted.
        engine: What starts the world; empty where the test itself does.
        naming: Bytes above the start at which to look what memory is made of; 0 takes the peak alone.
    """

    axis: str
    size: int
    resources: tuple[str, ...]
    engine: Engine = ""
    naming: int = 0

    @property
    def of_processes(self) -> bool:
        """Whether each rank is a process of its own."""
        return self.engine in ("process", "gloo")

    @property
    def ranks(self) -> int:
        """How many processes there are."""
        return self.size if self.of_processes else 1


@dataclass(frozen=True, slots=True)
class Point:
    """The peaks at one size.

    Attributes:
        size: Of the axis.
        recordings: One per rank; one in all where the test starts its own world or none.
        children: Peak memory of child processes, in bytes, as it was seen from outside.
        seconds: Wall time, with start-up.
    """

    size: int
    recordings: tuple[Recording, ...]
    children: int = 0
    seconds: float = 0.0

    def peak(self, resource: str, figure: Figure) -> int:
        """How far it stood above the start at its highest: summed over the ranks, or of the highest one.

        The ranks need not have been highest at the same moment, so a total is the most that it can have been.
        """
        peaks = [peak for recording in self.recordings for peak in peaks_of(recording, resource)]
        own = max(peaks) if figure == "per_rank" else sum(peaks)
        return own + (self.children if resource == RESIDENT and figure != "per_rank" else 0)

    @property
    def near_peak(self) -> int:
        """Bytes of memory at which to look what the highest rank's own peak is made of."""
        return round(_NEAR * self.peak(RESIDENT, "per_rank"))

    def kind(self, resource: str) -> Kind:
        """How its figures came about, in each rank alike."""
        return self.recordings[0].kind(resource)

    def why_not(self, resource: str) -> str:
        """Why there is no peak of this resource; empty where there is one."""
        for recording in self.recordings:
            if not peaks_of(recording, resource):
                return recording.unavailable.get(resource, NOT_READ)
        return ""


def peaks_of(recording: Recording, resource: str) -> tuple[int, ...]:
    """Of one process; a gauge that several of its threads have has several."""
    return tuple(peak for name, peak in recording.peaks.items() if name.partition("@")[0] == resource)


@dataclass(frozen=True, slots=True)
class Scaled:
    """All points of one test.

    Attributes:
        axis: What varies.
        engine: What started the worlds.
        points: By size, ascending.
    """

    axis: str
    engine: Engine
    points: tuple[Point, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(point.size for point in self.points)

    def peaks(self, resource: str, figure: Figure) -> tuple[int, ...]:
        return tuple(point.peak(resource, figure) for point in self.points)

    def telling(self, quick: float) -> Point:
        """Where to look what memory is made of: the first point at which most of it has come with the size.

        That is one whose peak is twice the least; a run that is looked into takes some four times as long, so no larger one
        is wanted. Where there is none, it is the largest.

        Args:
            quick: Of the points that took no more seconds than this; if none did, it is the smallest.
        """
        found = [point for point in self.points if point.seconds <= quick] or [self.points[0]]
        twice = 2 * self.points[0].peak(RESIDENT, "total")
        return next((point for point in found if point.peak(RESIDENT, "total") >= twice), found[-1])

    def is_exact(self, resource: str) -> bool:
        """Whether the peaks are known to a page, at every size."""
        if resource != RESIDENT:
            return True
        read = (EXACT in recording.environment for point in self.points for recording in point.recordings)
        return all(read) and not any(point.children for point in self.points)


@dataclass(frozen=True, slots=True)
class Law:
    """How the peak of one resource follows the size.

    Attributes:
        order: ``O(1)``, ``O(log n)``, ``O(n)``, or ``O(n^0.50)`` with the exponent.
        exponent: Of the best fit; 0 is the logarithm, None is ``O(1)``.
        exponents: The interval that holds the exponent in about 95 % of cases; None for ``O(1)``.
        slope: Growth per unit of the axis, in the unit of the resource.
        slopes: The interval that holds the slope in at least 95 % of cases, where all peaks are equally uncertain.
        growth: The peak at the largest size less that at the smallest.
        resolution: Growth up to this is called constant: what was asked for, or the largest fall if that is more.
        settles: For ``O(1)`` that grew at first: the size from which on it stands still.
    """

    order: str
    exponent: float | None
    exponents: tuple[float, float] | None
    slope: float
    slopes: tuple[float, float]
    growth: int
    resolution: int
    settles: int | None = None
