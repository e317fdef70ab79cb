from __future__ import annotations

import pytest

from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.judge.screening import (
    AT_REST,
    ITERATIONS,
    SECOND_LOOK,
    at_rest,
    deserve_second_look,
    find_risen,
    screen,
)
from pytest_leakcheck.model.recording import Series


def passes(resource: str, *readings: int, released: tuple[int, ...] = ()) -> bool:
    assert len(readings) - 1 in (ITERATIONS, SECOND_LOOK)
    return bool(screen([(Series(resource, readings, released), default_budget(resource))]))


@pytest.mark.parametrize("resource", ["fd", "thread", "object", "block"])
def test_a_count_that_rises_in_every_or_every_second_iteration_does_not_pass(resource: str) -> None:
    assert passes(resource, 7, 7, 7, 7, 7)
    assert not passes(resource, 7, 8, 9, 10, 11)
    assert not passes(resource, 7, 8, 8, 9, 9)
    assert not passes(resource, 7, 7, 8, 8, 9)
    # What the first iterations allocate once is no growth, nor is what comes and goes.
    assert passes(resource, 7, 9, 12, 12, 12)
    assert passes(resource, 7, 7, 8, 9, 8)


def rests(resource: str, *readings: int, released: tuple[int, ...] = ()) -> bool:
    assert len(readings) - 1 == AT_REST
    return bool(at_rest([(Series(resource, readings, released), default_budget(resource))]))


@pytest.mark.parametrize("resource", ["fd", "thread", "object", "block"])
def test_two_iterations_decide_only_if_a_count_does_not_move_at_all(resource: str) -> None:
    assert rests(resource, 7, 7, 7)
    assert not rests(resource, 7, 8, 9)
    # Every second iteration.
    assert not rests(resource, 7, 8, 8)
    assert not rests(resource, 7, 7, 8)
    # A fall may hide a rise, and what came and went may stay next time.
    assert not rests(resource, 7, 5, 5)
    assert not rests(resource, 7, 8, 7)


def test_bytes_may_move_by_less_than_the_floor_in_two_iterations() -> None:
    (verdict,) = at_rest([(Series("heap", (0, -300, 500)), Budget("heap", explicit=False))])
    assert (verdict.outcome, verdict.iterations, verdict.floor, verdict.explicit) == ("ok", AT_REST, 256.0, False)
    assert not rests("heap", 0, 256, 512)
    assert not rests("heap", 0, -512, 0)
    mib = 1 << 20
    # Resident memory is not exact: a fall is no event.
    assert rests("rss", 0, -8 * mib, -8 * mib)
    assert not rests("rss", 0, 2 * mib, 4 * mib)


def test_what_only_the_collector_releases_in_two_iterations_is_no_rest() -> None:
    assert not rests("fd", 7, 7, 7, released=(1, 0))
    assert not rests("fd", 7, 7, 7, released=(0, 1))


def test_the_floor_of_two_iterations_is_that_of_the_longer_screen() -> None:
    for resource in ("block", "heap", "rss", "fd"):
        short, long = ((Series(resource, (7,) * (n + 1)), default_budget(resource)) for n in (AT_REST, ITERATIONS))
        assert at_rest([short])[0].floor == screen([long])[0].floor


def test_what_only_the_collector_releases_does_not_pass() -> None:
    assert passes("fd", 7, 7, 7, 7, 7, released=(1, 0, 0, 0))
    assert not passes("fd", 7, 7, 7, 7, 7, released=(0, 0, 1, 0))


def test_bytes_pass_below_the_floor_that_is_stated() -> None:
    (verdict,) = screen([(Series("heap", (0, 0, 0, 200, 400)), Budget("heap", explicit=False))])
    assert (verdict.outcome, verdict.iterations, verdict.floor, verdict.explicit) == ("ok", ITERATIONS, 256.0, False)
    assert not passes("heap", 0, 0, 0, 256, 512)
    # Without a budget, resident memory may grow by 256 KiB per iteration.
    each = 256 << 10
    assert passes("rss", 0, each, 2 * each, 3 * each, 4 * each)
    assert not passes("rss", 0, 2 * each, 4 * each, 6 * each, 8 * each)


def test_growth_that_the_full_judgement_tolerates_is_no_floor() -> None:
    """It tolerates one block in every second iteration."""
    (verdict,) = screen([(Series("block", (7,) * 5), default_budget("block"))])
    assert verdict.floor == 1.0
    (verdict,) = screen([(Series("rss", (7,) * 5), default_budget("rss"))])
    assert verdict.floor is None


def test_one_resource_that_rises_has_the_whole_test_judged_in_full() -> None:
    still, rising = Series("thread", (1,) * 5), Series("fd", tuple(range(5)))
    assert screen([(still, Budget("thread")), (rising, Budget("fd"))]) == ()
    assert [one.resource for one in screen([(still, Budget("thread")), (still, Budget("fd"))])] == ["thread", "thread"]


def is_looked_at_again(resource: str, *readings: int, released: tuple[int, ...] = ()) -> bool:
    risen = list(find_risen([(Series(resource, readings, released), default_budget(resource))]))
    assert risen
    return deserve_second_look(risen)


def test_what_may_have_risen_once_is_looked_at_again_after_four_more_iterations() -> None:
    assert is_looked_at_again("block", 7, 7, 7, 7, 10)
    assert is_looked_at_again("block", 7, 17, 7, 17, 17)
    assert not is_looked_at_again("block", 7, 8, 9, 10, 11)
    assert not is_looked_at_again("fd", 7, 7, 7, 7, 8, released=(0, 0, 1, 0))
    # Bytes may rise in both halves and nevertheless not for long.
    assert is_looked_at_again("heap", 0, 0, 576, 1664, 1664)
    assert passes("block", 7, 7, 7, 7, 10, 10, 10, 10, 10)
    assert passes("block", 7, 17, 7, 17, 17, 7, 7, 17, 7)
    assert not is_looked_at_again("block", 7, 7, 7, 7, 10, 10, 10, 10, 11)


@pytest.mark.parametrize("resource", ["fd", "thread", "object", "block"])
def test_a_leak_in_every_second_iteration_passes_neither_look(resource: str) -> None:
    for first in (0, 1):
        readings = [7 + (number + first) // 2 for number in range(SECOND_LOOK + 1)]
        assert not passes(resource, *readings[: ITERATIONS + 1])
        assert not passes(resource, *readings)


def test_the_second_look_states_a_lower_floor() -> None:
    (verdict,) = screen([(Series("object", (7, 7, 7, 7, 10, 10, 10, 10, 10)), Budget("object", explicit=False))])
    assert (verdict.outcome, verdict.iterations, verdict.floor) == ("ok", SECOND_LOOK, 0.25)


def test_what_caches_hold_is_subtracted_exactly() -> None:
    judged = [(Series("object", (0, 2, 4, 6, 8)), default_budget("object"))]
    assert not screen(judged)
    (verdict,) = screen(judged, {"object": 4})
    assert (verdict.outcome, verdict.floor, verdict.reason) == (
        "ok",
        0.5,
        "new entries of bounded caches hold 4 of them",
    )
    assert not screen(judged, {"object": 3})


def test_a_count_that_falls_once_between_its_rises_does_not_pass() -> None:
    assert not passes("block", 7, 8, 9, 8, 9)
    assert not is_looked_at_again("block", 7, 8, 9, 8, 9)
    assert not passes("block", 7, 8, 3, 4, 5, 6, 7, 2, 3)
    # What caches hold may come with a fall as well.
    assert screen([(Series("object", (0, 2, 4, 1, 3)), default_budget("object"))], {"object": 4})
