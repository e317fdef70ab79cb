"""For how long what ends by itself is waited for, and what waits and rests change in the readings."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from threading import Condition, get_ident
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import pytest

from literal_readings import LiteralFolder, LiteralProbe, LiteralTree, SleepingClock, open_literal, samples_of
from pytest_leakcheck.model.recording import Correction
from pytest_leakcheck.probes.processes import TREE
from pytest_leakcheck.runner import settling as module
from pytest_leakcheck.runner.settling import Settling, leave_out_threads

# The pauses double from one millisecond to a tenth of a second, and the wait ends with the first that exceeds its time:
# a quarter of a second, two seconds, and six.
ALONE, USUAL, HELD = (pytest.approx(0.127 + 0.1 * pauses) for pauses in (2, 19, 59))
OTHER = 7
# Descriptors, threads and child processes.
Counts: TypeAlias = tuple[int, int, int]


class Process:
    """A process, by the numbers that it had at the start and has in the last row; from then on, the tree has `later`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        start: Counts = (5, 2, 0),
        now: Counts = (5, 2, 0),
        later: Callable[[], Counts] | None = None,
        others: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        tree = {name: (start[at], now[at]) for at, name in enumerate(TREE)}
        self.samples = samples_of({**tree, **(others or {})})
        self.folder = LiteralFolder("shm")
        self.probes = {name: LiteralProbe(name, pair[1]) for name, pair in (others or {}).items() if name != "shm"}
        instruments = open_literal(monkeypatch, self.probes.values(), tree=LiteralTree(later or (lambda: now)))
        if others and "shm" in others:
            instruments.folders["shm"] = cast("Any", self.folder)
            self.folder.count = others["shm"][1]
        self.settling = Settling(self.samples, instruments)
        self.settling.start_clocks()

    @property
    def corrections(self) -> tuple[Correction, ...]:
        return self.samples.corrections()


