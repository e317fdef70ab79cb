from __future__ import annotations

import functools
import gc
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.heap.eviction import Eviction
from pytest_leakcheck.runner import bounded_caches
from pytest_leakcheck.runner.bounded_caches import BoundedOwners, Pruned

pytestmark = pytest.mark.usefixtures("frozen")

# So many that no cache of the interpreter or of another test gains more in the meantime.
MANY = 2000


def text_of(owners: BoundedOwners, resource: str = "object") -> str:
    filling = owners.filling(resource)
    return filling.text if filling is not None else ""


def test_an_lru_cache_that_fills_up_is_named_until_it_is_full_and_begins_again() -> None:
    @functools.lru_cache(2 * MANY)
    def load(index: int) -> list[int]:
        return [index]

    load(-1)
    owners = BoundedOwners()
    assert "load" not in text_of(owners)
    for index in range(MANY):
        load(index)
    filling = owners.filling("object")
    assert filling is not None
    assert filling.text == (
        "lru_cache of test_an_lru_cache_that_fills_up_is_named_until_it_is_full_and_begins_again.<locals>.load: 2,001 of 4,000"
    )
    assert filling.retained == pytest.approx(MANY, rel=0.02)
    assert not filling.full
    for index in range(3 * MANY):
        load(index)
    full = owners.filling("object")
    assert full is not None
    assert full.full
    assert full.retained == pytest.approx(2 * MANY, rel=0.02)
    owners.restart()
    for index in range(3 * MANY, 4 * MANY):
        load(index)
    assert "load" not in text_of(owners)


def test_a_cache_that_the_program_has_frozen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in the first measurement of a process.
    monkeypatch.setattr(bounded_caches, "_seen", None)

    @functools.lru_cache(2 * MANY)
    def load(index: int) -> list[int]:
        return [index]

    gc.freeze()
    frozen = gc.get_freeze_count()
    owners = BoundedOwners()
    # Without the garbage among it.
    assert gc.get_freeze_count() > frozen / 2
    for index in range(MANY):
        load(index)
    assert "load: 2,000 of 4,000" in text_of(owners)


def test_an_executor_below_its_workers_is_named() -> None:
    held = threading.Event()
    with ThreadPoolExecutor(4) as executor:
        owners = BoundedOwners()
        for _ in range(3):
            executor.submit(held.wait)
        assert text_of(owners, "thread") == "ThreadPoolExecutor: 3 of 4"
        # It has threads, and opens nothing.
        assert text_of(owners, "fd") == ""
        held.set()


def test_owners_that_multiply_do_not_add_up_and_those_that_were_there_do() -> None:
    before = [deque[object](maxlen=50) for _ in range(2)]
    owners = BoundedOwners()
    made = [deque([[1]], maxlen=50) for _ in range(20)]
    filling = owners.filling("object")
    assert filling is not None
    assert filling.retained == 1
    for one in before:
        one.extend([i] for i in range(10))
    both = owners.filling("object")
    assert both is not None
    assert both.retained == 20 + 1
    assert len(made) == 20


def test_an_owner_explains_descriptors_only_where_it_holds_them(tmp_path: Path) -> None:
    log: deque[object] = deque(maxlen=100)
    owners = BoundedOwners()
    with ExitStack() as stack:
        files = [stack.enter_context((tmp_path / str(i)).open("w")) for i in range(20)]
        numbers = [file.fileno() for file in files]
        # Numbers of descriptors in plain data: to evict them closes nothing.
        log.extend({"id": number, "status": 200} for number in numbers)
        assert owners.filling("fd", numbers) is None
        # Nor do those of requests, though they overlap.
        log.extend(number - 5 for number in numbers)
        assert owners.filling("fd", numbers) is None
        log.extend(files[:15])
        filling = owners.filling("fd", numbers)
        assert filling is not None
        assert filling.retained == 15
        log.clear()
        log.extend(numbers)
        by_number = owners.filling("fd", numbers)
        assert by_number is not None
        assert by_number.retained == 20


