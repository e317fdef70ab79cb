"""The instruments of one process, how often they read, and the columns that store what they read."""

from __future__ import annotations

from array import array
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from literal_readings import LiteralFolder, LiteralProbe, LiteralTree, open_literal, samples_of
from pytest_leakcheck.judge.provenance import Provenance
from pytest_leakcheck.model.recording import Correction, Series
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.device import Device, Vram
from pytest_leakcheck.probes.garbage_collector import CollectorWatch
from pytest_leakcheck.probes.memory import Rss
from pytest_leakcheck.probes.native_heap import Heap
from pytest_leakcheck.runner import readings
from pytest_leakcheck.runner.readings import CollectionPace, Instruments, Pace, Samples
from repeats import Clock

MIB = 1 << 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# The instruments.


class LiteralHeap(Heap):
    """A heap that reads 100, and 101 in a series."""

    started: float | None = None

    def read(self) -> int:
        return 100

    def read_in_series(self) -> int:
        return 101

    def start(self, seconds: float) -> None:
        self.started = seconds


class LiteralDevice(Device):
    used = 512

    def allocated(self) -> int:
        return self.used


def open_vram() -> Vram:
    vram = Vram(lambda: [LiteralDevice()])
    vram.open()
    return vram


def test_what_has_been_opened_is_found_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    heap, vram, rss, arrow = LiteralHeap(), open_vram(), Rss(), LiteralProbe("arrow", 7)
    found = open_literal(monkeypatch, [heap, arrow, rss, vram])
    assert (found.heap, found.device, found.resident) == (heap, vram, rss)
    assert list(found.reads) == ["heap", "arrow", "rss", "vram"]
    without = open_literal(monkeypatch, [arrow])
    assert (without.heap, without.device, without.resident) == (None, None, None)


def test_the_heap_is_read_otherwise_in_a_series_than_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = open_literal(monkeypatch, [LiteralHeap()])
    assert (instruments.reads["heap"](), instruments.counter("heap")()) == (101, 100)


def test_only_wanted_folders_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    shm, disk = LiteralFolder("shm"), LiteralFolder("disk")
    with monkeypatch.context() as patched:
        patched.setattr(readings, "process_tree", LiteralTree)
        patched.setattr(readings, "open_instruments", lambda _names: ([], {}))
        patched.setattr(readings, "watched_folders", lambda: (shm, disk))
        instruments = Instruments(["disk", "fd"], {})
    assert [one.resource for one in instruments.folders.values()] == ["disk"]
    assert (shm.state, disk.state) == ("made", "open")


def test_a_folder_that_cannot_be_watched_is_missing_and_the_others_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Unavailable("no such folder")
    instruments = open_literal(monkeypatch, folders=[LiteralFolder("shm", error), LiteralFolder("disk")])
    assert [one.resource for one in instruments.folders.values()] == ["disk"]
    assert instruments.missing == {"shm": error}
    # Its frames would hold the instruments in a circle.
    assert error.__traceback__ is None


def test_an_error_while_folders_are_opened_closes_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, shm, probe = LiteralTree(), LiteralFolder("shm"), ClosingProbe()
    with pytest.raises(ZeroDivisionError):
        open_literal(
            monkeypatch, [probe], tree=tree, folders=[shm, LiteralFolder("disk", ZeroDivisionError("the listing"))]
        )
    assert (tree.state, shm.state, probe.closed) == ("closed", "closed", True)


class ClosingProbe(LiteralProbe):
    """A probe that notes that it was closed, and may fail then."""

    closed = False

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__("arrow")
        self.error = error

    def close(self) -> None:
        self.closed = True
        if self.error is not None:
            raise self.error


def test_all_are_closed_although_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, folder = LiteralTree(), LiteralFolder()
    probes = [ClosingProbe(), ClosingProbe(ZeroDivisionError("at the end")), ClosingProbe()]
    instruments = open_literal(monkeypatch, probes, tree=tree, folders=[folder])
    assert (tree.state, folder.state) == ("open", "open")
    with pytest.raises(ZeroDivisionError, match="at the end"):
        instruments.close()
    assert (tree.state, folder.state, [one.closed for one in probes]) == ("closed", "closed", [True] * 3)


