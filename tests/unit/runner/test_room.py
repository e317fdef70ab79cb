"""A repetition stops before it takes more than a quarter of what is left of the machine, or half of the descriptors."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.probes.own_descriptors import count_held
from pytest_leakcheck.probes.resource_limits import UNLIMITED
from pytest_leakcheck.runner import room as module
from pytest_leakcheck.runner.room import Room
from repeats import descriptors, open_null, verdict_on

MIB = 1 << 20


class Machine:
    """What a program takes some of in each iteration; each look is due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident, self.memory, self.free = [50 * MIB], 4096 * MIB, {"/dev/shm": 64 * MIB, "/tmp": 4096 * MIB}
        self.entries, self.descriptors, self.threads, self.tasks = 100_000, 1000, 1, 1000
        self.now = 0.0
        monkeypatch.setattr(module, "own_tree", lambda: range(len(self.resident)))
        monkeypatch.setattr(module, "resident_of", lambda pid: self.resident[pid])
        monkeypatch.setattr(module, "count_tasks", lambda _pid: self.threads)
        monkeypatch.setattr(module, "memory_left", lambda: self.memory)
        monkeypatch.setattr(module, "descriptors_left", lambda: self.descriptors)
        monkeypatch.setattr(module, "tasks_left", lambda: self.tasks)
        monkeypatch.setattr(module, "free_on", self._find_free)
        monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
        monkeypatch.setattr(module, "stat", lambda path: SimpleNamespace(st_dev=path))
        monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", self._later)

    def _find_free(self, folder: str) -> tuple[int, int]:
        return self.free.get(folder, UNLIMITED), self.entries if folder == "/tmp" else UNLIMITED

    def _later(self) -> float:
        self.now += 10.0
        return self.now

    def take(self, size: int) -> None:
        self.resident[0] += size
        self.memory -= size

    def run(self, iteration: Callable[[], None], most: int = 50) -> tuple[int, str]:
        """After how many iterations the room ended, and what was said; `most` if it did not."""
        room = Room()
        for number in range(1, most + 1):
            iteration()
            if used := room.iteration_done():
                return number, str(used)
        return most, ""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_it_stops_before_a_quarter_of_the_memory_is_taken(machine: Machine) -> None:
    # The first 150 MiB are what the test needs once. Seven more would be 1,050 MiB, of a quarter of 3,946.
    assert machine.run(lambda: machine.take(150 * MIB)) == (7, "900 MiB of 3.9 GiB of memory")


def test_what_is_taken_once_or_by_others_does_not_count(machine: Machine) -> None:
    machine.take(3000 * MIB)
    assert machine.run(lambda: None) == (50, "")

    def beside() -> None:
        machine.memory -= 10 * MIB

    assert machine.run(beside) == (50, "")


@pytest.mark.parametrize(("folder", "after"), [("/dev/shm", 3), ("/tmp", 50)])
def test_space_in_a_folder(machine: Machine, folder: str, after: int) -> None:
    def write() -> None:
        machine.free[folder] -= 5 * MIB

    iterations, said = machine.run(write)
    assert iterations == after
    assert said == ("10.0 MiB of 59.0 MiB of /dev/shm" if folder == "/dev/shm" else "")


def test_descriptors(machine: Machine) -> None:
    def leak() -> None:
        machine.descriptors -= 40

    assert machine.run(leak) == (13, "480 of 960 descriptors (ulimit -n)")
    # So few may be the plugin's own.
    machine.descriptors = 50

    def leak_one() -> None:
        machine.descriptors -= 1

    assert machine.run(leak_one, 49) == (49, "")


def test_entries_of_a_file_system(machine: Machine) -> None:
    def write() -> None:
        machine.entries -= 1000

    assert machine.run(write) == (25, "24000 of 99000 entries of /tmp")


def test_threads(machine: Machine) -> None:
    def start() -> None:
        machine.threads, machine.tasks = machine.threads + 30, machine.tasks - 30

    # 990 are left after the first iteration and those that other programs start; their number is only read here.
    machine.tasks = 1020
    assert machine.run(start) == (9, "240 of 990 processes and threads")


def test_children_and_their_memory(machine: Machine) -> None:
    def fork() -> None:
        machine.resident.append(100 * MIB)
        machine.memory -= 2 * MIB

    # Their pages are those of the parent, and so few processes are not compared.
    assert machine.run(fork, 42) == (42, "")

    def start() -> None:
        machine.resident.append(100 * MIB)
        machine.memory -= 100 * MIB

    machine.memory = 4096 * MIB
    assert machine.run(start) == (10, "900 MiB of 3.9 GiB of memory")
    machine.tasks = 50
    assert machine.run(lambda: machine.resident.append(0), 100) == (66, "65 of 115 processes and threads")


