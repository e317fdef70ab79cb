"""Trace with `tracemalloc` which lines allocated the memory that is retained.

The traced iterations run after the verdict.
"""

from __future__ import annotations

import gc
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import inf
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.call_paths import (
    digest_of_file,
    is_harness,
    is_own,
    is_standard,
    line_of,
    read_path,
    text_of,
    with_functions,
)
from pytest_leakcheck.attribution.handles import SAMPLE_SIZE
from pytest_leakcheck.model.culprit import Culprit, Owner, Share, Site, Step
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.processes import others_run
from pytest_leakcheck.probes.runtime_counters import MAX_POOL_BYTES

# The possible numbers of stack frames recorded per allocation, each with a factor: how much more
# time tracing may add than with one frame, with which it starts. One alone made JSON processing of
# 1.5 ms 9 times slower.
DEPTHS: Final = {64: 6.0, 12: 3.0, 1: 1.0}
# If more than one frame is recorded, a traced iteration may take at most this many times as long as
# an untraced one.
_MAX_SLOWDOWN: Final = 8.0
# Seconds. The slowdown of a shorter iteration is computed as if it took this long untraced.
_MIN_PLAIN_SECONDS: Final = 0.001
# Other threads rest if in this time they have worked for less than that: the clocks are read one
# after the other.
_QUIET_SECONDS: Final = 0.002
_QUIET_CPU_SECONDS: Final = 20e-6
_MAX_QUIET_SECONDS: Final = 1.0
# A line or an owner is named only if it accounts for at least this share of the growth or the peak.
_MIN_EXPLAINED_RATIO: Final = 0.5
# If a line allocates less than this share, and generated code calls it, the line may create only a
# part of the whole.
MIN_WHOLE_RATIO: Final = 0.9
# Lines allocate equally much if each allocates at least this share of what the first allocates.
_MIN_TIED_RATIO: Final = 0.95
# The file and the number of a line.
_Line: TypeAlias = tuple[str, int]
_Stack: TypeAlias = tuple[_Line, ...]


@dataclass(frozen=True, slots=True)
class Retention:
    """What a call path, or all paths to one line, retains per iteration.

    The path is outermost first and has no function names; `size` is in bytes. If objects are
    counted in place of blocks, `kind` is the ``id()`` of the type that all of them have; else 0.
    """

    path: tuple[Site, ...]
    blocks: float
    size: float
    kind: int = 0


@dataclass(frozen=True, slots=True)
class _Sum:
    """The number of blocks or objects of one call stack, their bytes, and `Retention.kind`."""

    count: int = 0
    size: int = 0
    kind: int = 0