def test_a_start_prepares_the_heap_and_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    heap, vram = LiteralHeap(), open_vram()
    instruments = open_literal(monkeypatch, [heap, vram])
    monkeypatch.setattr(LiteralDevice, "used", 1024)
    instruments.start(0.25)
    monkeypatch.setattr(LiteralDevice, "used", 1536)
    assert heap.started == 0.25
    # Since the start, not since it was opened.
    assert vram.describe_growth() == "device +512 B"


def test_a_start_without_a_heap_and_a_device_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    open_literal(monkeypatch, [LiteralProbe("arrow")]).start(1.0)


def test_what_is_not_in_use_needs_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"vram": NotInUse("no torch here"), "heap": Unavailable("musl counts nothing")}
    instruments = open_literal(monkeypatch, missing=missing)
    assert instruments.reasons() == {"heap": "musl counts nothing"}


def test_a_device_is_that_of_its_resource_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    vram = open_vram()
    with_device, without = open_literal(monkeypatch, [vram]), open_literal(monkeypatch)
    assert with_device.device_for("vram") is vram
    assert with_device.device_for("heap") is None
    assert without.device_for("vram") is None


def test_descriptors_that_were_taken_from_the_plugin_may_be_all_of_a_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    overwritten = [2]
    monkeypatch.setattr(readings, "count_overwritten", lambda: overwritten[0])
    instruments = open_literal(monkeypatch)
    # Two were taken by earlier tests.
    assert instruments.find_disturbance("fd").foreign_level == {"leak": 0, "over_budget": 0}
    overwritten[0] = 5
    found = instruments.find_disturbance("fd")
    assert found.foreign.startswith("the test has put other files over descriptors of the plugin")
    assert found.foreign_level == {"leak": 3, "over_budget": 3}
    assert instruments.find_disturbance("thread") == Provenance()