def test_a_full_owner_explains_growth_only_while_larger_entries_replace_smaller_ones() -> None:
    entries = deque([[0] for _ in range(100)], maxlen=100)
    owners = BoundedOwners()
    for _ in range(50):
        entries.append([0] * 500)
    larger = owners.filling("heap")
    assert larger is not None
    assert (larger.text, larger.entries, larger.full) == ("deque(maxlen): 100 of 100", 50, True)
    assert larger.retained == pytest.approx(50 * 4056, rel=0.05)
    owners.restart()
    for _ in range(100):
        entries.append([0] * 500)
    # Which entries were evicted is not known any more, so that this explains growth as well, once.
    assert owners.filling("heap") is not None
    owners.restart()
    for _ in range(100):
        entries.append([0] * 500)
    assert owners.filling("heap") is None


def test_a_full_owner_whose_entries_stay_alike_hides_no_leak() -> None:
    entries = deque([[number] * 500 for number in range(1000, 1100)], maxlen=100)
    cache = functools.lru_cache(100)(lambda key: [key] * 500)
    for number in range(1000, 1100):
        cache(number)
    owners = BoundedOwners()
    for number in range(2000, 2050):
        entries.append([number] * 500)
        cache(number)
    assert owners.filling("heap") is None


@pytest.mark.parametrize(("gained", "full"), [(40, False), (60, True)])
def test_several_owners_count_as_full_if_those_that_are_full_hold_half_of_the_growth(
    gained: int, *, full: bool
) -> None:
    filling, filled = deque[object](maxlen=1000), deque[object](maxlen=gained)
    owners = BoundedOwners()
    filling.extend([i] for i in range(100 - gained))
    filled.extend([i] for i in range(gained))
    found = owners.filling("object")
    assert found is not None
    assert (found.retained, found.full) == (100, full)


def explains(old: Callable[[], object], new: Callable[[], object], count: int = 1) -> bool:
    """Return whether new entries in place of some of the old ones explain growth."""
    entries = deque((old() for _ in range(2 * count)), maxlen=2 * count)
    owners = BoundedOwners()
    entries.extend(new() for _ in range(count))
    return owners.filling("object") is not None


@pytest.mark.parametrize(("size", "larger"), [(1050, False), (1500, True)])
def test_entries_a_tenth_larger_than_those_they_replace_explain_growth(size: int, *, larger: bool) -> None:
    assert explains(lambda: [bytearray(1000)], lambda: [bytearray(size)]) is larger


@pytest.mark.parametrize(("depth", "seen"), [(5, True), (6, False)])
def test_entries_are_compared_as_far_as_five_references_lead(depth: int, *, seen: bool) -> None:
    def nested(size: int) -> object:
        part: object = bytearray(size)
        for _ in range(depth):
            part = [part]
        return part

    assert explains(lambda: nested(1), lambda: nested(1000)) is seen


@pytest.mark.parametrize(("parts", "seen"), [(15_000, True), (25_000, False)])
def test_entries_are_compared_up_to_twenty_thousand_parts(parts: int, *, seen: bool) -> None:
    def wide(size: int) -> object:
        return [[bytearray(size)] for _ in range(parts)]

    assert explains(lambda: wide(1), lambda: wide(100)) is seen


def test_only_the_32_newest_entries_are_compared_with_as_many_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def size_of(part: object) -> int:
        compared.append(part)
        return 1

    monkeypatch.setattr(bounded_caches, "size_of", size_of)
    assert not explains(list, list, 100)
    assert len(compared) == 2 * 32


@pytest.mark.parametrize(("number", "own"), [("-6", True), ("-5", False), ("256", False), ("10000", True)])
def test_a_number_that_the_interpreter_keeps_is_no_part_of_an_entry(number: str, *, own: bool) -> None:
    assert explains(lambda: [None] * 10, lambda: [None] * 9 + [int(number)]) is own


@pytest.mark.parametrize(("entries", "bound", "may_fill"), [(400, 0, True), (600, 0, False), (600, 700, True)])
def test_what_has_five_hundred_entries_is_no_cache_unless_its_bound_is_known(
    entries: int, bound: int, *, may_fill: bool
) -> None:
    kept = Pruned(dict.fromkeys(range(entries)), "SESSIONS", Eviction("close()", bound))
    assert BoundedOwners().add_pruned(kept) is may_fill