class Machine:
    """Time, which passes only in pauses, and the innermost frame of each thread that runs Python code, by its number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.clock = monkeypatch, SleepingClock(monkeypatch)
        self.frames: dict[int, Any] = {number: SimpleNamespace(f_code=None) for number in (get_ident(), OTHER)}
        monkeypatch.setattr(module, "sys", SimpleNamespace(_current_frames=lambda: dict(self.frames)))
        monkeypatch.setattr(module, "_OF_SESSION", set())
        monkeypatch.setattr(Settling, "seconds", 2.0)
        monkeypatch.setattr(Settling, "seconds_alone", 0.25)
        monkeypatch.setattr(Settling, "seconds_held", 6.0)

    def process(self, **given: Any) -> Process:
        return Process(self.monkeypatch, **given)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def before(machine: Machine, seconds: float, then: Counts, *, after: Counts) -> Callable[[], Counts]:
    """Return what reads the tree: some counts until a time, and others from then on."""
    return lambda: then if machine.clock.now < seconds else after


# Whether and how long.


def test_what_is_at_its_start_level_is_not_waited_for(machine: Machine) -> None:
    process = machine.process(now=(4, 2, 0), later=lambda: (3, 2, 0), others={"task": (1, 1), "heap": (0, 99)})
    assert not process.settling.settle()
    assert not process.settling.settle(suspected=True)
    assert (machine.clock.pauses, process.corrections) == ([], ())


@pytest.mark.parametrize(
    ("start", "now", "others", "seconds"),
    [
        # Without another thread or process, no other could close a descriptor.
        ((5, 1, 0), (6, 1, 0), {}, 0),
        ((5, 2, 0), (6, 2, 0), {}, ALONE),
        ((5, 1, 1), (6, 1, 1), {}, ALONE),
        ((5, 1, 0), (5, 1, 0), {"shm": (0, 1)}, ALONE),
        ((5, 1, 0), (6, 1, 0), {"shm": (0, 1)}, ALONE),
        ((5, 1, 0), (5, 2, 0), {}, USUAL),
        ((5, 1, 0), (5, 1, 1), {}, USUAL),
        ((5, 1, 0), (6, 1, 0), {"task": (0, 1)}, USUAL),
    ],
)
def test_the_time_depends_on_what_is_above_its_start_level(
    start: Counts,
    now: Counts,
    others: dict[str, tuple[int, int]],
    seconds: float,
    machine: Machine,
) -> None:
    process = machine.process(start=start, now=now, others=others)
    assert not process.settling.settle()
    assert sum(machine.clock.pauses) == seconds
    assert process.corrections == ()


def test_the_pauses_double_up_to_a_tenth_of_a_second(machine: Machine) -> None:
    machine.process(now=(6, 2, 0)).settling.settle()
    assert machine.clock.pauses == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.1]


def test_a_wait_ends_when_nothing_is_above_its_start_level(machine: Machine) -> None:
    later = before(machine, 0.01, (7, 3, 0), after=(5, 2, 0))
    process = machine.process(now=(7, 3, 0), later=later)
    assert process.settling.settle()
    assert machine.clock.pauses == [0.001, 0.002, 0.004, 0.008]
    assert process.corrections == (Correction("fd", -2, 1, 1, "ended"), Correction("thread", -1, 1, 1, "ended"))
    assert process.samples.series("fd").readings == (5, 5)


def test_what_has_begun_to_end_is_given_more_time(machine: Machine) -> None:
    process = machine.process(now=(7, 2, 0), later=before(machine, 0.2, (7, 2, 0), after=(6, 2, 0)))
    assert process.settling.settle()
    assert sum(machine.clock.pauses) == USUAL
    assert process.samples.level("fd") == 6


def test_a_rise_while_waiting_is_in_no_row(machine: Machine) -> None:
    process = machine.process(now=(6, 2, 0), later=before(machine, 0.1, (9, 2, 0), after=(6, 2, 0)))
    assert not process.settling.settle()
    assert process.samples.level("fd") == 6


def test_tasks_and_entries_of_folders_end_by_themselves_as_well(machine: Machine) -> None:
    process = machine.process(others={"task": (1, 3), "shm": (0, 2), "heap": (0, 99)})
    process.probes["task"].value, process.probes["heap"].value = 1, 0
    process.folder.count = 0
    assert process.settling.settle()
    assert [(one.resource, one.by) for one in process.corrections] == [("shm", -2), ("task", -2)]
    assert process.folder.calls == [("relist", 2, True)]


def test_only_a_wait_in_vain_is_the_last_one(machine: Machine) -> None:
    process = machine.process(now=(9, 2, 0), later=before(machine, 0.1, (9, 2, 0), after=(8, 2, 0)))
    assert process.settling.settle()
    first = len(machine.clock.pauses)
    assert not process.settling.settle()
    second = len(machine.clock.pauses)
    assert second > first
    assert not process.settling.settle()
    assert len(machine.clock.pauses) == second


def test_not_to_wait_is_not_in_vain(machine: Machine) -> None:
    threads = [1]
    process = machine.process(start=(5, 1, 0), now=(6, 1, 0), later=lambda: (6, threads[0], 0))
    assert not process.settling.settle()
    assert not process.settling.settle(suspected=True)
    assert machine.clock.pauses == []
    # One that could close the descriptor has started.
    threads[0] = 2
    process.settling.settle()
    assert sum(machine.clock.pauses) == ALONE
    machine.clock.pauses.clear()
    process.settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == HELD


# On a suspicion.


def test_a_suspicion_is_worth_one_wait_more(machine: Machine) -> None:
    process = machine.process(now=(6, 2, 0))
    for suspected, seconds in ((False, ALONE), (True, HELD), (True, 0), (False, 0)):
        machine.clock.pauses.clear()
        assert not process.settling.settle(suspected=suspected)
        assert sum(machine.clock.pauses) == seconds


def test_a_suspicion_that_was_worth_a_wait_is_worth_another(machine: Machine) -> None:
    process = machine.process(now=(7, 2, 0), later=before(machine, 0.1, (7, 2, 0), after=(6, 2, 0)))
    assert process.settling.settle(suspected=True)
    machine.clock.pauses.clear()
    assert not process.settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == HELD


@pytest.mark.parametrize("now", [(6, 2, 0), (5, 3, 0)])
def test_threads_of_the_start_get_more_time_only_on_a_suspicion(now: Counts, machine: Machine) -> None:
    machine.process(now=now).settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == HELD
    machine.clock.pauses.clear()
    machine.process(now=now).settling.settle()
    assert sum(machine.clock.pauses) < 2.1


def test_a_thread_of_the_start_that_ends_gets_no_more_time(machine: Machine) -> None:
    process = machine.process(now=(6, 2, 0))
    del machine.frames[OTHER]
    # One that has started since then may be the test's.
    machine.frames[OTHER + 1] = SimpleNamespace(f_code=None)
    process.settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == ALONE


@pytest.mark.parametrize(("deadline", "seconds"), [(0.3, 0.327), (1.0, 1.027), (9.0, 6.027)])
def test_nothing_is_waited_for_that_long_beyond_the_deadline(deadline: float, seconds: float, machine: Machine) -> None:
    process = machine.process(now=(6, 2, 0))
    process.settling.deadline = deadline
    process.settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == pytest.approx(seconds)


def test_threads_of_the_session_are_not_waited_for(machine: Machine) -> None:
    leave_out_threads()
    machine.process(now=(6, 2, 0)).settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == ALONE


def test_a_thread_that_waits_to_be_notified_is_not_waited_for(machine: Machine) -> None:
    process = machine.process(now=(6, 2, 0))
    machine.monkeypatch.setattr(module, "_NOTIFIED", {22})
    machine.frames[OTHER] = SimpleNamespace(f_code=Condition.wait.__code__, f_lasti=22)
    process.settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == ALONE


@pytest.mark.parametrize(
    ("arguments", "needs_another"), [((), [True, True]), ((5.0,), [True, False]), ((0,), [True, False])]
)
def test_a_thread_needs_another_where_it_waits_without_a_limit(
    arguments: tuple[float, ...], needs_another: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Condition.wait` makes a lock, and acquires it twice; the first time, no other thread has it yet."""
    found = []

    def note(returned: Any, *_arguments: object) -> Any:
        found.append(module._needs_another(sys._getframe(1)))
        return returned

    condition = Condition()
    # No functions of Python, because a call of one has another place in the bytecode than one of a lock.
    lock = SimpleNamespace(acquire=partial(note, True), release=int)
    with condition:
        monkeypatch.setattr(threading, "_allocate_lock", partial(note, lock))
        condition.wait(*arguments)
    assert found == [False, *needs_another]