class Allocations:
    """Trace of allocations that iterations retain; it uses the program's own, if there is one."""

    def __init__(
        self, plain_seconds: float, *, of_heap: bool = False, of_objects: bool = False
    ) -> None:
        """Prepare a trace for `open`; `of_heap`: of blocks from malloc only, not Python's pools."""
        # The tracked objects after each iteration, if wanted.
        self._objects: list[dict[_Stack, _Sum]] | None = [] if of_objects else None
        # The call stacks of all of these, each once: they are traced too, and have up to 65 blocks.
        self._stacks: dict[_Stack, _Stack] = {}
        self._min_size = MAX_POOL_BYTES + 1 if of_heap else 0
        self._plain = plain_seconds
        self._depth = 1
        self._chosen = self._theirs = tracemalloc.is_tracing()
        self._before: dict[_Stack, _Sum] = {}
        self._iterations = 0

    def open(self) -> None:
        if not self._theirs:
            tracemalloc.start(self._depth)

    def iteration_done(self, seconds: float) -> None:
        """Process the end of a traced iteration, after garbage has been collected.

        The first iterations decide on the number of frames.
        """
        if self._iterations == 0:
            depth = self._choose_depth(seconds / max(self._plain, _MIN_PLAIN_SECONDS))
            if depth != self._depth:
                _stop()
                tracemalloc.start(depth)
                self._depth = depth
                return
            self._before = _sum_by_stack(self._min_size)
        if self._objects is not None:
            self._objects.append(_sum_objects_by_stack(self._stacks))
        self._iterations += 1

    def _choose_depth(self, slower: float) -> int:
        """Return how many frames to record at a slowdown, a factor over a plain iteration."""
        if self._theirs or (self._chosen and slower <= _MAX_SLOWDOWN):
            return self._depth
        if self._chosen:
            return next((depth for depth in DEPTHS if depth < self._depth), 1)
        self._chosen = True
        added = slower - 1
        return next(
            depth
            for depth, slowdown in DEPTHS.items()
            if 1 + added * slowdown <= _MAX_SLOWDOWN or depth == 1
        )

    @property
    def counted(self) -> int:
        """Number of iterations since the warm-up."""
        return max(0, self._iterations - 1)

    def close(self) -> None:
        if not self._theirs:
            _stop()

    def retained_blocks(self, *, steady: bool = False) -> tuple[Retention, ...]:
        """Return what is retained per call path, the most blocks first.

        If the number of tracked objects is `steady`, new ones have replaced others, so that lines
        which make some, or what they refer to, in most iterations are left out.
        """
        after = _sum_by_stack(self._min_size) if self.counted else {}
        if steady and after:
            new = gc.get_objects()
            parts = {id(one): one for one in (*new, *gc.get_referents(*new))}
            traces = map(tracemalloc.get_object_traceback, parts.values())
            made = Counter((trace[-1].filename, trace[-1].lineno) for trace in traces if trace)
            replacing = {
                line for line, count in made.items() if count >= _MIN_EXPLAINED_RATIO * self.counted
            }
            after = {stack: held for stack, held in after.items() if stack[0] not in replacing}
        return _diff_stacks(self._before, after, self.counted)

    def retained_objects(self, rate: float) -> tuple[Retention, ...]:
        """Return by call path what has become more, in this share of the iterations.

        What others replace also falls. Only objects whose allocation is known: that of one in a
        free list of the interpreter is not, nor up to Python 3.11 that of an instance of an
        ordinary class.
        """
        sums = self._objects or [{}]
        rising = {stack: now for stack, now in sums[-1].items() if self._has_risen(stack, rate)}
        return _diff_stacks(sums[0], rising, self.counted) if self.counted else ()

    def _has_risen(self, stack: _Stack, rate: float) -> bool:
        """Return whether a stack's objects never fell, and rose as often as expected less one."""
        counts = [held.get(stack, _Sum()).count for held in self._objects or ()]
        rises = [after - before for before, after in pairwise(counts)]
        return (
            min(rises, default=0) >= 0 and sum(rise > 0 for rise in rises) > rate * len(rises) - 1
        )


def _stop() -> None:
    """Stop `tracemalloc` when no other thread works, or after a while."""
    # Before CPython 3.12.9 and 3.13.2 (gh-128679), a thread that allocates without the GIL at this
    # moment crashes the process. Each thread of C code that calls Python does, such as those of a
    # tf.data pipeline.
    deadline = clock.monotonic() + _MAX_QUIET_SECONDS
    while clock.monotonic() < deadline:
        before = clock.process_time() - clock.thread_time()
        clock.sleep(_QUIET_SECONDS)
        # On a busy machine, a thread may be about to work and get no processor. Reading that lets
        # others work, too.
        is_quiet = not others_run()
        if is_quiet and clock.process_time() - clock.thread_time() - before < _QUIET_CPU_SECONDS:
            break
    tracemalloc.stop()


@contextmanager
def python_traced() -> Iterator[Callable[[], int]]:
    """Let `tracemalloc` count what Python's objects hold; yield a function that reads the bytes."""
    theirs = tracemalloc.is_tracing()
    if not theirs:
        tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        if not theirs:
            _stop()


def _sum_by_stack(min_size: int) -> dict[_Stack, _Sum]:
    """Sum the live traced blocks of this size or more by call stack, innermost frame first."""
    found: dict[_Stack, _Sum] = {}
    for _domain, size, frames, *_total in tracemalloc.take_snapshot().traces._traces:  # type: ignore[attr-defined]
        if size < min_size:
            continue
        known = found.get(frames, _Sum())
        found[frames] = _Sum(known.count + 1, known.size + size)
    return found


