"""The ways to find out where something is made: each takes a few iterations, and yields before each of them."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import ceil
from types import CodeType
from typing import Final

from pytest_leakcheck.attribution.call_paths import is_own, read_path
from pytest_leakcheck.attribution.handle_kinds import Things
from pytest_leakcheck.attribution.tracing.allocations import Allocations, culprit_of
from pytest_leakcheck.attribution.tracing.call_tree import CallTree
from pytest_leakcheck.attribution.tracing.created_handles import Arrival, Arrivals
from pytest_leakcheck.attribution.tracing.line_tracer import Lines
from pytest_leakcheck.attribution.tracing.source_code import call_at, with_functions
from pytest_leakcheck.attribution.tracing.trace_events import Listener
from pytest_leakcheck.attribution.tracing.tracer import Tracer
from pytest_leakcheck.model.culprit import Site, Where
from pytest_leakcheck.probes.native_heap import drained_thread_cache

# All iterations that are run to name a culprit, and how many of each kind where it grows in each of them.
MOST: Final = 25
_FEW: Final = 6
OF_EXACT: Final = 3
# malloc takes small blocks 8 at a time from its free lists, 7 of them for its cache, where they count as in use already.
_OF_CACHE: Final = 8
_CACHED: Final = 1040
# So many things should be seen to come; those that come rarely take more iterations.
_WANTED: Final = 3
# An iteration must leave the time for what is searched after it.
_WITH_SEARCH: Final = 1.25
# What is found must make out so much of the growth.
_PART: Final = 0.5
_UNSEEN: Final = "none was made in a call of this process that could be seen"
_TOO_MUCH: Final = "it makes so many calls that they cannot all be followed"


@dataclass(frozen=True, slots=True)
class Made:
    """Where it was seen to be made. The source is not read for it: to do so would leave something behind as well.

    Attributes:
        path: The whole call path, the harness's part too; empty where it is not resolved.
        why: Why not.
        code: The function of the last line, where that is known.
        lasti: The instruction in it that made it; -1 where it is not known.
        in_line: The last line is known; if not, it is one of that function.
        size: Bytes per iteration that Python allocated there, where that is known.
        identities: Of the things that were seen to be made and are still there.
        native: The functions of C that allocated it, innermost first, where they are known.
    """

    path: tuple[Site, ...] = ()
    why: str = ""
    code: CodeType | None = None
    lasti: int = -1
    in_line: bool = True
    size: float | None = None
    identities: frozenset[Hashable] = frozenset()
    native: tuple[str, ...] = ()

    @property
    def line(self) -> tuple[str, int]:
        """File and line that can be changed."""
        where = read_path(self.path)
        return (where.site.file, where.site.line) if where else ("", 0)

    def resolve(self) -> Where | None:
        """Read the source: the functions where only lines are known, and the call as it is written."""
        if not self.path:
            return None
        *outer, last = with_functions(self.path)
        call = call_at(self.code, self.lasti) if self.code and self.lasti >= 0 else ""
        return read_path((*outer, replace(last, call=call or last.call)))


class Schedule:
    """The iterations that may be spent.

    Attributes:
        plain_seconds: What an iteration takes.
        used: How many were run.
    """

    def __init__(self, plain_seconds: float, deadline: float, collect: Callable[[], object]) -> None:
        """
        Args:
            plain_seconds: What an iteration takes.
            deadline: When no further iteration may begin, by ``time.perf_counter``.
            collect: Ends an iteration, as the harness ends it.
        """
        self.plain_seconds = plain_seconds
        self.used = 0
        self.collect = collect
        self._deadline = deadline

    def iterations(self, rate: float, few: int = _FEW) -> Iterator[int]:
        """Numbers from 0, the first for warming up: as many as show a few of what comes at this rate."""
        wanted = 1 + (few if rate >= _PART else max(few, ceil(_WANTED / rate)))
        last = min(self.used + wanted, MOST)
        first, took = self.used, self.plain_seconds
        began = time.perf_counter()
        # A watched iteration may take ten times as long as a plain one.
        while self.used < last and began + _WITH_SEARCH * took < self._deadline:
            self.used += 1
            yield self.used - first - 1
            now = time.perf_counter()
            began, took = now, now - began


def follow(things: Things, slope: float, schedule: Schedule, *, unclosed: bool) -> Generator[None, None, Made]:
    """What has an identity: the call that made each one that is still there when its iteration has ended.

    Args:
        things: The kind.
        slope: How many are retained per iteration.
        schedule: What may be spent.
        unclosed: They are given back by the collector alone; so those count that it frees.
    """
    arrivals = Arrivals(things.count, things.list_now)
    # Of what is sized, the sum is what it is about, and how many iterations show it is another matter.
    often = min(slope, 1.0) if things.sized else slope
    freed = Freed(arrivals, things) if unclosed else None
    found: list[Arrival] = []
    counted = 0
    try:
        with _tracing(arrivals, schedule) as tracer:
            for _ in schedule.iterations(often):
                tracer.arm()
                yield
                tracer.disarm()
                counted += 1
                schedule.collect()
                found += freed.take() if freed else ()
    finally:
        if freed is not None:
            freed.close()
    alive = arrivals.survivors()
    place = _most_common(found if unclosed else alive.values(), things)
    if place is None or place[1] < max(1.0, _PART * slope * counted):
        scattered = "they come from several places, none of which makes out half of them"
        return Made(why=tracer.interrupted or (scattered if place else _UNSEEN))
    arrival = place[0]
    if tracer.coarse and not _has_own(arrival.path):
        return Made(why=_TOO_MUCH)
    made = Made(arrival.path, "", arrival.code, arrival.lasti, arrival.exact)
    # What else has come meanwhile is another's.
    same = (key for key, one in alive.items() if Made(one.path).line == made.line)
    return replace(made, identities=frozenset(same))


def trace_allocations(slope: float, rate: float, schedule: Schedule, *, by_size: bool) -> Generator[None, None, Made]:
    """What Python allocates, as `tracemalloc` sees it.

    Args:
        slope: How many objects, blocks or bytes are retained per iteration.
        rate: In which part of the iterations.
        schedule: What may be spent.
        by_size: Bytes.
    """
    allocations = Allocations(schedule.plain_seconds, of_heap=by_size)
    allocations.open()
    try:
        for _ in schedule.iterations(rate):
            began = time.perf_counter()
            yield
            seconds = time.perf_counter() - began
            schedule.collect()
            allocations.iteration_done(seconds)
    finally:
        kept = allocations.close()
    found = culprit_of(kept, slope, by_size=by_size)
    if found is None:
        return Made(why="it is not allocated by Python")
    return Made(found.path, size=found.size)


def charge(  # noqa: PLR0913 - three that say what is counted, three that say how
    read: Callable[[], int],
    slope: float,
    rate: float,
    schedule: Schedule,
    *,
    of_heap: bool = False,
    few: int = _OF_CACHE,
) -> Generator[None, None, Made]:
    """Any counter: the call that it grows in.

    Args:
        read: The counter.
        slope: How much it grows per iteration.
        rate: In which part of the iterations.
        schedule: What may be spent.
        of_heap: It is that of malloc.
        few: Iterations, where it grows in each of them. Python's own caches of freed objects call for as many as malloc's.
    """
    counted = 0
    tree = CallTree(read)
    with _tracing(tree, schedule) as tracer, _as_counted(of_heap=of_heap):
        for n in schedule.iterations(rate, few):
            tracer.arm()
            yield
            tracer.disarm()
            schedule.collect()
            if n == 0:
                tree.forget()
            else:
                counted += 1
    traced = tree.traced(tree.total)
    if read_path(traced.path) is None or traced.flows:
        # What else moves meanwhile is not asked for.
        traced = tree.traced(round(slope * counted))
    where = read_path(traced.path)
    if where is None:
        return Made(why=tracer.interrupted or "no call was seen to keep it")
    if traced.flows:
        how = "is allocated in one call and freed in another" if traced.balanced else "comes from several calls"
        return Made(why=f"in {where.made_in.function}() it {how} ({traced.flows})")
    if traced.coarse and not _has_own(traced.path):
        return Made(why=_TOO_MUCH)
    return Made(traced.path, code=traced.code, in_line=traced.code is None)


def find_line(
    made: Made, read: Callable[[], int], slope: float, schedule: Schedule, *, of_heap: bool = False
) -> Generator[None, None, Made]:
    """The function is known: the line in it.

    Args:
        made: What is known.
        read: The counter.
        slope: How much it grows per iteration.
        schedule: What may be spent.
        of_heap: It is that of malloc.
    """
    if made.in_line or made.code is None or not made.path:
        return made
    counted = 0
    lines = Lines(made.code, read, schedule.plain_seconds)
    try:
        with _as_counted(of_heap=of_heap):
            for n in schedule.iterations(1.0, _OF_CACHE if of_heap and slope < _CACHED else OF_EXACT):
                lines.arm()
                yield
                lines.disarm()
                schedule.collect()
                if n == 0:
                    lines.forget()
                else:
                    counted += 1
    finally:
        lines.close()
    wanted = round(slope * counted)
    line = lines.line(wanted)
    if line == made.path[-1].line or (made.lasti >= 0 and not line):
        # Where it was seen in the middle of a line, that is the line, whatever this round came to.
        return made
    if line:
        return replace(made, path=lines.refine(made.path, wanted), lasti=-1)
    if made.identities:
        # It came before the line that it was seen in, and in the same function.
        return made
    if not is_own(made.path[-1].file) and _has_own(made.path[:-1]):
        # Which line of a library it is matters less than which line calls it.
        return replace(made, path=made.path[:-1])
    return Made(why=f"no single line of {made.path[-1].function}() makes out its growth")


def _has_own(path: Sequence[Site]) -> bool:
    where = read_path(path)
    return where is not None and is_own(where.site.file)


class Freed:
    """Where what each collection gives back was made: the program's own, and that which ends an iteration."""

    def __init__(self, arrivals: Arrivals[Hashable], things: Things) -> None:
        self._arrivals = arrivals
        self._things = things
        self._before: dict[Hashable, Arrival] = {}
        self._freed: list[Arrival] = []
        self._callback = self._on_collection
        # First, since the last one is the harness's own and is told apart by that.
        gc.callbacks.insert(0, self._callback)

    def take(self) -> list[Arrival]:
        """What was given back since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def close(self) -> None:
        with suppress(ValueError):
            gc.callbacks.remove(self._callback)

    def _on_collection(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._before = self._arrivals.survivors()
            return
        now = self._things.list_now()
        self._freed += [arrival for key, arrival in self._before.items() if now.get(key) != arrival.what]


def _most_common(arrivals: Iterable[Arrival], things: Things) -> tuple[Arrival, int] | None:
    """One of those that come from the line that most comes from, and how much that is."""
    by_line: Counter[tuple[str, int]] = Counter()
    first: dict[tuple[str, int], Arrival] = {}
    for arrival in arrivals:
        where = read_path(arrival.path)
        if where is not None:
            line = (where.site.file, where.site.line)
            by_line[line] += things.weight(arrival.what)
            first.setdefault(line, arrival)
    for line, much in by_line.most_common(1):
        return first[line], much
    return None


def _as_counted(*, of_heap: bool) -> AbstractContextManager[None]:
    """Let what is taken show in the counter: what the last round has freed lies in malloc's cache by now."""
    return drained_thread_cache() if of_heap else nullcontext()


@contextmanager
def _tracing(listener: Listener, schedule: Schedule) -> Iterator[Tracer]:
    tracer = Tracer(listener, schedule.plain_seconds)
    try:
        yield tracer
    finally:
        tracer.close()
