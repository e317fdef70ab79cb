"""What holds what a step keeps, asked as the plugin asks it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import leaks
from hostile import Hostile
from leaks import Step
from pytest_leakcheck.attribution.heap.growing_containers import Census, newcomers
from pytest_leakcheck.attribution.heap.owner_search import Holders, SearchTarget, find_owners
from pytest_leakcheck.model.culprit import Owner

WARM = 12
MORE = 8


def forget() -> None:
    """Release what any step has kept in variables of the module and of its classes."""
    Hostile.armed = False
    for container in (leaks.KEPT, leaks.CACHE, leaks.LIVE_KEYS, leaks.Trainer.history):
        container.clear()
    leaks.chain.beside = None


def holders_of(
    step: Callable[[int], object],
    kind: type | None = None,
    *,
    rate: float | None = 1.0,
    size: float | None = None,
    more: int = MORE,
    remaining: int | None = None,
) -> Holders:
    """As the caller does it; `kind`: of what the survivors are; `remaining`: how many of them replaced no other."""
    gc.freeze()
    for i in range(WARM):
        step(i)
    gc.collect()
    first = newcomers()
    survivors = [one for one in gc.get_objects() if type(one) is kind]
    gc.unfreeze()
    before = Census(values=True)
    gc.freeze()
    for i in range(WARM, WARM + more):
        step(i)
        gc.collect()
    second = newcomers()
    gc.unfreeze()
    growing = before.grown(second)
    return find_owners(
        SearchTarget(more, rate, size, more=None if remaining is None else {id(kind): remaining}),
        growing,
        survivors,
        first | second,
    )


def owner_of(step: Callable[[int], object], kind: type | None = None, **hints: Any) -> Owner:
    holders = holders_of(step, kind, **hints)
    assert len(holders.owners) == 1, holders
    assert not holders.reason
    return holders.owners[0]


def is_named_until_fixed(step: Step, name: str, kind: type | None = None, **hints: Any) -> Owner:
    owner = owner_of(lambda i: step(i, True), kind, **hints)
    assert owner.name == name
    assert sum(one.suspect for one in owner.steps) == 1
    fixed = holders_of(lambda i: step(i, False), None, **hints)
    assert name not in [one.name for one in fixed.owners]
    assert fixed.owners or fixed.reason
    return owner
