"""Bounded owners are found again without a walk over all objects, as long as no new object can be among the old ones."""

from __future__ import annotations

import gc
from collections import deque
from math import inf

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.probes import garbage_collector
from pytest_leakcheck.runner.bounded_caches import BoundedOwners
from repeats import Clock, verdict_on

MANY = 2000


def text_of(owners: BoundedOwners) -> str:
    filling = owners.filling("object")
    return filling.text if filling is not None else ""


@pytest.mark.parametrize("promoted", [False, True])
def test_the_next_measurement_knows_old_owners_and_finds_new_ones(promoted: bool) -> None:
    """A new one among the old objects, of which there are too many to walk in each measurement, is found on suspicion."""
    old: deque[list[int]] = deque(maxlen=3 * MANY)
    old.append([])
    BoundedOwners().keep()
    new: deque[list[int]] = deque(maxlen=2 * MANY)
    new.extend([[], []])
    if promoted:
        gc.collect()
    owners = BoundedOwners()
    gc.freeze()
    new.extend([number] for number in range(10))
    assert ("12 of 4,000" in text_of(owners)) is not promoted
    gc.unfreeze()
    assert owners.find_earlier(()) or not promoted
    assert not owners.find_earlier(())
    old.extend([number] for number in range(MANY))
    assert f"{MANY + 1:,} of {3 * MANY:,}" in text_of(owners)
    new.extend([number] for number in range(MANY + 100))
    assert f"{MANY + 112:,} of {2 * MANY:,}" in text_of(owners)


@pytest.mark.parametrize(
    ("of_cache", "reason"),
    [
        (False, "+1.0/iter sustained over 17 iterations"),
        # It holds them, and had as many places at the start for all that is known.
        (True, "bounded cache still filling: deque(maxlen): "),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_without_time_to_begin_again_a_cache_that_was_unknown_explains_only_what_it_holds(
    of_cache: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict_on(int, Budget("object")).outcome == "ok"
    late, kept = deque[object]([[]], maxlen=300), list[object]()
    gc.collect()
    clock = Clock(monkeypatch)

    def work() -> None:
        clock.take(0.1)
        file = open("/dev/null")  # noqa: PTH123, SIM115 - kept, and closed by being dropped
        late.append(file if of_cache else [])
        kept.append(None if of_cache else file)

    verdict = verdict_on(work, Budget("fd"), max_time=2.1, min_time=3)
    assert verdict.outcome == ("inconclusive" if of_cache else "leak")
    assert verdict.reason.startswith(reason)
    assert ("--leakcheck-max-time=" in verdict.advice) is of_cache


def test_a_clean_test_walks_all_objects_only_in_the_first_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict_on(int, Budget("object")).outcome == "ok"
    gc.collect()
    everything = len(gc.get_objects())
    walked = [0]
    list_objects, collect = gc.get_objects, gc.collect

    def list_and_count(*generation: int) -> list[object]:
        found = list_objects(*generation)
        walked.append(len(found))
        return found

    def collect_and_count(*generation: int) -> int:
        walked.append(0 if generation else everything - gc.get_freeze_count())
        return collect(*generation)

    # None is due because time has passed.
    monkeypatch.setattr(garbage_collector.CollectorWatch, "_next_walk", inf)
    monkeypatch.setattr(garbage_collector, "_collect", collect_and_count)
    monkeypatch.setattr(gc, "get_objects", list_and_count)
    assert verdict_on(int, Budget("object")).outcome == "ok"
    assert max(walked) < everything / 4, walked
