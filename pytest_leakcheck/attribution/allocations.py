"""Where Python's allocators were asked for the memory that stays: `tracemalloc`, in a few iterations after the verdict."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pytest_leakcheck.attribution.path import is_harness
from pytest_leakcheck.attribution.site import Site

# Frames that are remembered of each allocation, the first number that is quick enough: every frame costs at each one.
DEPTHS: Final = (24, 6, 1)
_SLOWEST: Final = 8.0
# A line that allocates on and on is the culprit's if it makes out so much of what stays.
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

    def __init__(self, plain_seconds: float) -> None:
        """Args: plain_seconds: what an iteration takes untraced."""
        self._plain = plain_seconds
        self._depths = iter(DEPTHS)
        self._before: dict[_Stack, tuple[int, int]] = {}
        self._iterations = 0
        self._theirs = tracemalloc.is_tracing()

    def open(self) -> None:
        if not self._theirs:
            tracemalloc.start(next(self._depths))

    def iteration_done(self, seconds: float) -> None:
        """After each iteration, what is garbage collected: the first warms up, and says how slow it has become."""
        if self._iterations == 0:
            if seconds > _SLOWEST * self._plain and not self._theirs:
                depth = next(self._depths, None)
                if depth is not None:
                    tracemalloc.stop()
                    tracemalloc.start(depth)
                    return
            self._before = _by_stack()
        self._iterations += 1

    @property
    def counted(self) -> int:
        """Iterations since the warm one."""
        return max(0, self._iterations - 1)

    def close(self) -> tuple[Kept, ...]:
        """Stop tracing. Returns what stays per call path, the most blocks first."""
        after = _by_stack() if self.counted else {}
        if not self._theirs:
            tracemalloc.stop()
        return _difference(self._before, after, self.counted)


def _by_stack() -> dict[_Stack, tuple[int, int]]:
    found: dict[_Stack, tuple[int, int]] = {}
    for _domain, size, frames, *_total in tracemalloc.take_snapshot().traces._traces:  # type: ignore[attr-defined]
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


def culprit_of(kept: Sequence[Kept], slope: float, *, by_size: bool) -> tuple[Kept, ...]:
    """The call paths that the growth comes from.

    Args:
        kept: What stays, per iteration.
        slope: How fast the counter grows per iteration, in blocks or bytes.
        by_size: The counter counts bytes.

    Returns:
        Those that together make out half of the growth at least, the largest first; nothing if all of them make out less.
    """
    ranked = sorted(kept, key=lambda one: -(one.size if by_size else one.blocks))
    found, reached = [], 0.0
    for one in ranked:
        found.append(one)
        reached += one.size if by_size else one.blocks
        if reached >= _MOST * slope:
            return tuple(found)
    return ()


def total_of(kept: Iterable[Kept]) -> tuple[float, float]:
    """Blocks and bytes of all of it."""
    blocks = size = 0.0
    for one in kept:
        blocks, size = blocks + one.blocks, size + one.size
    return blocks, size
