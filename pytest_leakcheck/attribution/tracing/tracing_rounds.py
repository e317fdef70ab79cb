"""Find the line that creates what is retained, in rounds of a few iterations each.

Each round is a generator that yields before each of its iterations and returns a `Creation`.
"""

from __future__ import annotations

import gc
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import ceil, inf
from pathlib import Path
from types import CodeType
from typing import Any, Final, TypeVar

from pytest_leakcheck.attribution.call_paths import (
    call_at,
    is_own,
    line_of,
    path_to,
    read_path,
    with_functions,
)
from pytest_leakcheck.attribution.handles import HandleKind, new_handles, take_identities
from pytest_leakcheck.attribution.tracing.allocations import (
    MIN_WHOLE_RATIO,
    Allocations,
    Retention,
    culprit_of,
    python_traced,
)
from pytest_leakcheck.attribution.tracing.backends import Lines, Tracer
from pytest_leakcheck.attribution.tracing.call_tree import MAX_SHOWN, CallTree
from pytest_leakcheck.attribution.tracing.created_handles import Arrival, Arrivals
from pytest_leakcheck.attribution.tracing.traced_children import TracedChildren
from pytest_leakcheck.attribution.tracing.tracer import MOST_OF_GROWTH, OWN, is_wait
from pytest_leakcheck.model.culprit import CreationPath, OutOfTime, Site
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.audit_events import MadeHere
from pytest_leakcheck.probes.native_heap import drained_thread_cache
from pytest_leakcheck.probes.own_folder import own_folder, temporary_folder

Key = TypeVar("Key", bound=Hashable)
# The most iterations of all rounds together; and for a resource that grows rarely.
MOST_TRACED: Final = 34
_MOST_IF_RARE: Final = 100
# Iterations of a round after the warm-up, for a resource that grows in each of them,
OF_EACH: Final = 6
# for an exact counter, such as the length of a container,
OF_EXACT: Final = 3
# and for one of malloc's memory or of Python's free lists: malloc takes small blocks 8 at a time,
# and 7 of these count as in use before the program takes them.
_CACHE_ITERATIONS: Final = 8
# Bytes. The largest size of blocks in malloc's cache; the cache may hide a growth below this size.
MAX_CACHED_BYTES: Final = 1040
# A copy of what leaks makes malloc's memory grow if it is too large for its cache.
_MIN_COPY_BYTES: Final = MAX_CACHED_BYTES / MOST_OF_GROWTH
# How much longer an iteration may take in which the memory of Python's objects is counted, and
# seconds that it may take in any case: pytest's part of it is traced as well.
_MAX_SLOWDOWN: Final = 10.0
_MIN_LONGEST_SECONDS: Final = 0.1
# How often the resource should grow during a round. A round for a resource that grows rarely has
# more iterations.
_MIN_GROWTHS_SEEN: Final = 3
# An iteration begins only if this multiple of the previous one's duration is left.
_TIME_RESERVE: Final = 1.25
# The smallest share of the growth that a named line accounts for, and of the iterations that need
# no additional ones.
_MIN_RATIO: Final = 0.5
# The growth has ended if, where at least this many rises were expected, fewer than this share of
# them (less one) were seen. By chance alone, that happens in under 1 % of searches.
_MIN_EXPECTED: Final = 5
_MIN_GROWN_RATIO: Final = 0.25
# If no more objects exist, a line that allocates more than this multiple of the growth replaces
# what it allocated before.
_MAX_EXCESS_RATIO: Final = 2.0
_NO_CALL_SEEN: Final = "no traced call of this process created one"
_SCATTERED: Final = "created in several places, none of which accounts for half of them"
_IN_ANOTHER_THREAD: Final = "a thread that ran before the search may have created it, which this Python cannot trace; its work came from "
_NO_ITERATION_LEFT: Final = "no iteration was left to trace its calls"
_NO_TIME_LEFT: Final = OutOfTime("no time was left to trace its calls")
_TOO_MANY_CALLS: Final = "too many calls to trace all of them"


