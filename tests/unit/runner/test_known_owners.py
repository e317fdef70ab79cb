"""Bounded owners are found again without a walk over all objects, as long as no new object can be among the old ones."""

from __future__ import annotations

import gc
from collections import deque

import pytest

from pytest_leakcheck.runner.bounded_caches import BoundedOwners, keep_owners

MANY = 2000


def text_of(owners: BoundedOwners) -> str:
    filling = owners.filling("object")
    return filling.text if filling is not None else ""


@pytest.mark.parametrize("promoted", [False, True])
def test_the_next_measurement_knows_old_owners_and_finds_new_ones(promoted: bool) -> None:
    """Whether new objects have become old in the meantime, so that all are walked again, or not."""
    old: deque[list[int]] = deque(maxlen=3 * MANY)
    old.append([])
    BoundedOwners()
    keep_owners()
    new: deque[list[int]] = deque(maxlen=2 * MANY)
    new.extend([[], []])
    if promoted:
        gc.collect()
    owners = BoundedOwners()
    assert "deque" not in text_of(owners)
    old.extend([number] for number in range(MANY))
    assert f"{MANY + 1:,} of {3 * MANY:,}" in text_of(owners)
    new.extend([number] for number in range(MANY + 100))
    assert f"{MANY + 102:,} of {2 * MANY:,}" in text_of(owners)