@pytest.mark.parametrize(
    ("hides", "shows", "hidden", "level"),
    [
        (False, False, "", {}),
        (True, False, "the test calls gc.freeze(), which hides new objects from the collector", {}),
        (False, True, "", {"over_budget": inf}),
    ],
)
def test_a_count_of_objects_is_wrong_once_the_test_freezes_or_unfreezes(
    hides: bool, shows: bool, hidden: str, level: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    instruments = open_literal(monkeypatch)
    watch = SimpleNamespace(hides_objects=lambda: hides, shows_old_objects=lambda: shows)
    instruments.watch = cast("CollectorWatch", watch)
    found = instruments.find_disturbance("object")
    assert (found.hidden, found.foreign_level) == (hidden, level)
    assert found.foreign == "the test calls gc.unfreeze(), so older objects are counted as well"
    # Whatever the collector shows, it counts no bytes and no blocks.
    assert instruments.find_disturbance("heap") == instruments.find_disturbance("block") == Provenance()


@pytest.mark.parametrize(
    ("resource", "value"),
    [("fd", 8), ("thread", 3), ("process", 2), ("shm", 104), ("heap", 100), ("arrow", 64), ("gauge:kept", 77)],
)
def test_a_counter_for_each_call_leaves_the_descriptors_and_threads_of_children_out(
    resource: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tree = LiteralFolder(), LiteralTree(lambda: (9, 3, 2))
    folder.count = 4
    instruments = open_literal(
        monkeypatch,
        [LiteralHeap(), LiteralProbe("arrow", 64)],
        tree=tree,
        folders=[folder],
        gauges={"kept": lambda: 77},
    )
    assert instruments.counter(resource)() == value


def test_without_a_heap_the_others_have_a_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_literal(monkeypatch, [LiteralProbe("arrow", 64)]).counter("arrow")() == 64


def test_a_counter_of_the_tree_includes_children(monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = open_literal(monkeypatch, tree=LiteralTree(lambda: (9, 3, 2)))
    assert [instruments.in_tree(name)() for name in ("fd", "thread", "process")] == [9, 3, 2]


@pytest.mark.parametrize(("enabled", "value"), [(True, 5), (False, 6)])
def test_garbage_is_collected_before_a_reading_if_the_collector_is_on(
    enabled: bool, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = LiteralProbe("arrow", 6)
    instruments = open_literal(monkeypatch, [probe])

    def collect() -> None:
        probe.value -= 1

    instruments.watch = cast("CollectorWatch", SimpleNamespace(enabled=enabled, collect=collect))
    assert instruments.read_collected("arrow", samples_of({"arrow": [6]})) == value


def test_one_counter_is_read_as_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, tree = LiteralFolder(), LiteralTree(lambda: (9, 3, 2))
    folder.count = 4
    instruments = open_literal(monkeypatch, [LiteralProbe("heap", 900), LiteralProbe("arrow", 64)], tree=tree)
    instruments.folders["shm"] = cast("Any", folder)
    samples = samples_of({"heap": [0, 0, 0], "gauge:kept": [1, 2, 3]})
    samples.own["heap"] = array("q", (300,))
    names = ("heap", "arrow", "fd", "process", "shm", "gauge:kept")
    assert [instruments.read_one(name, samples) for name in names] == [600, 64, 9, 2, 4, 3]
    # An entry that is gone by now does not count in the last row.
    assert folder.calls == [("relist", 3, True)]


def test_resident_memory_of_one_reading_includes_the_children_that_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    samples, memory = with_children(monkeypatch, {"rss": [1000, 1000], "mmap": [0, 0]}, {11: [100, 150], 12: [50, 60]})
    instruments = open_literal(monkeypatch, [LiteralProbe("rss", 1000), LiteralProbe("mmap", 8000)])
    memory.update({11: 170, 12: 80, 13: 9999})
    assert instruments.read_one("rss", samples) == 1000 + 170 + 80
    assert instruments.read_one("mmap", samples) == 8000


# A reader that leaves rows out.


class Counter:
    """A counter with a value, and a cost in seconds."""

    def __init__(self, clock: Clock, *, tolerance: float = 0.0, own: int = 0) -> None:
        self.clock, self.value, self.cost = clock, 10, 0.0
        self.column = array("q", bytes(8 * 200))
        self.own = array("q", (own,))
        self.pace = Pace(self.read, self.column, self.own, tolerance)

    def read(self) -> int:
        self.clock.take(self.cost)
        return self.value

    def read_into(self, row: int, value: int, *, at: float) -> int:
        """Read this value at a time; return the row in which it is due next."""
        self.clock.now, self.value = at, value
        self.pace.read_into(row)
        return self.pace.due


@pytest.mark.parametrize(
    ("cost", "iteration", "due"),
    [
        (0.2e-6, 0.0, 2),
        (0.3e-6, 0.0, 3),
        # Of one second, 5.0002 ms.
        (0.005, 1.0, 2),
        (0.006, 1.0, 3),
        (0.0151, 1.0, 5),
        (0.313, 1.0, 64),
        (0.318, 1.0, 65),
        (9.0, 1.0, 65),
    ],
)
def test_a_counter_is_read_as_often_as_its_cost_allows(cost: float, iteration: float, due: int, clock: Clock) -> None:
    counter = Counter(clock)
    counter.cost = cost
    # The first row does not tell how long an iteration takes.
    assert counter.read_into(0, 10, at=0.0) == 1
    assert counter.read_into(1, 10, at=iteration) == due


def test_the_time_between_two_readings_is_that_of_all_iterations_between_them(clock: Clock) -> None:
    counter = Counter(clock)
    counter.cost = 0.0151
    counter.read_into(0, 10, at=0.0)
    assert counter.read_into(1, 10, at=1.0) == 5
    assert counter.read_into(5, 10, at=5.0) == 9
    # From the beginning of one reading to that of the next one.
    assert counter.read_into(9, 10, at=9.0) == 13


def test_after_a_rise_beyond_the_tolerance_no_row_of_thirty_two_is_left_out(clock: Clock) -> None:
    counter = Counter(clock, tolerance=0.5)
    counter.cost = 9.0
    counter.read_into(0, 10, at=0.0)
    # Half a unit for each of four rows.
    assert counter.read_into(4, 12, at=4.0) == 68
    assert counter.read_into(8, 15, at=8.0) == 9
    assert [counter.read_into(row, 15, at=row) for row in range(9, 40)] == list(range(10, 41))
    assert counter.read_into(40, 15, at=40.0) == 104


@pytest.mark.parametrize("went_back", [False, True])
def test_a_series_that_begins_again_forgets_the_rise(went_back: bool, clock: Clock) -> None:
    counter = Counter(clock)
    counter.cost = 9.0
    counter.read_into(0, 10, at=0.0)
    assert counter.read_into(1, 20, at=1.0) == 2
    if went_back:
        counter.pace.go_back_to(0)
    assert counter.read_into(0, 20, at=2.0) == 1
    assert counter.read_into(1, 20, at=3.0) == 65


@pytest.mark.parametrize("row", [4, 9])
def test_a_reading_of_an_earlier_row_forgets_the_rise(row: int, clock: Clock) -> None:
    counter = Counter(clock)
    counter.cost = 9.0
    counter.read_into(0, 10, at=0.0)
    counter.read_into(9, 10, at=9.0)
    counter.read_into(10, 20, at=10.0)
    assert counter.read_into(row, 10, at=11.0) == row + 1
    assert counter.read_into(row + 1, 10, at=12.0) == row + 65


def test_a_second_reading_of_one_row_keeps_the_rise(clock: Clock) -> None:
    counter = Counter(clock)
    counter.cost = 9.0
    counter.read_into(0, 10, at=0.0)
    counter.read_into(1, 20, at=1.0)
    assert counter.read_into(1, 20, at=2.0) == 2
    assert counter.read_into(2, 20, at=3.0) == 3


def test_rows_that_are_left_out_repeat_the_reading_before_them(clock: Clock) -> None:
    counter = Counter(clock)
    counter.read_into(0, 10, at=0.0)
    counter.read_into(3, 14, at=3.0)
    assert counter.column[:5].tolist() == [10, 10, 10, 14, 0]
    counter.cost = 0.02
    assert counter.read_into(40, 14, at=40.0) == 44
    # The row in which it is due, and not a later one.
    counter.read_into(44, 15, at=44.0)
    assert counter.column[40:46].tolist() == [14, 14, 14, 14, 15, 0]
    counter.pace.fill(46)
    assert counter.column[44:48].tolist() == [15, 15, 15, 0]
    assert counter.pace.last == 15


def test_what_the_harness_has_allocated_is_in_no_reading(clock: Clock) -> None:
    counter = Counter(clock, own=3)
    counter.read_into(0, 10, at=0.0)
    counter.own[0] = 5
    counter.read_into(1, 12, at=1.0)
    assert counter.column[:2].tolist() == [7, 7]


def test_a_reading_for_another_purpose_is_none_of_the_series(clock: Clock) -> None:
    counter = Counter(clock)
    counter.cost = 9.0
    counter.read_into(0, 10, at=0.0)
    counter.read_into(1, 11, at=1.0)
    counter.read_into(2, 99, at=2.0)
    counter.pace.go_back_to(1)
    assert (counter.pace.last, counter.pace.due) == (11, 2)
    counter.read_into(3, 12, at=3.0)
    assert counter.column[:4].tolist() == [10, 11, 11, 12]


# How often all garbage is collected.


class Collector:
    """Stands for the watch on the collector: finds 7 objects in all garbage, and 2 in the young one."""

    def __init__(self, clock: Clock, cost: float = 0.0) -> None:
        self.clock, self.cost = clock, cost
        self.full = 0

    def collect(self) -> int:
        self.full += 1
        self.clock.take(self.cost)
        return 7

    def collect_young(self) -> int:
        return 2


def collections(clock: Clock, cost: float, rows: range, objects: int, pace: CollectionPace | None = None) -> str:
    """Return a letter for each row, of an iteration of one second each: F for a full collection, else y."""
    pace = pace or CollectionPace(cast("CollectorWatch", Collector(clock, cost)))
    found = ""
    for row in rows:
        clock.take(1.0)
        found += {7: "F", 2: "y"}[pace.collect(row, objects, whole=False)]
    return found


def test_few_objects_are_collected_in_every_row_whatever_it_costs(clock: Clock) -> None:
    assert collections(clock, 9.0, range(8), objects=20_000) == "FFFFFFFF"


@pytest.mark.parametrize(
    ("cost", "expected"), [(0.5, "FFFFFFFF"), (0.6, "FFyFyFyF"), (1.0, "FFyFyFyF"), (1.4, "FFyyFyyF")]
)
def test_many_objects_are_collected_for_half_of_the_time(cost: float, expected: str, clock: Clock) -> None:
    assert collections(clock, cost, range(8), objects=20_001) == expected


def test_no_more_than_sixty_four_rows_go_without_a_full_collection(clock: Clock) -> None:
    assert collections(clock, 1000.0, range(66), objects=20_001) == "FF" + 63 * "y" + "F"


def test_a_clock_that_stands_still_for_an_iteration_puts_the_next_collection_off(clock: Clock) -> None:
    pace = CollectionPace(cast("CollectorWatch", Collector(clock, cost=1.0)))
    assert [pace.collect(row, 20_001, whole=False) for row in range(4)] == [7, 7, 2, 2]


def test_a_look_has_all_garbage_collected_and_the_pace_goes_on_from_there(clock: Clock) -> None:
    pace = CollectionPace(cast("CollectorWatch", Collector(clock, cost=1.4)))
    assert collections(clock, 1.4, range(3), 20_001, pace) == "FFy"
    clock.take(1.0)
    assert pace.collect(3, 20_001, whole=True) == 7
    assert collections(clock, 1.4, range(4, 8), 20_001, pace) == "yyFy"


@pytest.mark.parametrize("few", [True, False])
def test_a_new_series_and_few_objects_let_the_pace_begin_again(few: bool, clock: Clock) -> None:
    pace = CollectionPace(cast("CollectorWatch", Collector(clock, cost=1.4)))
    assert collections(clock, 1.4, range(3), 20_001, pace) == "FFy"
    if few:
        assert pace.collect(3, 20_000, whole=False) == 7
    else:
        pace.restart()
    assert collections(clock, 1.4, range(3, 8), 20_001, pace) == "FFyyF"


def test_a_second_full_collection_for_one_row_is_no_iteration(clock: Clock) -> None:
    pace = CollectionPace(cast("CollectorWatch", Collector(clock, cost=9.0)))
    pace.collect(1, 20_001, whole=True)
    assert pace.collect(1, 20_001, whole=True) == 7
    clock.take(1.0)
    assert pace.collect(2, 20_001, whole=False) == 7


@pytest.mark.parametrize(("objects", "full"), [(20_000, 1), (20_001, 0)])
def test_free_lists_are_emptied_unless_there_are_many_objects(objects: int, full: int, clock: Clock) -> None:
    collector = Collector(clock)
    CollectionPace(cast("CollectorWatch", collector)).empty_free_lists(objects)
    assert collector.full == full


# The columns.


def test_a_new_column_is_zeros_and_not_yet_one_of_the_series() -> None:
    samples = Samples(3)
    assert samples.new_column() == array("q", (0, 0, 0))
    assert (samples.columns, samples.all_series(), samples.n) == ({}, (), -1)


def test_a_series_has_the_rows_up_to_the_last_one() -> None:
    samples = samples_of({"fd": [5, 6, 9], "vram": [0, 512, 512]}, vram=[0, 512, 3])
    samples.kinds["vram"] = "simulated"
    samples.n = 2
    descriptors = Series("fd", (5, 6, 9))
    assert samples.all_series() == (descriptors, Series("vram", (0, 512, 512), (0, 512), "simulated"))
    assert samples.series("fd") == descriptors
    samples.n = 0
    assert samples.series("vram") == Series("vram", (0,), (), "simulated")
    assert len(samples.all_series()) == 2


def test_levels_are_those_of_the_last_row() -> None:
    samples = samples_of({"fd": [5, 9, 8]})
    assert (samples.level("fd"), samples.above_start("fd"), samples.rises("fd")) == (8, 3, 1)
    assert (samples.has("fd"), samples.has("heap")) == (True, False)


def paced(samples: Samples, resource: str, *readings: int) -> None:
    """Let a counter be read in the first rows only."""
    pace = Pace(iter(readings).__next__, samples.columns[resource], array("q", (0,)), 0.0)
    samples.paced.append(pace)
    for row in range(len(readings)):
        pace.read_into(row)


def test_a_row_in_which_an_expensive_counter_was_not_read_has_the_last_reading() -> None:
    samples = samples_of({"heap": [0, 0, 0, 0, 0], "fd": [5, 5, 5, 5, 6]})
    paced(samples, "heap", 700, 730)
    assert samples.growth(["heap", "fd", "arrow"]) == {"heap": 7.5, "fd": 0.25}
    # To report progress, no row is filled.
    assert samples.columns["heap"][2] == 0
    assert (samples.level("heap"), samples.above_start("heap")) == (730, 30)
    assert samples.series("heap").readings == (700, 730, 730, 730, 730)


def test_nothing_has_grown_by_the_start_level() -> None:
    assert samples_of({"fd": [5]}).growth(["fd"]) == {"fd": 0.0}
    assert samples_of({"fd": [5, 8]}).growth(["fd"]) == {"fd": 3.0}


def test_a_correction_of_rows_is_noted_with_the_first_and_the_last() -> None:
    samples = samples_of({"heap": [0, 0, 0, 0], "fd": [5, 6, 7, 9]})
    samples.correct("fd", range(1, 3), -2, "foreign")
    samples.correct_last("fd", 6, "ended")
    assert samples.series("fd").readings == (5, 4, 5, 6)
    assert samples.corrections() == (Correction("fd", -2, 1, 2, "foreign"), Correction("fd", -3, 3, 3, "ended"))
    samples.correct("fd", range(2), 0, "foreign")
    samples.correct("fd", range(0), 7, "foreign")
    assert len(samples.corrections()) == 2
    samples.restart()
    assert (samples.n, samples.corrections()) == (0, ())
    samples.correct("heap", range(1), 8, "garbage")
    assert samples.corrections() == (Correction("heap", 8, 0, 0, "garbage"),)


def test_what_the_harness_allocates_is_left_out_of_all_later_rows() -> None:
    samples = samples_of({"heap": [10, 20, 30], "block": [1, 1, 1]})
    samples.own.update(heap=array("q", (100,)), block=array("q", (0,)))
    samples.leave_out("heap", 50)
    samples.leave_out("block", 0)
    assert (samples.own["heap"][0], samples.own["block"][0]) == (150, 0)
    assert samples.series("heap").readings == (10, 20, 30)
    assert samples.corrections() == (Correction("heap", -50, 3, None, "harness"),)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"fd": [1, 2, 3, 4, 5]}, True),
        ({"fd": [9, 1, 2, 3, 4, 5]}, True),
        ({"fd": [1, 2, 3, 4]}, False),
        ({"fd": [1, 2, 3, 4, 4]}, False),
        ({"fd": [1, 1, 2, 3, 4]}, False),
        ({"heap": [7, 7, 7, 7, 7], "fd": [1, 2, 3, 4, 5]}, True),
        ({"heap": [7, 8, 9, 7, 8], "fd": [1, 2, 3, 2, 3]}, False),
    ],
)
def test_a_counter_rises_steadily_if_it_rose_in_each_of_the_last_four_rows(
    columns: dict[str, list[int]], expected: bool
) -> None:
    assert samples_of(columns).rises_steadily() is expected