def test_another_function_is_no_wait() -> None:
    frame = sys._getframe()
    assert not module._needs_another(frame)
    assert not module._needs_another(cast("Any", SimpleNamespace(f_code=frame.f_code, f_lasti=min(module._NOTIFIED))))


# How long a thread takes that releases handles late.


@pytest.mark.parametrize(
    ("now", "released", "suspected", "long"),
    [
        ((6, 2, 0), 3.0, True, 3.027),
        ((6, 2, 0), 3.0, False, 0),
        # No longer than usual.
        ((6, 2, 0), 0.2, True, 0),
        ((6, 2, 0), 0.23, True, 0.327),
        ((5, 3, 0), 1.0, True, 0),
        ((5, 3, 0), 3.0, True, 3.027),
        ((6, 2, 0), 99.0, True, 0),
    ],
)
def test_a_long_wait_for_a_thread_of_the_start_that_released_something_is_noted(
    now: Counts,
    released: float,
    suspected: bool,
    long: float,
    machine: Machine,
) -> None:
    process = machine.process(now=now, later=before(machine, released, now, after=(5, 2, 0)))
    process.settling.settle(suspected=suspected)
    assert process.settling.waited_long == pytest.approx(long)


def test_a_long_wait_is_no_matter_of_a_thread_that_is_gone(machine: Machine) -> None:
    process = machine.process(now=(7, 2, 0), later=before(machine, 0.2, (7, 2, 0), after=(6, 2, 0)))
    del machine.frames[OTHER]
    assert process.settling.settle(suspected=True)
    assert sum(machine.clock.pauses) == USUAL
    assert process.settling.waited_long == 0


def test_a_later_wait_forgets_it(machine: Machine) -> None:
    process = machine.process(now=(6, 2, 0), later=before(machine, 3.0, (6, 2, 0), after=(5, 2, 0)))
    assert process.settling.settle(suspected=True)
    assert process.settling.waited_long
    assert not process.settling.settle(suspected=True)
    assert process.settling.waited_long == 0