@dataclass(frozen=True, slots=True)
class Creation:
    """The result of a round: the call path that creates what is retained.

    Where memory is searched for, only `resolve` reads source files, at the end, because reading
    them retains memory too.
    """

    # The whole path, with frames of the harness; empty if it was not found, and `why` is then the
    # reason, or why no single call in its last function explains the growth.
    path: tuple[Site, ...] = ()
    why: str = ""
    # The function of the last line, and the offset of the instruction in it that is responsible
    # (-1: unknown).
    code: CodeType | None = None
    lasti: int = -1
    # Whether the last line is exact; if not, it is some line of the last function.
    in_line: bool = True
    # Bytes per iteration that Python allocates there and that are retained.
    size: float | None = None
    # The type, by ``id()``, of the objects that are created there and retained in each iteration; 0
    # if unknown.
    kind: int = 0
    # The handles that were created on this line and are still alive.
    identities: frozenset[Hashable] = frozenset()
    # The C functions that allocated the memory, innermost first.
    native: tuple[str, ...] = ()
    # The child processes that most of the growth is in, as text.
    process: str = ""
    # What the garbage collectors of children have released at the end of the round, as targets of
    # descriptors.
    released: tuple[str, ...] = ()
    # The resource that the path creates in place of the one that was searched for.
    companion: str = ""
    # Whether C has allocated it, and Python's objects hold little of it.
    of_c: bool = False

    @property
    def line(self) -> tuple[str, int]:
        """As `line_of`; ``("", 0)`` if unknown."""
        return line_of(self.path) or ("", 0)

    def read_call(self) -> str:
        """Return the last call as written, such as ``av.open()``; empty if unknown."""
        return call_at(self.code, self.lasti) if self.code and self.lasti >= 0 else ""

    def resolve(self) -> CreationPath | None:
        """Return the path with function names and the last call as written; None without a path."""
        if not self.path:
            return None
        *outer, last = with_functions(self.path)
        call = self.read_call()
        where = read_path((*outer, replace(last, call=call or last.call)))
        if where is None or not self.process:
            return where
        # The path begins in this process, but the phase in which the child was forked is not the
        # one that it works in.
        return replace(where, phase="", fixture="", process=self.process)


class Schedule:
    """Budget of iterations for all rounds; `lacks_time`: the last round ended as time was up."""

    def __init__(
        self,
        plain_seconds: float,
        deadline: float,
        collect: Callable[[], object],
        read: Callable[[], int],
    ) -> None:
        """Begin no iteration after the deadline (``clock.monotonic``).

        `collect` collects garbage as the harness does; `read` reads the resource that is searched
        for.
        """
        self._read = read
        self._levels: list[array[int]] = []
        self.plain_seconds = plain_seconds
        self.used = 0
        self.collect = collect
        self.lacks_time = False
        self._deadline = deadline

    def renew(self, deadline: float) -> Schedule:
        """Return a schedule for the same resource that has used no iteration."""
        return Schedule(self.plain_seconds, deadline, self.collect, self._read)

    def postpone(self, seconds: float) -> None:
        """Move the deadline by the duration of work that is no iteration."""
        self._deadline += seconds

    def deadline_for(self, seconds: float) -> float:
        """Return when other work must end, if it may take this many seconds in any case."""
        return max(self._deadline, clock.monotonic() + seconds)

    def iterations(self, rate: float, few: int = OF_EACH) -> Iterator[int]:
        """Yield the numbers of a round's iterations while the budget lasts; 0 is the warm-up.

        The rate is the share of iterations with growth, or a count's growth per iteration; `few` is
        the number after the warm-up, unless the resource grows rarely.
        """
        wanted = 1 + (few if rate >= _MIN_RATIO else max(few, ceil(_MIN_GROWTHS_SEEN / rate)))
        last = min(self.used + wanted, MOST_TRACED if rate >= _MIN_RATIO else _MOST_IF_RARE)
        first, took = self.used, self.plain_seconds
        began = clock.monotonic()
        levels = array("q")
        self._levels.append(levels)
        # The previous iteration is the estimate: a traced one may take ten times as long as an
        # untraced one.
        while self.used < last and began + _TIME_RESERVE * took < self._deadline:
            self.used += 1
            yield self.used - first - 1
            # In one place only: what the search itself holds is then the same at each reading.
            levels.append(self._read())
            now = clock.monotonic()
            began, took = now, now - began
        self.lacks_time = self.used < last

    @property
    def rises(self) -> tuple[int, ...]:
        """Growth of the resource in a round's iterations but the first two, which fill caches."""
        return tuple(
            after - before for levels in self._levels for before, after in pairwise(levels[1:])
        )

    def has_grown(self, slope: float, share: float) -> bool:
        """Return whether the resource still grows, or too few iterations have run.

        `share` is that of the iterations with growth.
        """
        rises = self.rises
        expected, grew = (
            share * len(rises),
            sum(1 for one in rises if one >= _MIN_RATIO * slope / share),
        )
        return expected < _MIN_EXPECTED or grew >= _MIN_GROWN_RATIO * expected - 1

    @property
    def why_none(self) -> str:
        """Why the last round had no iteration."""
        return _NO_TIME_LEFT if self.lacks_time else _NO_ITERATION_LEFT