def _sum_objects_by_stack(stacks: dict[_Stack, _Stack]) -> dict[_Stack, _Sum]:
    found: dict[_Stack, _Sum] = {}
    for obj in gc.get_objects():
        trace = tracemalloc.get_object_traceback(obj)
        if trace is not None:
            # To take each frame from the traceback creates two more objects, which are traced with
            # as many frames.
            frames = trace._frames[::-1]  # type: ignore[attr-defined]
            stack = stacks.setdefault(frames, frames)
            kind = id(type(obj))
            known = found.get(stack) or _Sum(kind=kind)
            kind = kind if kind == known.kind else 0
            found[stack] = _Sum(known.count + 1, known.size + sys.getsizeof(obj), kind)
    return found


def _diff_stacks(
    before: Mapping[_Stack, _Sum], after: Mapping[_Stack, _Sum], iterations: int
) -> tuple[Retention, ...]:
    """Return each stack's growth per iteration, most blocks first, without that of the harness."""
    kept = []
    for stack, now in after.items():
        then = before.get(stack, _Sum())
        # A raw trace of `tracemalloc` lists the innermost frame first.
        if (
            now.count > then.count
            and not is_harness(stack[0][0])
            and stack[0][0] != tracemalloc.__file__
        ):
            path = tuple(Site(file, line, "") for file, line in reversed(stack))
            more, size = (now.count - then.count) / iterations, (now.size - then.size) / iterations
            kept.append(Retention(path, more, size, now.kind))
    return tuple(sorted(kept, key=lambda one: -one.blocks))


def culprit_of(
    kept: Sequence[Retention], slope: float, *, by_size: bool, most: float = inf
) -> Retention | None:
    """Return the line that allocates at least half of the growth per iteration; None if none does.

    The growth is in blocks or bytes.
    """
    # If that is a part of an object, which generated code such as ``__init__`` of a dataclass
    # fills, the line that calls the generated code creates the object. If several lines allocate
    # equally much, and together more blocks than there are objects, their innermost caller does.
    # Either must account for nearly all of the growth. A line that allocates more than `most` is
    # left out: it replaces what it allocated before the trace.
    below: dict[_Line, Retention] = {}
    for retention in kept:
        where = read_path(retention.path)
        if where is None:
            continue
        outside = len(retention.path) - len(where.path)
        lines = {
            (site.file, site.line): at for at, site in enumerate(where.path) if is_own(site.file)
        }
        for line, at in lines.items():
            _add(below, line, replace(retention, path=retention.path[: outside + at + 1]))

    def growth(place: Retention) -> float:
        return place.size if by_size else place.blocks

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
    whole = [
        below[line]
        for line in callers
        if line in below and growth(below[line]) >= MIN_WHOLE_RATIO * slope
    ]
    # The innermost of them: it accounts for the least besides.
    return min(whole, key=lambda place: (growth(place), -len(place.path)), default=best)


def _sum_by_line(kept: Sequence[Retention]) -> dict[_Line, Retention]:
    made: dict[_Line, Retention] = {}
    for retention in kept:
        if line := line_of(retention.path):
            _add(made, line, retention)
    return made


def _find_caller_of_generated_code(path: Sequence[Site]) -> set[_Line]:
    """Return the innermost line of the program that calls generated code, if there is one."""
    generated = False
    for site in reversed(path):
        generated |= site.file.startswith("<") and not is_standard(site.file)
        if generated and is_own(site.file):
            return {(site.file, site.line)}
    return set()


def _add(places: dict[_Line, Retention], line: _Line, retention: Retention) -> None:
    known = places.get(line, Retention(retention.path, 0.0, 0.0, retention.kind))
    kind = retention.kind if retention.kind == known.kind else 0
    places[line] = Retention(
        known.path, known.blocks + retention.blocks, known.size + retention.size, kind
    )