@pytest.mark.parametrize("resource", ["heap", "arrow", "mmap", "rss"])
def test_a_test_retains_much_above_64_mib_of_any_memory(resource: str) -> None:
    assert not samples_of({"fd": [1, 1], resource: [MIB, 65 * MIB]}).retains_much()
    assert samples_of({"fd": [1, 1], resource: [MIB, 65 * MIB + 1]}).retains_much()


def test_no_count_and_no_memory_of_a_device_is_much() -> None:
    assert not samples_of({"object": [0, 1 << 40], "block": [0, 1 << 40], "vram": [0, 1 << 40]}).retains_much()


def rising(by: int, rows: int = 41) -> list[int]:
    return [by * row for row in range(rows)]


def test_the_state_of_a_counter_is_that_beyond_its_tolerance() -> None:
    samples = samples_of({"heap": rising(8), "arrow": rising(8), "object": rising(0)})
    states = {name: samples.state(name) for name in ("heap", "arrow", "object", "fd")}
    assert states == {"heap": "flat", "arrow": "growing", "object": "flat", "fd": "undecided"}


def test_exact_counters_of_memory_show_their_bytes_and_a_largest_block_for_each_block() -> None:
    columns = {"heap": rising(100), "mmap": rising(4096), "rss": rising(4096), "object": rising(3), "vram": rising(512)}
    assert samples_of(columns).exact_rate() == 100
    assert samples_of(columns | {"arrow": rising(64), "block": rising(2)}).exact_rate() == 100 + 64 + 2 * 512
    assert samples_of({"fd": rising(1)}).exact_rate() == 0