def follow(
    things: HandleKind, slope: float, schedule: Schedule, *, unclosed: bool, few: int = OF_EACH
) -> Generator[None, None, Creation]:
    """Find the call that creates most of the retained handles.

    With `unclosed`, find that of the handles that the collector releases. The slope is the growth
    per iteration, in handles, or in bytes for handles with a size; `few` is as in
    `Schedule.iterations`.
    """
    if not things.in_folder:
        return (yield from _follow(things, slope, schedule, unclosed=unclosed, few=few))
    with _StartedPrograms() as programs:
        made = yield from _follow(things, slope, schedule, unclosed=unclosed, few=few)
        return programs.creation_of(made.identities) or made


def _follow(
    things: HandleKind, slope: float, schedule: Schedule, *, unclosed: bool, few: int
) -> Generator[None, None, Creation]:
    arrivals = Arrivals(things.count, things.list_now, things.list_more)
    found, counted = list[Arrival](), 0
    with ExitStack() as stack:
        freed = stack.enter_context(closing(ReleaseRecord(arrivals, things))) if unclosed else None
        children = (
            stack.enter_context(closing(TracedChildren(unclosed=unclosed)))
            if things.in_children
            else None
        )
        tracer = stack.enter_context(closing(Tracer(arrivals, schedule.plain_seconds)))
        # The slope of handles with a size is in bytes.
        for _ in schedule.iterations(min(slope, 1.0) if things.sized else slope, few):
            if children is not None:
                children.begin_iteration()
            tracer.arm()
            yield
            tracer.disarm()
            counted += 1
            schedule.collect()
            found += freed.take() if freed else ()
    alive, of_children = arrivals.survivors(), children.found if children is not None else {}
    collected = children.count if unclosed and children is not None else 0
    wanted = max(1.0, _MIN_RATIO * _expected(slope, counted, collected))
    place = _find_most_common(
        (*(found if unclosed else alive.values()), *of_children.values()), things
    )
    if place is None or place[1] < wanted:
        if children is not None and children.count >= wanted:
            where = children.describe()
            why = f"created in {where}; no line is known, because {children.why or _SCATTERED}"
            return Creation(why=why, process=where, released=tuple(children.released))
        why = _why_unseen(tracer, arrivals.handed_in)
        if not why:
            none = _NO_CALL_SEEN if counted else schedule.why_none
            why = none if place is None else _SCATTERED
        return Creation(why=why, identities=frozenset(alive))
    arrival = place[0]
    if children is None or all(one is not arrival for one in of_children.values()):
        return _created_here(arrival, alive, is_coarse=tracer.throttle.coarse)
    made = _creation_at(arrival)
    where = children.describe({pid for pid, _fd in _of_line(made, of_children)})
    return replace(made, process=where, released=tuple(children.released))


def _expected(slope: float, counted: int, collected: int) -> float:
    # Workers that prefetch open late. What they have collected is evidence, if it is as much as of
    # one iteration.
    return min(slope * counted, max(slope, collected)) if collected else slope * counted


def _why_unseen(tracer: Tracer, handed_in: Sequence[str]) -> str:
    """Return why calls may have been missed; empty if all were traced."""
    if tracer.interrupted:
        return tracer.interrupted
    if handed_in:
        return _IN_ANOTHER_THREAD + " or ".join(handed_in[:MAX_SHOWN])
    return _TOO_MANY_CALLS if tracer.throttle.coarse else ""


