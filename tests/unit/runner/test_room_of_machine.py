"""A repetition stops before it takes more than a quarter of what is left of the machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_leakcheck.runner import room as module
from pytest_leakcheck.runner.room import Room

MIB = 1 << 20


class Machine:
    """Memory, shared memory and a disk, of which a program takes some in each iteration; each look is due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident, self.memory, self.free = 50 * MIB, 4096 * MIB, {"/dev/shm": 64 * MIB, "/tmp": 4096 * MIB}
        self.now = 0.0
        monkeypatch.setattr(module, "resident_of", lambda _pid: self.resident)
        monkeypatch.setattr(module, "memory_left", lambda: self.memory)
        monkeypatch.setattr(module, "free_on", lambda folder: self.free.get(folder, 0))
        monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
        monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", self._later)

    def _later(self) -> float:
        self.now += 1.0
        return self.now

    def take(self, size: int) -> None:
        self.resident += size
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


def test_earlier_tests_leave_less(machine: Machine) -> None:
    first, _said = machine.run(lambda: machine.take(100 * MIB))
    second, _said = machine.run(lambda: machine.take(100 * MIB))
    assert second < first


def test_what_cannot_be_read_stops_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no() -> int:
        raise RuntimeError("replaced by the test")

    monkeypatch.setattr(module, "memory_left", no)
    assert machine.run(lambda: machine.take(1000 * MIB)) == (50, "")
    monkeypatch.setattr(module, "memory_left", lambda: 0)
    assert machine.run(lambda: machine.take(1000 * MIB)) == (50, "")


def test_it_looks_rarely(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def read(_pid: int) -> int:
        looks.append(1)
        return 0

    monkeypatch.setattr(module, "resident_of", read)
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: 1.0)
    machine.run(lambda: None)
    assert len(looks) == 2