def test_the_start_is_delayed_by_a_quarter_more_than_that_time(machine: Machine) -> None:
    settling = machine.process().settling
    assert (settling.is_paced, settling.is_filling, settling.has_filled()) == (False, False, True)
    machine.clock.now, settling.waited_long = 100.0, 2.0
    settling.delay_start()
    assert (settling.is_paced, settling.is_filling) == (True, True)
    machine.clock.now = 102.4
    assert not settling.has_filled()
    machine.clock.now = 102.5
    assert settling.has_filled()
    assert (settling.is_paced, settling.is_filling) == (True, False)


def test_what_exists_at_a_delayed_start_does_not_stand(machine: Machine) -> None:
    process = machine.process(now=(9, 2, 0), later=lambda: (10, 2, 0))
    assert process.settling.standing("fd") == 4
    process.settling.waited_long = 2.0
    process.settling.delay_start()
    assert process.settling.standing("fd") == 0
    assert not process.settling.settle()
    assert machine.clock.pauses == []
    process.samples.columns["fd"][1] = 12
    assert process.settling.standing("fd") == 3
    # While the test is paced, however short the wait is: it tells how late the thread is.
    assert process.settling.settle(suspected=True)
    assert process.settling.waited_long > 0


def test_iterations_follow_each_other_at_a_64th_of_that_time(machine: Machine) -> None:
    settling = machine.process().settling
    settling.pace()
    assert machine.clock.pauses == []
    settling.waited_long = 6.4
    settling.delay_start()
    for seconds in (0.03, 0.04, 0.25, 0.01):
        machine.clock.take(seconds)
        settling.pace()
    assert machine.clock.pauses == [pytest.approx(one) for one in (0.07, 0.06, 0.0, 0.09)]


# What a suspicion corrects.


def ended_late(machine: Machine, *, suspected: bool) -> Process:
    """Return a process, one of whose two new descriptors has been waited for."""
    process = machine.process(now=(7, 2, 0), later=before(machine, 0.1, (7, 2, 0), after=(6, 2, 0)))
    process.settling.settle(suspected=suspected)
    assert process.samples.level("fd") == 6
    return process


def test_a_correction_on_a_suspicion_is_put_back(machine: Machine) -> None:
    process = ended_late(machine, suspected=True)
    process.settling.put_back()
    assert process.samples.level("fd") == 7
    assert process.corrections == (Correction("fd", -1, 1, 1, "ended"), Correction("fd", 1, 1, 1, "put_back"))
    process.samples.columns["fd"][1] = 5
    process.settling.put_back()
    assert process.samples.level("fd") == 5


def test_a_correction_that_is_accepted_stays(machine: Machine) -> None:
    process = ended_late(machine, suspected=True)
    process.settling.accept()
    process.settling.put_back()
    assert process.samples.level("fd") == 6


def test_a_correction_of_an_earlier_series_is_not_put_into_a_later_one(machine: Machine) -> None:
    process = ended_late(machine, suspected=True)
    process.settling.start_clocks()
    process.samples.columns["fd"][1] = 5
    process.settling.put_back()
    assert process.samples.level("fd") == 5


def test_a_correction_without_a_suspicion_stays(machine: Machine) -> None:
    process = ended_late(machine, suspected=True)
    process.settling.settle()
    process.settling.put_back()
    assert process.samples.level("fd") == 6


# Threads that were joined.


def test_a_thread_that_was_joined_has_about_a_millisecond_to_end(machine: Machine) -> None:
    process = machine.process(later=before(machine, 0.00012, (5, 3, 0), after=(5, 2, 0)))
    assert process.settling.await_joined(2) == (5, 2, 0)
    assert machine.clock.pauses == [0.00005] * 3
    assert process.settling.joins_in_vain == 0


def test_a_thread_that_ends_at_the_last_reading_was_not_waited_for_in_vain(machine: Machine) -> None:
    process = machine.process(later=before(machine, 0.00098, (5, 3, 0), after=(5, 2, 0)))
    assert process.settling.await_joined(2) == (5, 2, 0)
    assert len(machine.clock.pauses) == 20
    assert process.settling.joins_in_vain == 0


def test_joined_threads_are_awaited_until_the_count_of_threads_has_not_fallen_back_in_three_rows(
    machine: Machine,
) -> None:
    threads = [3]
    settling = machine.process(later=lambda: (5, threads[0], 0)).settling
    for row in range(3):
        assert (settling.awaits_joined, settling.joins_in_vain) == (True, row)
        assert settling.await_joined(2) == (5, 3, 0)
    assert not settling.awaits_joined
    assert len(machine.clock.pauses) == 20 * 3
    threads[0] = 1
    settling.await_joined(2)
    assert settling.awaits_joined