# The memory of child processes.


def with_children(
    monkeypatch: pytest.MonkeyPatch, columns: dict[str, list[int]], children: dict[int, list[int]]
) -> tuple[Samples, dict[int, int]]:
    """Return samples with these readings of child processes by number, and what the children have from now on."""
    samples, memory = samples_of(columns), dict.fromkeys(children, 0)
    monkeypatch.setattr(readings, "anonymous_of", lambda pid: memory[pid])
    samples.follow_children(children)
    for row in range(samples.n + 1):
        memory.update({pid: column[row] for pid, column in children.items()})
        for one in samples.paced:
            one.read_into(row)
    return samples, memory


def test_children_count_as_resident_memory_for_as_long_as_they_live(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"rss": [1000, 1000, 1010], "mmap": [7000, 7000, 7000]}
    samples, _memory = with_children(monkeypatch, columns, {11: [100, 150, 200], 12: [50, 60, 0], 13: [0, 5, 5]})
    # One ended, and one could not be read at the start: neither makes a step.
    assert samples.children() == {11: 100}
    assert samples.series("rss").readings == (1100, 1150, 1210)
    assert samples.series("mmap").readings == (7000, 7000, 7000)
    assert (samples.level("rss"), samples.above_start("rss")) == (1210, 110)


def test_to_follow_other_children_ends_that_of_the_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, _memory = with_children(monkeypatch, {"rss": [1000, 1000], "heap": [0, 0]}, {11: [100, 150]})
    paced(samples, "heap", 700, 730)
    samples.follow_children([])
    assert samples.children() == {}
    assert samples.series("rss").readings == (1000, 1000)
    assert [one.last for one in samples.paced] == [730]


