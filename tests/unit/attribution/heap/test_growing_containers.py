"""Which containers and values grow: identities, sizes, and what they are told apart by."""

from __future__ import annotations

import gc
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