# Rests.


@pytest.mark.parametrize("resource", ["thread", "task"])
def test_processes_threads_and_tasks_may_end(resource: str, machine: Machine) -> None:
    process = machine.process(now=(9, 2, 0), others={"task": (0, 0), "heap": (0, 99), "shm": (0, 3)})
    assert not process.settling.may_end()
    process.samples.columns[resource][1] += 1
    assert process.settling.may_end()


def test_a_rest_tells_how_far_a_counter_rises_after_garbage_is_collected(machine: Machine) -> None:
    heap, collected = iter([1000, 1300]), []
    samples = samples_of({"heap": [0, 900]})
    instruments = open_literal(machine.monkeypatch, [LiteralProbe("heap")])
    instruments.reads["heap"] = heap.__next__
    watch = SimpleNamespace(enabled=True, collect=lambda: collected.append(machine.clock.now))
    instruments.watch = cast("Any", watch)
    settling = Settling(samples, instruments)
    settling.start_clocks()
    assert settling.rest(0.5, "heap") == 300
    assert machine.clock.pauses == [0.5]
    assert collected == [0.0, 0.5]


def test_in_a_rest_only_entries_of_known_origin_count(machine: Machine) -> None:
    process = machine.process(others={"shm": (0, 3)})
    process.folder.known = 1

    def relist(row: int, *, waiting: bool = False) -> None:
        assert (machine.clock.now, row, waiting) == (0.5, 2, True)
        process.folder.known, process.folder.count = 3, 9

    machine.monkeypatch.setattr(process.folder, "relist", relist)
    assert process.settling.rest(0.5, "shm") == 2


def test_waits_and_rests_are_no_time_of_iterations(machine: Machine) -> None:
    machine.clock.now = 100.0
    process = machine.process(now=(6, 2, 0), later=lambda: (6, 3, 0), others={"shm": (0, 0)})
    machine.clock.take(3.0)
    assert process.settling.seconds_per_iteration() == 3.0
    process.settling.settle()
    process.settling.rest(0.5, "shm")
    process.settling.await_joined(2)
    assert process.settling.seconds_per_iteration() == pytest.approx(3.0)
    process.samples.n = 0
    assert process.settling.seconds_per_iteration() == pytest.approx(3.0)
    process.samples.n = 4
    assert process.settling.seconds_per_iteration() == pytest.approx(0.75)
    process.settling.start_clocks()
    assert process.settling.seconds_per_iteration() == 0


@pytest.mark.parametrize(
    ("process", "thread", "share"), [(0.2, 0.15, 0.25), (2.0, 0.0, 1.0), (2.0, 2.1, 0.0), (0.0, 0.0, 0.0)]
)
def test_the_share_of_other_threads_is_that_of_the_time_since_the_start(
    process: float,
    thread: float,
    share: float,
    machine: Machine,
) -> None:
    machine.clock.process, machine.clock.thread = 10.0, 7.0
    settling = machine.process().settling
    machine.clock.process, machine.clock.thread = 10.0 + process, 7.0 + thread
    assert settling.share_of_other_threads() == pytest.approx(share)


# Entries of other programs.


@pytest.mark.parametrize("set_aside", [False, True])
def test_entries_of_other_programs_are_taken_off_the_rows_that_have_them(set_aside: bool, machine: Machine) -> None:
    process = machine.process(others={"shm": (0, 3)})
    process.folder.left_out = [range(1, 2), range(2), range(1, 1)]
    assert process.settling.correct_folder("shm", set_aside=set_aside)
    assert process.folder.calls == [("leave_out", 1, set_aside)]
    assert process.samples.series("shm").readings == (-1, 1)
    assert process.corrections == (Correction("shm", -1, 1, 1, "foreign"), Correction("shm", -1, 0, 1, "foreign"))
    # None are left.
    assert not process.settling.correct_folder("shm", set_aside=set_aside)
    assert len(process.folder.calls) == 1


def test_only_a_folder_has_entries_of_other_programs(machine: Machine) -> None:
    assert not machine.process(now=(9, 2, 0)).settling.correct_folder("fd")
