"""Trace with `tracemalloc` which lines allocated the memory that is retained.

The traced iterations run after the verdict.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_harness, is_own, is_standard, read_path
from pytest_leakcheck.model.culprit import Site

# The possible numbers of stack frames recorded per allocation, each with a factor: how much more time tracing may add
# than with one frame, with which it starts. One alone made JSON processing of 1.5 ms 9 times slower.
DEPTHS: Final = {64: 6.0, 12: 3.0, 1: 1.0}
# If more than one frame is recorded, a traced iteration may take at most this many times as long as an untraced one.
_MAX_SLOWDOWN: Final = 8.0
# Seconds. The slowdown of a shorter iteration is computed as if it took this long untraced.
_MIN_PLAIN_SECONDS: Final = 0.001
# Bytes. Python takes larger blocks from malloc, not from its own pools (Objects/obmalloc.c).
_MAX_POOL_BLOCK_BYTES: Final = 512
# A line is named only if it accounts for at least this share of the growth.
_MIN_EXPLAINED_RATIO: Final = 0.5
# If a line allocates less than this share, and generated code calls it, the line may create only a part of the whole.
MIN_WHOLE_RATIO: Final = 0.9
# Lines allocate equally much if each allocates at least this share of what the first allocates.
_MIN_TIED_RATIO: Final = 0.95

# The file and the number of a line.
_Line: TypeAlias = tuple[str, int]
_Stack: TypeAlias = tuple[_Line, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a call path (outermost first, no function names), or all to one line, retains per iteration; in bytes."""

    path: tuple[Site, ...]
    blocks: float
    size: float


class Allocations:
    """Trace of the allocations that are retained over several iterations; it uses the program's own, if there is one."""

    def __init__(self, plain_seconds: float, *, of_heap: bool = False) -> None:
        """Prepare a trace, which `open` starts; with `of_heap`, of blocks from malloc only, not from Python's pools."""
        self._min_size = _MAX_POOL_BLOCK_BYTES + 1 if of_heap else 0
        self._plain = plain_seconds
        self._depth = 1
        self._chosen = self._theirs = tracemalloc.is_tracing()
        self._before: dict[_Stack, tuple[int, int]] = {}
        self._iterations = 0

    def open(self) -> None:
        if not self._theirs:
            tracemalloc.start(self._depth)

    def iteration_done(self, seconds: float) -> None:
        """Process the end of a traced iteration, after garbage has been collected; the first decide on the frames."""
        if self._iterations == 0:
            depth = self._choose_depth(seconds / max(self._plain, _MIN_PLAIN_SECONDS))
            if depth != self._depth:
                tracemalloc.stop()
                tracemalloc.start(depth)
                self._depth = depth
                return
            self._before = _sum_by_stack(self._min_size)
        self._iterations += 1

    def _choose_depth(self, slower: float) -> int:
        """Return the number of frames to record for this slowdown, a factor compared with a plain iteration."""
        if self._theirs or (self._chosen and slower <= _MAX_SLOWDOWN):
            return self._depth
        if self._chosen:
            return next((depth for depth in DEPTHS if depth < self._depth), 1)
        self._chosen = True
        added = slower - 1
        return next(depth for depth, slowdown in DEPTHS.items() if 1 + added * slowdown <= _MAX_SLOWDOWN or depth == 1)

    @property
    def counted(self) -> int:
        """Number of iterations since the warm-up."""
        return max(0, self._iterations - 1)

    def close(self, *, steady: bool = False) -> tuple[Kept, ...]:
        """Stop tracing and return what is retained per call path, the most blocks first.

        If the number of tracked objects is `steady`, new ones have replaced others, so that lines which make some, or
        what they refer to, in most iterations are left out.
        """
        after = _sum_by_stack(self._min_size) if self.counted else {}
        if steady and after:
            new = gc.get_objects()
            parts = {id(one): one for one in (*new, *gc.get_referents(*new))}
            traces = map(tracemalloc.get_object_traceback, parts.values())
            made = Counter((trace[-1].filename, trace[-1].lineno) for trace in traces if trace)
            replacing = {line for line, count in made.items() if count >= _MIN_EXPLAINED_RATIO * self.counted}
            after = {stack: held for stack, held in after.items() if stack[0] not in replacing}
        if not self._theirs:
            tracemalloc.stop()
        return _diff_stacks(self._before, after, self.counted)


@contextmanager
def python_traced() -> Iterator[Callable[[], int]]:
    """Have `tracemalloc` count what Python's objects hold, and yield a function that reads it, in bytes."""
    theirs = tracemalloc.is_tracing()
    if not theirs:
        tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        if not theirs:
            tracemalloc.stop()


