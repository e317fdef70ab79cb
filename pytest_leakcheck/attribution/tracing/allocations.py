"""Where Python's allocators were asked for the memory that stays: `tracemalloc`, in a few iterations after the verdict."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_harness, read_path
from pytest_leakcheck.model.culprit import Site

# Frames that are remembered of each allocation: every frame costs at each one. Begun with one, which slowed JSON of 1.5 ms
# down by 9, and a loop of short texts by 5; what is added to an iteration may become so many times as much.
DEPTHS: Final = {64: 6.0, 12: 3.0, 1: 1.0}
_SLOWEST: Final = 8.0
# A quick iteration may be slowed as one of a millisecond.
_LEAST: Final = 0.001
# Larger ones come from malloc (Objects/obmalloc.c).
_SMALL: Final = 512
# A line is the culprit if it makes out so much of what stays.
_MOST: Final = 0.5

_Stack: TypeAlias = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """What one call path allocated that is still there, per iteration.

    Attributes:
        path: Outermost first, as far as frames were remembered; functions are not known.
        blocks: How many.
        size: Bytes.
    """

    path: tuple[Site, ...]
    blocks: float
    size: float


class Allocations:
    """Traces allocations from one iteration's end to another's. A trace that the program itself has on is left alone."""

    def __init__(self, plain_seconds: float, *, of_heap: bool = False) -> None:
        """
        Args:
            plain_seconds: What an iteration takes untraced.
            of_heap: Only what malloc hands out; smaller blocks come from the interpreter's own pools.
        """
        self._least = _SMALL + 1 if of_heap else 0
        self._plain = plain_seconds
        self._depth = 1
        self._chosen = self._theirs = tracemalloc.is_tracing()
        self._before: dict[_Stack, tuple[int, int]] = {}
        self._iterations = 0

    def open(self) -> None:
        if not self._theirs:
            tracemalloc.start(self._depth)

    def iteration_done(self, seconds: float) -> None:
        """After each iteration, what is garbage collected: the first warm up, and say how slow it has become."""
        if self._iterations == 0:
            depth = self._better_depth(seconds / max(self._plain, _LEAST))
            if depth != self._depth:
                tracemalloc.stop()
                tracemalloc.start(depth)
                self._depth = depth
                return
            self._before = _by_stack(self._least)
        self._iterations += 1

    def _better_depth(self, slower: float) -> int:
        """The number of frames to go on with: more than one where that can be afforded, and one again where not."""
        if self._theirs or (self._chosen and slower <= _SLOWEST):
            return self._depth
        if self._chosen:
            return next((depth for depth in DEPTHS if depth < self._depth), 1)
        self._chosen = True
        added = slower - 1
        return next(depth for depth, dearer in DEPTHS.items() if 1 + added * dearer <= _SLOWEST or depth == 1)

    @property
    def counted(self) -> int:
        """Iterations since the warm one."""
        return max(0, self._iterations - 1)

    def close(self) -> tuple[Kept, ...]:
        """Stop tracing. Returns what stays per call path, the most blocks first."""
        after = _by_stack(self._least) if self.counted else {}
        if not self._theirs:
            tracemalloc.stop()
        return _difference(self._before, after, self.counted)


def kept_now() -> tuple[Kept, ...]:
    """All that was allocated since the trace began and is there at this moment, as of one iteration."""
    return _difference({}, _by_stack(0), 1)


def _by_stack(least: int) -> dict[_Stack, tuple[int, int]]:
    found: dict[_Stack, tuple[int, int]] = {}
    for _domain, size, frames, *_total in tracemalloc.take_snapshot().traces._traces:  # type: ignore[attr-defined]
        if size < least:
            continue
        blocks, held = found.get(frames, (0, 0))
        found[frames] = blocks + 1, held + size
    return found


def _difference(
    before: Mapping[_Stack, tuple[int, int]], after: Mapping[_Stack, tuple[int, int]], iterations: int
) -> tuple[Kept, ...]:
    kept = []
    for stack, (blocks, size) in after.items():
        then = before.get(stack, (0, 0))
        # The most recent frame comes first in a trace.
        if blocks > then[0] and not is_harness(stack[0][0]):
            path = tuple(Site(file, line, "") for file, line in reversed(stack))
            kept.append(Kept(path, (blocks - then[0]) / iterations, (size - then[1]) / iterations))
    return tuple(sorted(kept, key=lambda one: -one.blocks))


@dataclass(frozen=True, slots=True)
class Place:
    """Where most of it is allocated, with what all call paths to that line come to per iteration; functions unknown."""

    path: tuple[Site, ...]
    blocks: float
    size: float


def culprit_of(kept: Sequence[Kept], slope: float, *, by_size: bool) -> Place | None:
    """The line that the growth comes from, if one makes out half of it.

    Args:
        kept: What stays, per iteration.
        slope: How fast the counter grows per iteration, in objects, blocks or bytes.
        by_size: The counter counts bytes.
    """
    places: dict[tuple[str, int], Place] = {}
    for one in kept:
        where = read_path(one.path)
        if where is not None:
            line = (where.site.file, where.site.line)
            known = places.get(line, Place(one.path, 0.0, 0.0))
            places[line] = Place(known.path, known.blocks + one.blocks, known.size + one.size)
    best = max(places.values(), key=lambda place: place.size if by_size else place.blocks, default=None)
    if best is None or (best.size if by_size else best.blocks) < _MOST * slope:
        return None
    return best
