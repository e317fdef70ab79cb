"""Open the instruments that read the counters of one process, and store what they read.

The columns are preallocated, so that a new row allocates nothing. An expensive counter is read, and
all garbage is collected, only as often as the cost allows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from math import ceil, inf
from typing import Final, get_args

from pytest_leakcheck.judge.growth import Growth, State, growth
from pytest_leakcheck.judge.provenance import Provenance
from pytest_leakcheck.model.recording import MOST_CORRECTIONS, Correction, Series, Why
from pytest_leakcheck.model.resources import (
    BLOCKS,
    CHILDREN,
    DESCRIPTORS,
    GAUGE_PREFIX,
    RESIDENT,
    THREADS,
    Kind,
    exhausting,
    find_resource,
)
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.catalog import open_instruments
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folders import Folder, watched_folders
from pytest_leakcheck.probes.garbage_collector import CollectorWatch
from pytest_leakcheck.probes.memory import Rss, anonymous_of
from pytest_leakcheck.probes.native_heap import Heap
from pytest_leakcheck.probes.own_descriptors import count_overwritten
from pytest_leakcheck.probes.processes import TREE, Tree, process_tree
from pytest_leakcheck.probes.reference_counts import References
from pytest_leakcheck.probes.runtime_counters import MAX_POOL_BYTES

# What reading one counter may cost on average per row (an iteration has one row): 0.2 us, plus half
# a percent of the time of an iteration.
_SECONDS_PER_ROW: Final = 0.2e-6
_ITERATION_SHARE: Final = 0.005
# The judging rule needs a dozen readings of a rising counter. Until the counter rises, one reading
# in 64 rows is enough. After a rise, the counter is read in each of the next 32 rows.
_MAX_ROW_INTERVAL: Final = 64
_ROWS_AFTER_RISE: Final = 32
# Full collections run in every row until more objects than this survive: a collection walks fewer
# in a millisecond or two. With more objects, full collections may take this share of the time of
# the iterations.
_MANY_OBJECTS: Final = 20_000
_COLLECTION_SHARE: Final = 0.5
# A counter that rises in so many successive rows may leak.
_STEADY_ROWS: Final = 4
# While a test retains no more memory than this, it may repeat growth that may end by itself.
MAX_WAITING_BYTES: Final = 64 << 20
_WHYS: Final[tuple[Why, ...]] = get_args(Why)
# The numbers that one correction is stored as.
_WIDTH: Final = 5
MEMORY_BYTES: Final = tuple(
    name for name in exhausting("memory") if find_resource(name).unit == "bytes"
)


class Instruments:
    """The instruments that read the counters of one process.

    `device`, `resident`, `heap` and `references` are None if not read. `reads` has the reading
    functions of `probes`, by resource; `missing` says why a wanted resource cannot be read here.
    The caller opens `watch`, on the garbage collector, last.
    """

    def __init__(self, wanted: Iterable[str], gauges: Mapping[str, Callable[[], int]]) -> None:
        """Open the instruments; the caller may add `gauges` until the start level is read.

        Raises:
            Unavailable: Not even the process tree can be read here.
        """
        self.gauges = gauges
        self._overwritten = count_overwritten()
        self.tree: Tree = process_tree()
        self.tree.open()
        names = set(wanted)
        self.folders: dict[str, Folder] = {}
        self.probes, self.missing = open_instruments(names)
        self.reads = {probe.resource: probe.read for probe in self.probes}
        self.device = next((one for one in self.probes if isinstance(one, Vram)), None)
        self.resident = next((one for one in self.probes if isinstance(one, Rss)), None)
        self.heap = next((one for one in self.probes if isinstance(one, Heap)), None)
        self.references = next((one for one in self.probes if isinstance(one, References)), None)
        if self.heap is not None:
            self.reads[self.heap.resource] = self.heap.read_in_series
        self.watch = CollectorWatch(
            self.tree.own, self.device.read if self.device is not None else None
        )
        try:
            self._open_folders(names)
        except BaseException:
            self.close()
            raise

    def _open_folders(self, names: set[str]) -> None:
        for folder in watched_folders():
            if folder.resource in names:
                try:
                    folder.open()
                except Unavailable as error:
                    self.missing[folder.resource] = error.released()
                else:
                    self.folders[folder.resource] = folder

    def start(self, seconds: float) -> None:
        """Prepare probes before the start level; `seconds` is the duration of a short iteration."""
        if self.device is not None:
            self.device.mark()
        if self.heap is not None:
            self.heap.start(seconds)
        if self.references is not None:
            self.references.start()

    def close(self) -> None:
        """Close all but the watch on the garbage collector."""
        with ExitStack() as closing:
            # If one raises an exception, the others are closed nevertheless.
            closing.callback(self.tree.close)
            for probe in self.probes:
                closing.callback(probe.close)
            for folder in self.folders.values():
                closing.callback(folder.close)

    def reasons(self) -> dict[str, str]:
        """Return why wanted resources cannot be read, by name, without those not in use yet."""
        return {
            name: str(why) for name, why in self.missing.items() if not isinstance(why, NotInUse)
        }

    def device_for(self, resource: str) -> Vram | None:
        return self.device if self.device is not None and self.device.resource == resource else None

    def find_disturbance(self, resource: str) -> Provenance:
        """Return why a count is wrong, if the program has disturbed what is counted."""
        if resource == DESCRIPTORS:
            taken = count_overwritten() - self._overwritten
            why = "the test has put other files over descriptors of the plugin, which had to be opened again"
            return Provenance(foreign=why, foreign_level={"leak": taken, "over_budget": taken})
        if find_resource(resource).made_of != "objects":
            return Provenance()
        hidden = "the test calls gc.freeze(), which hides new objects from the collector"
        foreign = "the test calls gc.unfreeze(), so older objects are counted as well"
        return Provenance(
            hidden=hidden if self.watch.hides_objects() else "",
            foreign=foreign,
            foreign_level={"over_budget": inf} if self.watch.shows_old_objects() else {},
        )

    def counter(self, resource: str) -> Callable[[], int]:
        """Return a reader of one counter without child processes, cheap enough for traced calls."""
        if resource == DESCRIPTORS:
            return self.tree.own_fds
        if resource == THREADS:
            return lambda: self.tree.own()[1]
        if resource == CHILDREN:
            return self.in_tree(resource)
        if resource in self.folders:
            return self.folders[resource].read
        if self.heap is not None and resource == self.heap.resource:
            return self.heap.read
        return self.reads.get(resource) or self.gauges[resource.removeprefix(GAUGE_PREFIX)]

    def in_tree(self, resource: str) -> Callable[[], int]:
        """Return a reader of one counter of the whole process tree."""
        return lambda: getattr(self.tree.read(), resource)

    def read_collected(self, resource: str, samples: Samples) -> int:
        # A collection also empties the interpreter's free lists, whose blocks count.
        if self.watch.enabled:
            self.watch.collect()
        return self.read_one(resource, samples)

    def read_one(self, resource: str, samples: Samples) -> int:
        """Read one counter as for the next row."""
        if resource in self.reads:
            own = samples.own.get(resource)
            others = sum(map(anonymous_of, samples.children())) if resource == RESIDENT else 0
            return self.reads[resource]() - (own[0] if own else 0) + others
        if resource in TREE:
            return int(getattr(self.tree.read(), resource))
        if resource in self.folders:
            self.folders[resource].relist(samples.n + 1, waiting=True)
            return self.folders[resource].count
        return samples.columns[resource][samples.n]


class Pace:
    """A reader of one counter into `column`, which leaves rows out if a reading is expensive.

    `sys.getallocatedblocks` takes 60 us in a large process, ``mallinfo2`` 0.5 ms in a heap with
    10,000 holes. So readings are timed, and the counter is read only in every k-th row (at most the
    64th), to limit the average cost per row. The rows between repeat the last reading. Once the
    counter has risen by more than its tolerance, it is read in every row while it rises, and in 32
    more rows: the judging rule then has all readings of the part that it judges.
    """

    def __init__(
        self, read: Callable[[], int], column: array[int], own: array[int], tolerance: float
    ) -> None:
        """Read a counter less the harness's `own`; rises up to `tolerance` per row do not count."""
        self._read = read
        self.column = column
        self._own = own
        self._tolerance = tolerance
        # Three rows: that of the last reading, that of the next one, and, once the counter has
        # risen, the row up to which no row is left out. They are in an array, because int objects
        # above 256 would be blocks that the harness allocates. `_at` is the time of the last
        # reading.
        self._rows = array("q", (0, 0, 0))
        self._at = array("d", (0.0,))

    @property
    def due(self) -> int:
        return self._rows[1]

    @property
    def last(self) -> int:
        return self.column[self._rows[0]]

    def fill(self, row: int) -> None:
        """Repeat the last reading up to this row."""
        last = self._rows[0]
        for at in range(last + 1, row + 1):
            self.column[at] = self.column[last]

    def go_back_to(self, row: int) -> None:
        """Treat this row, which was read, as the last one: later readings had another purpose."""
        self._rows[0], self._rows[1] = row, row + 1

    def read_into(self, row: int) -> None:
        """Read the counter into this row, and fill the rows since the last reading."""
        column, rows = self.column, self._rows
        if row > rows[0]:
            self.fill(row - 1)
        began = clock.monotonic()
        value = self._read() - self._own[0]
        cost = clock.monotonic() - began
        column[row] = value
        since = row - rows[0]
        if row == 0 or since < 0:
            rows[2] = since = 0
        elif since and value - column[rows[0]] > self._tolerance * since:
            rows[2] = row + _ROWS_AFTER_RISE
        every = 1
        # The time of an iteration is known from the second reading on.
        if since and row >= rows[2]:
            allowed = _SECONDS_PER_ROW + _ITERATION_SHARE * (began - self._at[0]) / since
            every = min(_MAX_ROW_INTERVAL, ceil(cost / allowed))
        rows[0], rows[1], self._at[0] = row, row + every, began