def _created_here(arrival: Arrival, alive: Mapping[Any, Arrival], *, is_coarse: bool) -> Creation:
    left_out = is_coarse and (arrival.waits or not _has_own_line(arrival.path))
    if arrival.ends_early or left_out:
        return Creation(why=_TOO_MANY_CALLS, identities=frozenset(alive))
    made = _creation_at(arrival)
    # Handles that other lines created are not part of this leak. Those that another thread created
    # may be.
    unknown = frozenset(key for key, one in alive.items() if not one.path)
    return replace(made, identities=unknown.union(_of_line(made, alive)))


def _creation_at(arrival: Arrival) -> Creation:
    return Creation(arrival.path, "", arrival.code, arrival.lasti, arrival.exact)


class _StartedPrograms(MadeHere):
    """Where the test starts programs, and what Python creates in folders here and in forks."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[tuple[Site, ...]] = []

    def note_start(self) -> None:
        self.paths.append(path_to(sys._getframe(2)))

    def creation_of(self, names: Collection[Hashable]) -> Creation | None:
        """Return where the program was started that has created entries.

        None if none has, or if it is one of several.
        """
        lines = {line_of(path) for path in self.paths}
        if (
            len(lines) != 1
            or not names
            or any(str(name).rpartition("/")[2] in self for name in names)
        ):
            return None
        path = tuple(site for site in self.paths[0] if not OWN[site.file])
        return Creation(path, process="a child process that this line starts")


def _of_line(made: Creation, arrivals: Mapping[Key, Arrival]) -> Iterator[Key]:
    return (key for key, one in arrivals.items() if line_of(one.path) == made.line)


def list_new(resource: str, rate: float, schedule: Schedule) -> Generator[None, None, Creation]:
    """List the handles that a round leaves, where none of their calls can be traced."""
    before = take_identities()
    for _ in schedule.iterations(rate, OF_EXACT):
        yield
        schedule.collect()
    new = new_handles(before, take_identities(), resource)
    why = "" if new else _NO_CALL_SEEN if schedule.used else schedule.why_none
    return Creation(why=why, identities=new)


def trace_allocations(  # noqa: PLR0913 - three describe the counter, three the round
    slope: float,
    rate: float,
    schedule: Schedule,
    *,
    by_size: bool,
    of_objects: bool = False,
    steady: bool = False,
    blocks: float = inf,
) -> Generator[None, None, Creation]:
    """Find the line whose allocations by Python are retained.

    The slope is in blocks, bytes or objects (`of_objects`). `steady`: the number of tracked objects
    does not grow. `blocks`: how many memory blocks an iteration adds.
    """
    # The growth of a resource that grows rarely may fall into the few iterations of the trace by
    # chance.
    often = rate >= _MIN_RATIO
    most = (
        _MAX_EXCESS_RATIO * (slope if by_size else blocks)
        if often and (steady or not by_size)
        else inf
    )
    allocations = Allocations(schedule.plain_seconds, of_heap=by_size, of_objects=of_objects)
    allocations.open()
    try:
        for _ in schedule.iterations(rate):
            began, cpu_before = clock.monotonic(), clock.process_time()
            yield
            # On a busy machine, the iteration takes longer because other processes have the
            # processor.
            seconds = min(clock.monotonic() - began, clock.process_time() - cpu_before)
            schedule.collect()
            allocations.iteration_done(seconds)
        found = culprit_of(allocations.retained_objects(rate), slope, by_size=by_size)
        kept = allocations.retained_blocks(steady=steady) if found is None else ()
    finally:
        allocations.close()
    found = found or culprit_of(kept, slope, by_size=by_size, most=most)
    if found is not None:
        return _allocated_at(found, slope, by_size=by_size)
    if culprit_of(kept, slope, by_size=by_size) is not None:
        return Creation(why="what Python allocates replaces what it frees")
    is_of_c = by_size and sum(one.size for one in kept) < _MIN_RATIO * slope
    return Creation(why="not allocated by Python", of_c=is_of_c)


def _allocated_at(found: Retention, slope: float, *, by_size: bool) -> Creation:
    is_part = (found.size if by_size else found.blocks) < MIN_WHOLE_RATIO * slope
    if not _has_own_line(found.path) or (is_part and len(found.path) == 1):
        # If recording frames takes too long, only the last one is recorded.
        return Creation(
            why=f"allocated at {found.path[-1].file}:{found.path[-1].line}, whose callers are unknown"
        )
    return Creation(found.path, size=found.size, kind=found.kind)


def charge(  # noqa: PLR0913 - three describe the counter, three the round
    read: Callable[[], int],
    slope: float,
    rate: float,
    schedule: Schedule,
    *,
    of_heap: bool = False,
    of_c: bool = False,
    few: int = _CACHE_ITERATIONS,
) -> Generator[None, None, Creation]:
    """Find the call in which any counter grows; `few` is as in `Schedule.iterations`.

    `of_heap`: it counts bytes from malloc. `of_c`: Python's objects hold little of the growth.
    """
    tree, plain = CallTree(read), schedule.plain_seconds
    with (
        closing(Tracer(tree, plain)) as tracer,
        drained_thread_cache() if of_heap else nullcontext(),
    ):
        counted = yield from _repeat(tracer, tree.forget, schedule, rate, few)
    of_c = of_c and rate >= _MIN_RATIO and slope > _MIN_COPY_BYTES
    if counted and of_c:
        # A call is not named for what it returns, such as a copy of what leaks.
        longest = max(_MAX_SLOWDOWN * plain, _MIN_LONGEST_SECONDS)
        with tree.measuring_python(), closing(Tracer(tree, plain, longest)) as slower:
            seen = yield from _repeat(slower, tree.forget, schedule, rate, OF_EXACT)
        tree.lacks_python = slower.throttle.coarse or not seen
        tree.python = array("q", (held * counted // max(1, seen) for held in tree.python))
    traced = tree.explain(round(slope * counted))
    if line_of(traced.path) is None or is_wait(traced.path):
        return Creation(
            why=tracer.interrupted
            or ("no traced call retains it" if counted else schedule.why_none)
        )
    why = traced.why
    if traced.ends_early or (tracer.throttle.coarse and not _has_own_line(traced.path)):
        return Creation(why=why or _TOO_MANY_CALLS)
    if why and traced.calls_program and not is_own(traced.path[-1].file):
        # A library calls the program back, such as an event loop: the line that calls the library
        # is not the one.
        return Creation(why=why)
    return Creation(
        traced.path, why, code=traced.code, in_line=traced.code is None, of_c=traced.of_c
    )


def _repeat(
    tracer: Tracer | Lines, forget: Callable[[], None], schedule: Schedule, rate: float, few: int
) -> Generator[None, None, int]:
    """Run the iterations of a round, and forget what the first showed; return how many count."""
    counted = 0
    for n in schedule.iterations(rate, few):
        tracer.arm()
        yield
        tracer.disarm()
        schedule.collect()
        counted = n
        if n == 0:
            forget()
    return counted


def find_line(  # noqa: PLR0913 - as `charge`
    made: Creation,
    read: Callable[[], int],
    slope: float,
    schedule: Schedule,
    rate: float = 1.0,
    *,
    of_heap: bool = False,
) -> Generator[None, None, Creation]:
    """Find the line in which a counter grows; return `made` if its line is exact already."""
    if made.in_line or made.code is None or not made.path:
        return made
    with ExitStack() as stack:
        if of_heap:
            stack.enter_context(drained_thread_cache())
        if made.of_c:
            # What a line has copied from the memory that leaks is not the leak.
            python, whole = stack.enter_context(python_traced()), read
            read = lambda: whole() - python()  # noqa: E731
        lines = Lines(made.code, read, schedule.plain_seconds)
        stack.callback(lines.close)
        few = _CACHE_ITERATIONS if of_heap and slope < MAX_CACHED_BYTES else OF_EXACT
        counted = yield from _repeat(lines, lines.forget, schedule, rate, few)
    wanted = round(slope * counted)
    line = lines.line(wanted)
    if line == made.path[-1].line or (made.lasti >= 0 and not line):
        # It is the same line, or none, and the earlier round saw the handle appear during a call.
        return made
    if line:
        return replace(made, path=(*made.path[:-1], replace(made.path[-1], line=line)), lasti=-1)
    if made.identities:
        # The handle was created in this function, no later than in the line in which it was seen.
        return made
    if not is_own(made.path[-1].file) and _has_own_line(made.path[:-1]):
        # The line of the test's own code that calls a library is more useful than an unknown line
        # of the library.
        return replace(made, path=made.path[:-1])
    return Creation(
        why=made.why
        or f"no single line of {made.path[-1].function}() accounts for the growth in it"
    )


def _has_own_line(path: Sequence[Site]) -> bool:
    where = read_path(path)
    return where is not None and is_own(where.site.file)


class ReleaseRecord:
    """Record of where handles were created that collections, also the program's own, release."""

    def __init__(self, arrivals: Arrivals[Hashable], things: HandleKind) -> None:
        self._arrivals = arrivals
        self._things = things
        self._before: dict[Hashable, Arrival] = {}
        self._freed: list[Arrival] = []
        self._callback = self._on_collection
        # Insert this callback at the front: `garbage_collector` recognizes its own callback by its
        # position at the end.
        gc.callbacks.insert(0, self._callback)

    def take(self) -> list[Arrival]:
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
        self._freed += [
            arrival for key, arrival in self._before.items() if now.get(key) != arrival.what
        ]


