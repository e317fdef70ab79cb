"""Which containers and values grow: identities, sizes, and what they are told apart by."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

import leaks
from pytest_leakcheck.attribution.heap.growing_containers import Census, GrowingContainer, fitting, newcomers

pytestmark = pytest.mark.usefixtures("_emptied")


@pytest.fixture
def _emptied() -> None:
    leaks.KEPT.clear()
    leaks.CACHE.clear()


def test_nothing_is_kept_alive() -> None:
    item = leaks.Item([1, 2, 3])
    leaks.KEPT.append(item)
    gone = weakref.ref(item)
    census = Census(values=True)
    leaks.KEPT.clear()
    del item
    assert gone() is None
    assert not [one for one in gc.get_referents(census) if type(one) in (list, dict)]


def test_an_identity_that_is_used_again_is_not_taken_for_growth() -> None:
    for make in (lambda count: ["x"] * count, lambda count: {(count, at): [at] for at in range(count)}):
        old = [make(1) for _ in range(3000)]
        places = set(map(id, old))
        before = Census(values=True)
        gc.freeze()
        old.clear()
        leaks.KEPT.extend(make(30) for _ in range(6000))
        again = [one for one in leaks.KEPT if id(one) in places]
        new = newcomers()
        gc.unfreeze()
        assert again, "no identity was used again"
        taken = {id(one.holder) for one in before.grown(new)}
        assert not taken & set(map(id, again))
        leaks.KEPT.clear()


def test_entries_without_a_readable_size_are_believed_where_nothing_else_fits() -> None:
    numpy = pytest.importorskip("numpy")
    opaque = GrowingContainer([numpy.random.default_rng(at) for at in range(8)], 8)
    assert fitting([opaque], 8, size=70_000.0) == (opaque,)
    large = GrowingContainer([bytes(70_000 + at) for at in range(8)], 8)
    assert fitting([opaque, large], 8, size=70_000.0) == (large,)


def gained(*counts: int, size: int = 100) -> list[GrowingContainer]:
    """Sets that have gained so many elements of `size` bytes each."""
    length = size - sys.getsizeof(b"")
    return [GrowingContainer({at.to_bytes(length, "little") for at in range(count)}, count) for count in counts]


def counts_that_fit(growing: list[GrowingContainer], iterations: int, rate: float | None) -> list[int]:
    return [one.gained for one in fitting(growing, iterations, rate)]


@pytest.mark.parametrize(("count", "fits"), [(3, False), (4, True), (17, True), (18, False)])
def test_a_container_fits_with_half_to_twice_the_expected_entries(count: int, *, fits: bool) -> None:
    assert bool(fitting(gained(count), 8, 1.0)) is fits


def test_beside_a_container_with_about_the_expected_entries_others_fit_up_to_a_quarter_off() -> None:
    assert counts_that_fit(gained(14, 15, 20, 25, 26), 20, 1.0) == [25, 20, 15]


@pytest.mark.parametrize(("count", "rate", "fits"), [(1, 0.1, False), (2, 0.2, True)])
def test_one_entry_is_too_few_if_two_are_expected(count: int, rate: float, *, fits: bool) -> None:
    assert bool(fitting(gained(count), 20, rate)) is fits


@pytest.mark.parametrize(("size", "fits"), [(240, False), (260, True), (3900, True), (4100, False)])
def test_entries_fit_from_a_quarter_to_four_times_the_expected_bytes(size: int, *, fits: bool) -> None:
    assert bool(fitting(gained(8, size=size), 8, size=1000.0)) is fits


class Holder:
    def __init__(self) -> None:
        self.value = b""


@pytest.mark.parametrize(("size", "is_seen"), [(180, False), (220, True)])
def test_a_value_of_more_than_200_bytes_is_recorded(size: int, *, is_seen: bool) -> None:
    holder = Holder()
    holder.value = bytes(size - sys.getsizeof(b""))
    census = Census(values=True)
    holder.value += b"12345"
    gains = [one.gained for one in census.grown() if one.holder is holder or one.holder is vars(holder)]
    assert gains == [5] * is_seen