class CollectionPace:
    """Collects all garbage as often as is cheap, and in other rows only that of new objects.

    A full collection walks everything that the test has retained. Under a leak of 1,400 objects per
    iteration, it takes longer than an iteration of 20 ms from the 100th on, and the time is over
    before the leak is certain. Between full collections, garbage among older objects stays for a
    few rows, so the counters of what it holds rise and fall.
    """

    def __init__(self, watch: CollectorWatch) -> None:
        self._watch = watch
        # The row of the last full collection and that of the next one, and when the last one ended.
        # In arrays, as in `Pace`.
        self._rows = array("q", (0, 0))
        self._at = array("d", (0.0,))

    def restart(self) -> None:
        """Make the next row collect all garbage, because the series begins."""
        self._rows[1] = 0

    def collect(self, row: int, objects: int, *, whole: bool) -> int:
        """Collect garbage before a row is read, and return the number of garbage objects.

        `objects` is how many survived in the row before; with `whole`, all garbage is collected,
        whatever that costs.
        """
        rows = self._rows
        if objects <= _MANY_OBJECTS:
            rows[1] = 0
            return self._watch.collect()
        if not whole and row < rows[1]:
            return self._watch.collect_young()
        began = clock.monotonic()
        found = self._watch.collect()
        ended = clock.monotonic()
        every = 1
        if rows[1] and row > rows[0]:
            allowed = _COLLECTION_SHARE * (began - self._at[0]) / (row - rows[0])
            # A coarse clock may stand still for an iteration.
            every = _MAX_ROW_INTERVAL
            if allowed > 0:
                every = min(every, ceil((ended - began) / allowed))
        rows[0], rows[1], self._at[0] = row, row + every, ended
        return found

    def empty_free_lists(self, objects: int) -> None:
        """Have the interpreter free what it keeps of freed tuples and the like.

        It counts as blocks. Nothing is freed if that would take long.
        """
        if objects <= _MANY_OBJECTS:
            self._watch.collect()