def test_earlier_tests_leave_less(machine: Machine) -> None:
    first, _said = machine.run(lambda: machine.take(100 * MIB))
    second, _said = machine.run(lambda: machine.take(100 * MIB))
    assert second < first


def test_what_cannot_be_read_stops_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no() -> int:
        raise RuntimeError("replaced by the test")

    monkeypatch.setattr(module, "memory_left", no)
    assert machine.run(lambda: machine.take(1000 * MIB)) == (50, "")
    monkeypatch.setattr(module, "memory_left", lambda: UNLIMITED)
    monkeypatch.setattr(module, "tasks_left", lambda: UNLIMITED)

    def take() -> None:
        machine.take(1000 * MIB)
        machine.threads += 1000

    assert machine.run(take) == (50, "")


def test_it_looks_rarely(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def read(_pid: int) -> int:
        looks.append(1)
        return 0

    monkeypatch.setattr(module, "resident_of", read)
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: 1.0)
    machine.run(lambda: None)
    # At the start, and once to see whether it grows.
    assert len(looks) == 2


def test_it_looks_more_often_the_fewer_iterations_fit(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: 1.0)
    looks: list[int] = []

    def leak() -> None:
        machine.descriptors -= 2

    def count() -> int:
        looks.append(machine.descriptors)
        return machine.descriptors

    monkeypatch.setattr(module, "descriptors_left", count)
    assert machine.run(leak, 300) == (250, "498 of 998 descriptors (ulimit -n)")
    assert len(looks) < 20


def test_a_look_comes_after_a_quarter_of_the_iterations_that_fit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: 1.0)
    looks: list[int] = []

    def count() -> int:
        looks.append(998 - machine.descriptors)
        return machine.descriptors

    def leak() -> None:
        machine.descriptors -= 2

    monkeypatch.setattr(module, "descriptors_left", count)
    machine.run(leak, 100)
    # At the start and after one iteration, 249 of which fit.
    assert looks[:3] == [0, 2, 2 * (1 + 63)]


@pytest.mark.parametrize(
    ("processes", "seconds", "looks"), [(1, 0.015, False), (1, 0.03, True), (4, 0.06, False), (4, 0.1, True)]
)
def test_a_look_comes_after_twenty_milliseconds_for_each_process(
    processes: int, seconds: float, looks: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: now)
    machine.resident *= processes
    room = Room()
    room.iteration_done()
    room.iteration_done()
    now = seconds
    machine.take(2000 * MIB)
    assert bool(room.iteration_done()) is looks


@pytest.mark.parametrize(("each", "short"), [(60, True), (35, False)])
def test_room_is_short_where_fewer_than_twenty_iterations_fit(machine: Machine, each: int, *, short: bool) -> None:
    room = Room()
    for _ in range(2):
        machine.take(each * MIB)
        room.iteration_done()
    assert room.short is short


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Leave 220 descriptors to this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count_held() + 220, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors as Linux does")
@pytest.mark.usefixtures("frozen", "few_descriptors")
@pytest.mark.parametrize(
    ("each", "outcome", "reason"),
    [
        # Of 220, half may be taken.
        (12, "leak", "+12.0/iter sustained over 8 iterations"),
        (40, "inconclusive", "stopped at 80 of 1"),
    ],
)
@pytest.mark.parametrize("warmup", [1, 2])
def test_growth_that_is_certain_by_then_is_a_leak(each: int, outcome: str, reason: str, warmup: int) -> None:
    before = count_held()
    with descriptors() as kept:
        verdict = verdict_on(lambda: kept.extend([open_null() for _ in range(each)]), Budget("fd"), warmup=warmup)
        assert count_held() - before <= each + 110
    assert verdict.outcome == outcome, verdict
    assert verdict.reason.startswith(reason) or warmup > 1, verdict


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors as Linux does")
@pytest.mark.usefixtures("few_descriptors")
def test_a_clean_test_after_one_that_keeps_much_is_judged() -> None:
    with descriptors() as kept:
        verdict_on(lambda: kept.extend([open_null() for _ in range(40)]), Budget("fd"))
        assert verdict_on(lambda: os.close(open_null()), Budget("fd")).outcome == "ok"
