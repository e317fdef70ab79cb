"""Verdicts on a heap without threads' caches of freed blocks: sooner on what is steady, and on half the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable

from pytest_leakcheck.config.plan import ADAPTIVE
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.judge.judge_series import Context, judge
from pytest_leakcheck.model.recording import Series
from walks import budget


def quiet(resource: str, readings: Callable[[int], int], n: int, *, quiet_heap: bool = True) -> str | None:
    series = Series(resource, tuple(map(readings, range(n + 1))))
    verdict = judge(series, budget(resource), Context(quiet_heap=quiet_heap))
    return None if verdict is None else verdict.outcome


def test_a_quiet_heap_tells_steady_growth_after_half_the_horizon_and_on_half_the_tolerance() -> None:
    for bytes_each, n, expected, as_ever in (
        (128, 109, "leak", None),
        (128, 87, None, None),
        (12, 109, "leak", "ok"),
        (8, 109, "ok", "ok"),
        (0, 109, "ok", "ok"),
    ):
        assert quiet("heap", lambda i, each=bytes_each: 1000 + each * i, n) == expected  # type: ignore[misc]
        assert quiet("heap", lambda i, each=bytes_each: 1000 + each * i, n, quiet_heap=False) == as_ever  # type: ignore[misc]


def test_what_fills_unevenly_is_given_the_whole_horizon_on_a_quiet_heap_too() -> None:
    def uneven(i: int) -> int:
        return 1000 + 256 * (i - i // 5)

    assert [quiet("heap", uneven, n) for n in (109, 172, 215)] == [None, None, "leak"]


def test_a_cache_whose_filling_decays_is_no_leak_on_a_quiet_heap() -> None:
    """As numpy's of small blocks does: that of arrays of random sizes, measured."""

    def decays(i: int) -> int:
        return 1000 + round(100_000 * (1 - math.exp(-i / 150)))

    assert {quiet("heap", decays, n) for n in looks(ADAPTIVE)} == {None}


def test_no_other_resource_is_judged_otherwise_beside_a_quiet_heap() -> None:
    assert quiet("object", lambda i: 1000 + i, 109) is None
    assert quiet("object", lambda i: 1000 + i, 215) == "leak"


def test_a_single_larger_step_does_not_put_off_what_is_steady() -> None:
    """An interpreter's table doubles on the way: at iteration 40, 2.5 KiB in one that keeps 144 B each time."""
    assert quiet("heap", lambda i: 1000 + 144 * i + 2448 * (i >= 40), 128) == "leak"
    # A cache that fills ever more slowly is not steady.
    assert quiet("heap", lambda i: 1000 + int(3000 * math.log1p(i)), 128) is None