# A line that accounts for less of a peak is reported with its share, if that is at least this one.
_MIN_SHARE: Final = 0.01
# Stack frames that `tracemalloc` records per allocation.
_TRACED_FRAMES: Final = 24
# Bytes of a call stack that `tracemalloc` keeps to the end but does not count (130,000 in an upload
# took 40 MiB), and those that it counts at most, in its tables, for each call stack and each live
# block.
_STACK_BYTES: Final = 32 + 12 * _TRACED_FRAMES
_ENTRY_BYTES: Final = 64
# Memory that exceeds the highest look by this factor is looked at again at once, up to a maximum
# number of looks.
_MIN_RISE: Final = 1.1
_MAX_LOOKS: Final = 10
_NOT_ALLOCATED_BY_PYTHON: Final = (
    "not allocated by Python: allocations in C are not traced to a line"
)
_NO_LINE: Final = (
    "no line of Python allocated half of it, and allocations in C are not traced to a line"
)
_IN_CHILDREN: Final = "most of it is in child processes, which are not searched"
_NO_OWNER: Final = "no variable of a running function, and no attribute of one, holds half of it"


def tracing_memory(blocks: int) -> int:
    """Return about as many bytes as `tracemalloc` takes, rather too few.

    `blocks`: how many existed when it started.
    """
    counted = tracemalloc.get_tracemalloc_memory()
    of_blocks = _ENTRY_BYTES * max(0, sys.getallocatedblocks() - blocks)
    return counted + max(0, counted - of_blocks) // _ENTRY_BYTES * _STACK_BYTES


class Composition:
    """The line and owner of at least half of one memory peak, and the share of the largest line.

    Create it before the test runs, call `look` when `wants` is true, and `culprit` at the end.
    """

    def __init__(self, resource: str, wanted: int) -> None:
        """Start `tracemalloc`.

        Look once memory is `wanted` bytes above its level at the start of the test.
        """
        self._resource = resource
        self._wanted = wanted
        self._path: tuple[Site, ...] = ()
        # Bytes that the last line of the path allocated, and the height of memory at that look.
        self._size = self._total = 0
        self._owner: Owner | None = None
        self._looks = self._height = 0
        self._seen: CodeType | None = None
        tracemalloc.start(_TRACED_FRAMES)

    def wants(self, frame: FrameType, risen: int, *, rested: bool = True) -> bool:
        """Return whether to look now, with memory `risen` bytes above the start level."""
        # If a look finds no line or no owner, another one is due when memory has risen further, and
        # after a rest (`rested`) in another function, because data may have been stored in a
        # variable since.
        if (
            risen < self._wanted
            or self._looks >= _MAX_LOOKS
            or (self._is_cause and self._owner is not None)
        ):
            return False
        if risen >= _MIN_RISE * self._height:
            return True
        return rested and frame.f_code is not self._seen

    def look(self, frame: FrameType, risen: int, held: int) -> None:
        """Search for the line and the owner of the memory.

        `held` leaves out freed memory that `malloc` could return.
        """
        self._looks += 1
        self._seen = frame.f_code
        self._height = held
        # If less is held than the peak that was measured, freed memory was a part of that peak.
        total = held if held >= self._wanted else risen
        if not self._is_cause:
            places = _sum_by_line(_diff_stacks({}, _sum_by_stack(0), 1)).values()
            place = max(places, key=lambda one: one.size, default=None)
            if place is not None and place.size * self._total >= self._size * total:
                self._path, self._size, self._total = place.path, round(place.size), total
        if self._owner is None:
            self._owner = _find_owner(frame, total)

    @property
    def _is_cause(self) -> bool:
        return bool(self._path) and self._size >= _MIN_EXPLAINED_RATIO * self._total

    def culprit(self) -> Culprit:
        """Stop `tracemalloc` and return the culprit.

        Call this only at the end: reading source files retains memory.
        """
        _stop()
        found = read_path(with_functions(self._path)) if self._path else None
        source = text_of(found.site) if found else ""
        where = found if self._is_cause else None
        has_share = found is not None and self._size >= _MIN_SHARE * self._total
        share = Share(found, self._size, self._total, source) if found and has_share else None
        missing = {
            "site": "" if where else _NO_LINE if share else _NOT_ALLOCATED_BY_PYTHON,
            "owner": _NO_OWNER if self._owner is None else "",
        }
        if not self._looks:
            missing = dict.fromkeys(missing, "it did not rise as high again")
        return Culprit(
            self._resource,
            where,
            owner=self._owner,
            unresolved={part: why for part, why in missing.items() if why},
            source=source if where else "",
            digest=digest_of_file(found.site) if found else "",
            share=share,
        )