def _find_most_common(
    arrivals: Iterable[Arrival], things: HandleKind
) -> tuple[Arrival, int] | None:
    """Return the line with most handles (or bytes), as its first arrival, and how many; or None."""
    by_line: Counter[tuple[str, int]] = Counter()
    first: dict[tuple[str, int], Arrival] = {}
    for arrival in arrivals:
        line = line_of(arrival.path)
        if line is not None:
            by_line[line] += int(arrival.what) if things.sized else 1
            first.setdefault(line, arrival)
    return next(((first[line], much) for line, much in by_line.most_common(1)), None)


# Number of traced iterations. It is small because the stack of each allocation in them is unwound.
_TRACED_ITERATIONS: Final = 4
# Function names of the interpreter begin with these. The native stack is read outwards up to the
# first of them.
_INTERPRETER_PREFIXES: Final = (
    "_Py",
    "Py",
    "cfunction_",
    "method_vectorcall",
    "type_call",
    "slot_tp_",
    "vectorcall_",
)


def load_memray() -> str:
    """Import memray, and return why it cannot be used; empty if it can."""
    if sys.getprofile() is not None:
        return "a profiler is active"
    try:
        import memray  # noqa: F401 - an extra
    except ImportError:
        return "to trace allocations in C: pip install 'pytest-leakcheck[native]'"
    return ""