class Samples:
    """The readings so far: one column per counter, one row per iteration; row 0 is the start level.

    Readers add rows. A row that was added is changed by `correct` alone, which takes note of it.

    Attributes:
        n: The index of the last row; -1 before the start level is read.
        released: The amount that the garbage collector released in each iteration, by resource.
        paced: The readers of counters that are not read in every row, because a reading is
            expensive.
        kinds: How the readings were obtained, by resource; ``measured`` where a resource is
            missing.
        own: The part that the harness itself has allocated, by resource. Only of exact counters of
            memory, because resident memory varies by more than this part.
    """

    def __init__(self, capacity: int) -> None:
        self.n = -1
        self.capacity = capacity
        self.columns: dict[str, array[int]] = {}
        self.released: dict[str, array[int]] = {}
        self.own: dict[str, array[int]] = {}
        self.paced: list[Pace] = []
        self.kinds: dict[str, Kind] = {}
        self._children: dict[int, Pace] = {}
        # In arrays, as in `Pace`: the corrections, and how many they are.
        self._corrections = array("q", bytes(8 * _WIDTH * MOST_CORRECTIONS))
        self._corrected = array("q", (0,))

    def restart(self) -> None:
        """Begin again with row 0."""
        self.n = self._corrected[0] = 0

    def correct(self, resource: str, rows: range, by: int, why: Why) -> None:
        """Change the readings of these rows."""
        column = self.columns[resource]
        for row in rows:
            column[row] += by
        if by and rows:
            self._note(resource, by, rows.start, rows.stop - 1, why)

    def correct_last(self, resource: str, level: int, why: Why) -> None:
        """Put another level into the last row."""
        self.correct(
            resource, range(self.n, self.n + 1), level - self.columns[resource][self.n], why
        )

    def leave_out(self, resource: str, by: int) -> None:
        """Leave what the harness has allocated since the last row out of all later ones."""
        self.own[resource][0] += by
        if by:
            self._note(resource, -by, self.n + 1, -1, "harness")

    def _note(self, resource: str, by: int, first: int, last: int, why: Why) -> None:
        if (at := self._corrected[0]) < MOST_CORRECTIONS:
            numbers = list(self.columns).index(resource), by, first, last, _WHYS.index(why)
            self._corrections[_WIDTH * at : _WIDTH * (at + 1)] = array("q", numbers)
            self._corrected[0] += 1

    def corrections(self) -> tuple[Correction, ...]:
        names, stored = list(self.columns), iter(self._corrections[: _WIDTH * self._corrected[0]])
        return tuple(
            Correction(names[number], by, first, None if last < 0 else last, _WHYS[why])
            for number, by, first, last, why in zip(*[stored] * _WIDTH, strict=True)
        )

    def follow_children(self, pids: Iterable[int]) -> None:
        """Count the memory of these processes as resident memory from now on, while each lives."""
        # One that ends leaves all rows, so that neither its start nor its end is a step.
        followed = self._children.values()
        self.paced = [one for one in self.paced if one not in followed]
        own, tolerance = array("q", (0,)), find_resource(RESIDENT).tolerance
        self._children = {
            pid: Pace(partial(anonymous_of, pid), self.new_column(), own, tolerance) for pid in pids
        }
        self.paced += self._children.values()

    def children(self) -> dict[int, int]:
        """Return the growth in memory of each followed process that still lives, by its number."""
        return {
            pid: pace.last - pace.column[0]
            for pid, pace in self._children.items()
            if pace.last and pace.column[0]
        }

    def grown_children(self) -> list[int]:
        """Return the numbers of the child processes whose memory has grown, most first.

        There are none if this process grew more.
        """
        grown = {pid: more for pid, more in self.children().items() if more > 0}
        if 2 * sum(grown.values()) < self.above_start(RESIDENT):
            return []
        return sorted(grown, key=grown.__getitem__, reverse=True)

    def has(self, resource: str) -> bool:
        return resource in self.columns

    def level(self, resource: str) -> int:
        return self._filled_column(resource)[self.n]

    def growth(self, resources: Iterable[str]) -> dict[str, float]:
        """Return each counter's growth per row; a paced one's last reading may be older."""
        paced = {id(one.column): one.last for one in self.paced}
        columns = {name: self.columns[name] for name in resources if name in self.columns}
        rows = max(1, self.n)
        return {
            name: (paced.get(id(one), one[self.n]) - one[0]) / rows for name, one in columns.items()
        }

    def above_start(self, resource: str) -> int:
        column = self._filled_column(resource)
        return column[self.n] - column[0]

    def retains_much(self) -> bool:
        """Return whether the test retains too much memory to go on only because growth may end."""
        return any(
            self.has(name) and self.above_start(name) > MAX_WAITING_BYTES for name in MEMORY_BYTES
        )

    def rises_steadily(self) -> bool:
        """Return whether a counter, read in each of the last few rows, has risen in each."""
        rows = range(self.n - _STEADY_ROWS, self.n)
        return rows.start >= 0 and any(
            all(column[row] < column[row + 1] for row in rows) for column in self.columns.values()
        )

    def rises(self, resource: str) -> int:
        return len(self.series(resource).rises)

    def state(self, resource: str) -> State:
        """Return whether a counter grows; undecided for one that is not read."""
        return self.judged_growth(resource).state if self.has(resource) else "undecided"

    def judged_growth(self, resource: str) -> Growth:
        return growth(self.series(resource).readings, find_resource(resource).tolerance)

    def exact_rate(self) -> float:
        """Return how many bytes per row the exact counters of memory show at most."""
        exact = {name: 1 for name in MEMORY_BYTES if not find_resource(name).resolution} | {
            BLOCKS: MAX_POOL_BYTES
        }
        return sum(
            self.judged_growth(name).slope * each for name, each in exact.items() if self.has(name)
        )

    def series(self, resource: str) -> Series:
        released = self.released[resource][: self.n] if resource in self.released else ()
        kind = self.kinds.get(resource, "measured")
        return Series(
            resource, tuple(self._filled_column(resource)[: self.n + 1]), tuple(released), kind
        )

    def all_series(self) -> tuple[Series, ...]:
        return tuple(map(self.series, self.columns)) if self.n >= 0 else ()

    def _filled_column(self, resource: str) -> array[int]:
        """Return a column after filling the rows that have no reading, up to the last row."""
        for paced in self.paced:
            paced.fill(self.n)
        column = self.columns[resource]
        if resource == RESIDENT and (alive := self.children()):
            return array(
                "q",
                map(sum, zip(column, *(self._children[pid].column for pid in alive), strict=True)),
            )
        return column

    def new_column(self) -> array[int]:
        """Return a new column of zeros, without adding it to `columns`."""
        # An array stores plain 64-bit numbers. With a list, the harness would allocate int objects
        # for each row.
        return array("q", bytes(8 * self.capacity))
