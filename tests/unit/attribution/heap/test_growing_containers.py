"""Which containers and values grow: identities, sizes, and what they are told apart by."""

from __future__ import annotations

import gc
import weakref

import pytest

import leaks
from pytest_leakcheck.attribution.heap.growing_containers import Census, Growing, fitting, newcomers

pytestmark = pytest.mark.usefixtures("_emptied")


@pytest.fixture
def _emptied() -> None:
    leaks.KEPT.clear()
    leaks.CACHE.clear()


def test_nothing_is_kept_alive() -> None:
    item = leaks.Item([1, 2, 3])
    leaks.KEPT.append(item)
    gone = weakref.ref(item)
    census = Census()
    leaks.KEPT.clear()
    del item
    assert gone() is None
    assert not [one for one in gc.get_referents(census) if type(one) in (list, dict)]


def test_a_dict_that_is_tracked_from_now_on_is_the_same_dict() -> None:
    leaks.CACHE["first"] = b""
    before = Census()
    gc.freeze()
    leaks.CACHE["second"] = []
    new = newcomers()
    gc.unfreeze()
    assert id(leaks.CACHE) in {id(one.holder) for one in before.grown(new)}


def test_an_identity_that_is_used_again_is_not_taken_for_growth() -> None:
    for make in (lambda count: ["x"] * count, lambda count: {(count, at): [at] for at in range(count)}):
        old = [make(1) for _ in range(3000)]
        places = set(map(id, old))
        before = Census()
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


@pytest.mark.parametrize(
    ("gained", "iterations", "rate", "fits"),
    [
        (8, 8, 1.0, True),
        (7, 8, 1.0, True),
        (1, 8, 1.0, False),
        (80, 8, 1.0, False),
        # An entry may hold several of what is counted.
        (8, 8, 5.0, True),
        (4, 8, None, True),
        (3, 8, None, False),
        (2, 24, 0.1, True),
        (3, 24, 0.1, True),
        (1, 24, 0.1, False),
        (24, 24, 0.1, False),
    ],
)
def test_a_rate_is_fitted_within_bounds(gained: int, iterations: int, rate: float | None, fits: bool) -> None:
    one = Growing([b""] * gained, gained)
    assert fitting([one], iterations, rate) == ((one,) if fits else ())


def test_entries_without_a_readable_size_are_believed_where_nothing_else_fits() -> None:
    numpy = pytest.importorskip("numpy")
    opaque = Growing([numpy.random.default_rng(at) for at in range(8)], 8)
    assert fitting([opaque], 8, size=70_000.0) == (opaque,)
    large = Growing([bytes(70_000 + at) for at in range(8)], 8)
    assert fitting([opaque, large], 8, size=70_000.0) == (large,)