@pytest.mark.parametrize(
    ("own", "children", "expected"),
    [
        (0, {11: 10, 12: 30, 13: 20}, [12, 13, 11]),
        (0, {11: 0, 12: -5, 13: 1}, [13]),
        (30, {11: 10, 12: 20}, [12, 11]),
        (31, {11: 10, 12: 20}, []),
        (0, {}, []),
    ],
)
def test_children_that_have_grown_are_named_unless_this_process_grew_more(
    own: int, children: dict[int, int], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {pid: [100, 100 + more] for pid, more in children.items()}
    samples, _memory = with_children(monkeypatch, {"rss": [1000, 1000 + own]}, columns)
    assert samples.grown_children() == expected


def test_memory_of_a_child_is_read_rarely_until_it_rises(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, memory = samples_of({"rss": [0] * 4}), {11: 1000}

    def read(pid: int) -> int:
        clock.take(1.0)
        return memory[pid]

    monkeypatch.setattr(readings, "anonymous_of", read)
    samples.follow_children([11])
    (pace,) = samples.paced
    due = []
    # The tolerance of resident memory: 1 KiB for each row.
    for row, value in enumerate([1000, 2024, 3049]):
        memory[11] = value
        pace.read_into(row)
        due.append(pace.due)
    assert due == [1, 65, 3]