def kept_now() -> tuple[Kept, ...]:
    """Return all live memory allocated since tracing began; the figures are totals, not per iteration."""
    return _diff_stacks({}, _sum_by_stack(0), 1)


def _sum_by_stack(min_size: int) -> dict[_Stack, tuple[int, int]]:
    """Sum the blocks and bytes of the live traced blocks of this size or more by call stack, innermost frame first."""
    found: dict[_Stack, tuple[int, int]] = {}
    for _domain, size, frames, *_total in tracemalloc.take_snapshot().traces._traces:  # type: ignore[attr-defined]
        if size < min_size:
            continue
        blocks, held = found.get(frames, (0, 0))
        found[frames] = blocks + 1, held + size
    return found


def _diff_stacks(
    before: Mapping[_Stack, tuple[int, int]], after: Mapping[_Stack, tuple[int, int]], iterations: int
) -> tuple[Kept, ...]:
    """Return the growth of each call stack per iteration, the most blocks first, without allocations by the harness."""
    kept = []
    for stack, (blocks, size) in after.items():
        then = before.get(stack, (0, 0))
        # A raw trace of `tracemalloc` lists the innermost frame first.
        if blocks > then[0] and not is_harness(stack[0][0]):
            path = tuple(Site(file, line, "") for file, line in reversed(stack))
            kept.append(Kept(path, (blocks - then[0]) / iterations, (size - then[1]) / iterations))
    return tuple(sorted(kept, key=lambda one: -one.blocks))


def culprit_of(kept: Sequence[Kept], slope: float, *, by_size: bool, most: float = inf) -> Kept | None:
    """Return the line that allocates at least half of the growth per iteration, in blocks or bytes; None if none does.

    A line that allocates more than `most` replaces what it allocated before the trace.
    If that is a part of an object, which generated code such as ``__init__`` of a dataclass fills, the line that calls
    the generated code creates the object. If several lines allocate equally much, and together more blocks than there
    are objects, their innermost caller does. Either must account for nearly all of the growth.
    """
    below: dict[_Line, Kept] = {}
    for one in kept:
        where = read_path(one.path)
        if where is None:
            continue
        outside = len(one.path) - len(where.path)
        lines = {(site.file, site.line): at for at, site in enumerate(where.path) if is_own(site.file)}
        for line, at in lines.items():
            _add(below, line, replace(one, path=one.path[: outside + at + 1]))

    def growth(one: Kept) -> float:
        return one.size if by_size else one.blocks

    places = sorted(_sum_by_line(kept).values(), key=growth, reverse=True)
    best = next((place for place in places if growth(place) <= most), None)
    if best is None or growth(best) < _MIN_EXPLAINED_RATIO * slope:
        return None
    if growth(best) >= MIN_WHOLE_RATIO * slope:
        return best
    tied = [place for place in places if most >= growth(place) >= _MIN_TIED_RATIO * growth(best)]
    callers = _find_caller_of_generated_code(best.path)
    if len(tied) > 1 and MIN_WHOLE_RATIO * sum(map(growth, tied)) > slope:
        callers = {(site.file, site.line) for place in tied for site in place.path}
    whole = [below[line] for line in callers if line in below and growth(below[line]) >= MIN_WHOLE_RATIO * slope]
    # The innermost of them: it accounts for the least besides.
    return min(whole, key=lambda place: (growth(place), -len(place.path)), default=best)


def largest_of(kept: Sequence[Kept], *, by_size: bool) -> Kept | None:
    """Return the line that allocates the most bytes or blocks; None if no call path leads to a line of the test."""
    places = _sum_by_line(kept).values()
    return max(places, key=lambda place: place.size if by_size else place.blocks, default=None)


def _sum_by_line(kept: Sequence[Kept]) -> dict[_Line, Kept]:
    made: dict[_Line, Kept] = {}
    for one in kept:
        where = read_path(one.path)
        if where is not None:
            _add(made, (where.site.file, where.site.line), one)
    return made


def _find_caller_of_generated_code(path: Sequence[Site]) -> set[_Line]:
    """Return the innermost line of the program that calls generated code, if there is one."""
    generated = False
    for site in reversed(path):
        generated |= site.file.startswith("<") and not is_standard(site.file)
        if generated and is_own(site.file):
            return {(site.file, site.line)}
    return set()


def _add(places: dict[_Line, Kept], line: _Line, one: Kept) -> None:
    known = places.get(line, Kept(one.path, 0.0, 0.0))
    places[line] = Kept(known.path, known.blocks + one.blocks, known.size + one.size)