def trace_natively(
    made: Creation, slope: float, rate: float, schedule: Schedule
) -> Generator[None, None, Creation]:
    """Find the native stack and the Python line that allocate retained bytes; or return `made`."""
    obstacle = load_memray()
    if obstacle:
        return Creation(why=f"{made.why}; {obstacle}")
    import memray

    counted, found = 0, None
    with temporary_folder(own_folder()) as folder:
        file = Path(folder, "allocations.bin")
        try:
            with ExitStack() as tracking:
                for n in schedule.iterations(rate, _TRACED_ITERATIONS):
                    yield
                    schedule.collect()
                    counted += n > 0
                    if n == 0:
                        tracking.enter_context(memray.Tracker(file, native_traces=True))
            if counted:
                with memray.FileReader(file) as reader:
                    found = find_most(
                        reader.get_leaked_allocation_records(merge_threads=True), slope * counted
                    )
        except RuntimeError as error:
            # Another tracker of memray is active.
            return Creation(why=f"{made.why}; memray: {error}")
    return found or made


def find_most(records: Iterable[Any], wanted: float) -> Creation | None:
    """Return the line that allocates most, with the C functions of its largest stack.

    None if it is less than half. A line that allocates far more than is wanted replaces what it
    allocated before. The records are memray's; a frame in them is a function, a file and a line,
    the innermost first.
    """
    by_line: dict[tuple[str, int], list[tuple[int, Creation]]] = defaultdict(list)
    for record in records:
        path = tuple(
            Site(file, line, function) for function, file, line in reversed(record.stack_trace())
        )
        outwards = (function for function, *_ in record.native_stack_trace())
        names = takewhile(lambda name: not name.startswith(_INTERPRETER_PREFIXES), outwards)
        functions = dict.fromkeys(name for name in names if not name.startswith("<"))
        if line := line_of(path):
            by_line[line].append((record.size, Creation(path, native=tuple(functions)[:MAX_SHOWN])))
    sizes = {line: sum(size for size, _made in some) for line, some in by_line.items()}
    fitting = {
        line: size
        for line, size in sizes.items()
        if _MIN_RATIO * wanted <= size <= _MAX_EXCESS_RATIO * wanted
    }
    if not fitting:
        return None
    return max(by_line[max(fitting, key=fitting.__getitem__)], key=lambda one: one[0])[1]