def add_children(culprit: Culprit, size: int) -> Culprit:
    """Return the culprit of a peak mostly in children (`size` bytes): no line here is the cause."""
    share = replace(culprit.share, total=culprit.share.total + size) if culprit.share else None
    return Culprit(
        culprit.resource, unresolved=dict.fromkeys(("site", "owner"), _IN_CHILDREN), share=share
    )


def highest_at(resource: str, path: tuple[Site, ...]) -> Culprit | None:
    """Return the call of a counter's peak, as a culprit; None if it is not part of the test."""
    where = read_path(path)
    return (
        None
        if where is None
        else Culprit(
            resource,
            where,
            source=text_of(where.site),
            digest=digest_of_file(where.site),
            at_peak=True,
        )
    )


def _find_owner(frame: FrameType, wanted: int) -> Owner | None:
    """Return a variable, of this thread or one that waits for it, with at least half the bytes."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    for innermost in (frame, *frames.values()):
        at: FrameType | None = innermost
        # The innermost frame of the test runner, and all frames outside of it, are not part of the
        # test.
        while at is not None and not is_harness(at.f_code.co_filename):
            for names, held in _iter_held(at) if is_own(at.f_code.co_filename) else ():
                if _estimate_size(held) >= _MIN_EXPLAINED_RATIO * wanted:
                    return _make_owner(f"{at.f_code.co_qualname}()", names, held)
            at = at.f_back
    return None


def _iter_held(frame: FrameType) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield each variable's attributes, which are more specific, then its object, with names."""
    # A generator expression keeps its iterator in `.0`; a variable of the enclosing function
    # reaches the same.
    variables = {
        name: value
        for name, value in frame.f_locals.items()
        if not (name[0] == "." or inspection.is_shared(value))
    }
    for name, value in variables.items():
        for attribute, held in list((inspection.instance_dict(value) or {}).items()):
            yield (name, f".{attribute}"), held
        yield (name,), value


def _make_owner(function: str, names: tuple[str, ...], held: Any) -> Owner:
    """Describe a peak's owner; the names are a variable and perhaps an attribute with a dot."""
    entries = list(islice(_iter_entries(held), SAMPLE_SIZE))
    holds = (
        inspection.describe_many(entries, inspection.length(held))
        if entries
        else inspection.describe(held)
    )
    variable, *attributes = names
    steps = [
        Step(f"frame of {function}", f"local {variable!r}", suspect=not (attributes or entries))
    ]
    steps += [Step("an instance", attribute, suspect=not entries) for attribute in attributes]
    steps += (
        [Step(inspection.describe(held), f"[{inspection.length(held) - 1}]", suspect=True)]
        if entries
        else []
    )
    name = f"{function} local {variable!r}{''.join(attributes)}"
    return Owner(name, f"frame of {function}", tuple(steps), holds, 0.0, "frame")


def _estimate_size(obj: object) -> float:
    """Estimate the bytes that an object holds, for a large container from some of its entries."""
    count = inspection.length(obj)
    some = list(islice(_iter_entries(obj), 0, None, max(1, count // SAMPLE_SIZE)))[:SAMPLE_SIZE]
    return (
        count * sum(map(inspection.own_size, some)) / len(some)
        if some
        else inspection.own_size(obj)
    )


def _iter_entries(obj: Any) -> Iterator[object]:
    """Iterate over the entries of a container, or the values of a dict; other objects have none."""
    kind: Any = inspection.container_kind(obj)
    if kind is None:
        return iter(())
    entries: Iterator[object] = iter(dict.values(obj)) if kind is dict else kind.__iter__(obj)
    return entries
