"""The verdicts, pinned by literal series: each is walked look by look, as a repetition does, until one is given."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.config.plan import ADAPTIVE, Effort
from pytest_leakcheck.judge.exhaustion import ran_out
from pytest_leakcheck.judge.growth import growth, looks
from pytest_leakcheck.judge.judge_series import Context, Hint, judge, judge_once
from pytest_leakcheck.model.recording import Series
from walks import budget, walk

KIB, MIB, GIB = 2**10, 2**20, 2**30
MORE = "iterations would decide it: --leakcheck-iterations, --leakcheck-max-time"


def by_default(resource: str) -> Budget:
    return Budget(resource, explicit=False)


# The truth table.


def test_zero_allowed_and_one_more_every_iteration_is_a_leak() -> None:
    verdict = walk(budget("fd", 0), lambda i: 11 + i)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 1.0, 17)
    assert verdict.reason == "+1.0/iter sustained over 17 iterations"
    assert walk(budget("fd", 0), lambda _: 11).outcome == "ok"


def test_zero_allowed_and_one_step_is_over_budget_with_both_ways_out() -> None:
    verdict = walk(budget("fd", 0), lambda i: 11 + (i >= 7))
    assert (verdict.outcome, verdict.level, verdict.slope) == ("over_budget", 1, 0.0)
    assert verdict.reason == "one-off +1 at iteration 7, 0 allowed"
    assert verdict.advice == "if it is meant to stay: fd_budget(1), or fd_budget() to bound growth only"


# Up to the last iteration before the first look that may say ok.
@pytest.mark.parametrize("at", range(1, 14))
def test_a_step_is_over_budget_at_whichever_iteration_it_comes(at: int) -> None:
    verdict = walk(budget("fd", 0), lambda i: 11 + (i >= at))
    assert (verdict.outcome, verdict.reason) == ("over_budget", f"one-off +1 at iteration {at}, 0 allowed")


@pytest.mark.parametrize("held_to", [budget("fd"), by_default("fd"), budget("fd", 1)])
def test_growth_alone_bounded_and_one_step_is_ok_and_noted(held_to: Budget) -> None:
    verdict = walk(held_to, lambda i: 11 + (i >= 7))
    assert (verdict.outcome, verdict.reason) == ("ok", "one-off +1 at iteration 7")


def test_three_allowed_and_three_kept_is_ok() -> None:
    verdict = walk(budget("fd", 3), lambda i: 11 + min(i, 3))
    assert (verdict.outcome, verdict.level, verdict.reason) == ("ok", 3, "settles at +3")


def test_three_allowed_and_four_kept_is_over_budget_without_a_horizon() -> None:
    verdict = walk(budget("fd", 3), lambda i: 11 + min(i, 4))
    assert (verdict.outcome, verdict.reason) == ("over_budget", "settles at +4, 3 allowed")
    assert verdict.iterations <= 28


def test_three_allowed_and_one_more_every_tenth_for_ever_is_a_leak() -> None:
    verdict = walk(budget("fd", 3), lambda i: 11 + i // 10)
    assert verdict.outcome == "leak"
    assert verdict.slope == pytest.approx(0.1, rel=0.05)


def test_a_level_over_a_run_is_judged_by_what_the_growth_comes_to() -> None:
    held_to = budget("rss", "2 GiB", over=100_000)
    verdict = walk(held_to, lambda i: 50 * MIB + 30 * KIB * i)
    assert verdict.outcome == "over_budget"
    assert verdict.reason == "2.9 GiB after 100,000 iterations at +30.0 KiB/iter, 2.0 GiB allowed"
    fixed = walk(replace(held_to, level=3 * GIB), lambda i: 50 * MIB + 30 * KIB * i)
    assert (fixed.outcome, fixed.floor is not None) == ("ok", True)


# More shapes of the scarce counters.


def test_one_more_every_fourth_is_found_within_a_hundred_iterations() -> None:
    verdict = walk(budget("fd"), lambda i: i // 4)
    assert (verdict.outcome, verdict.slope) == ("leak", 0.25)
    assert verdict.iterations <= 100


@pytest.mark.parametrize("every", range(1, 11))
def test_a_leak_at_every_tenth_iteration_or_more_often_is_found(every: int) -> None:
    assert walk(by_default("fd"), lambda i: i // every).outcome == "leak"


@pytest.mark.parametrize("resource", ["fd", "heap", "object"])
def test_a_sawtooth_is_clean(resource: str) -> None:
    assert walk(budget(resource, 0), lambda i: i % 10 * 1000).outcome == "ok"


def test_a_rate_that_is_allowed_is_no_leak_and_one_beyond_it_is() -> None:
    held_to = budget("fd", per_iteration=2)
    assert walk(held_to, lambda i: 2 * i).outcome == "ok"
    verdict = walk(held_to, lambda i: 3 * i)
    assert verdict.reason == "+3.0/iter sustained over 17 iterations, +2.0/iter allowed"


# Memory and gc objects: caches fill.


@pytest.mark.parametrize("resource", ["heap", "object"])
@pytest.mark.parametrize("size", [64, 128, 200])
def test_a_filling_cache_is_never_a_leak_and_what_goes_on_is(resource: str, size: int) -> None:
    assert walk(budget(resource), lambda i: 1000 * min(i, size)).outcome in ("ok", "inconclusive")
    verdict = walk(budget(resource), lambda i: 1000 * i)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 1000.0, 229)


def test_what_is_freed_once_beside_a_leak_changes_no_rate_of_a_count() -> None:
    verdict = walk(budget("block"), lambda i: i - 11 * (i > 130))
    assert (verdict.outcome, verdict.slope) == ("leak", 1.0)


def test_a_cache_that_grows_with_the_logarithm_is_never_a_leak() -> None:
    verdict = walk(budget("heap"), lambda i: int(100_000 * math.log1p(i)))
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "still growing, ever more slowly: +774 B/iter, then +272 B/iter"
    assert verdict.advice.startswith("about 1124 iterations would decide it: ")


def test_a_bounded_owner_explains_growth_and_is_named_only_at_the_end() -> None:
    context = Context()
    hint = Hint("bounded cache still filling: lru_cache of load: 128 of 256")
    series = Series("heap", tuple(1000 * i for i in range(ADAPTIVE + 1)))
    assert judge(series, budget("heap"), context, hint) is None
    verdict = judge(series, budget("heap"), replace(context, final=True), hint)
    assert verdict is not None
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "bounded cache still filling: lru_cache of load: 128 of 256"
    assert verdict.advice == f"about 1124 {MORE}"
    alone = judge(series, budget("heap"), replace(context, final=True))
    assert alone is not None
    assert alone.outcome == "leak"


def test_resident_memory_without_a_budget_is_in_doubt_if_it_grows_fast_and_long() -> None:
    unnamed = default_budget("rss")
    verdict = walk(unnamed, lambda i: 2 * MIB * i)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("inconclusive", 2.0 * MIB, 36)
    assert verdict.reason.startswith("+2.0 MiB/iter sustained over 36 iterations, while the exact memory counters")
    assert verdict.advice == "to have it judged, set a budget: rss_budget()"
    assert walk(budget("rss"), lambda i: 2 * MIB * i).outcome == "leak"
    assert walk(unnamed, lambda i: MIB * i).outcome == "ok"
    # Fragmentation slows down.
    assert walk(unnamed, lambda i: int(20 * MIB * i**0.6)).outcome == "inconclusive"
    # Growth that would kill the process soon must last as long.
    assert walk(unnamed, lambda i: 50 * MIB * i, headroom=24 * GIB).iterations == 36


def test_resident_memory_without_a_budget_is_judged_for_what_exact_counters_do_not_show() -> None:
    series = Series("rss", tuple(3 * MIB * i for i in range(60)))
    shown = judge(series, default_budget("rss"), Context(), Hint(rate=2.5 * MIB))
    assert shown is not None
    assert shown.outcome == "ok"
    rest = judge(series, default_budget("rss"), Context(), Hint(rate=1.0 * MIB))
    assert rest is not None
    assert (rest.outcome, rest.slope) == ("inconclusive", 2.0 * MIB)


def test_growth_that_goes_on_without_the_test_is_in_doubt_at_once() -> None:
    series = Series("fd", tuple(range(20)))
    verdict = judge(series, budget("fd"), Context(), Hint("also grows while the test is paused", advice="stop it"))
    assert verdict is not None
    assert (verdict.outcome, verdict.reason, verdict.advice) == (
        "inconclusive",
        "also grows while the test is paused",
        "stop it",
    )
    alone = judge(series, budget("fd"))
    assert alone is not None
    assert alone.outcome == "leak"


def test_growth_that_would_kill_the_process_within_a_run_needs_no_horizon() -> None:
    def fifty_mib(i: int) -> int:
        return 50 * MIB * i

    verdict = walk(budget("rss"), fifty_mib, headroom=24 * GIB)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 50.0 * MIB, 17)
    assert walk(budget("rss"), fifty_mib, headroom=24 * GIB, run_length=100).iterations == 229
    assert walk(budget("rss"), fifty_mib).iterations == 229


def test_resident_memory_that_the_allocator_keeps_is_no_leak() -> None:
    """It fragments, ever more slowly."""
    verdict = walk(budget("rss"), lambda i: int(900 * KIB * i**0.5), exact_flat=True)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("held by the allocator: +3")
    assert verdict.reason.endswith("/iter over 229 iterations, while the exact memory counters do not grow")
    assert walk(budget("rss"), lambda i: int(900 * KIB * i**0.5), exact_flat=False).outcome == "leak"
    # The excuse is that of resident memory alone.
    assert walk(budget("heap"), lambda i: 40 * KIB * i, exact_flat=True).outcome == "leak"


def test_memory_of_a_child_is_a_leak_if_it_keeps_its_rate() -> None:
    """Nothing is trimmed there, and nothing else is counted."""
    verdict = walk(budget("rss"), lambda i: int(900 * KIB * i**0.5), in_child=True)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.endswith("/iter over 229 iterations: it may be held by the allocator of the child")
    verdict = walk(budget("rss"), lambda i: 40 * KIB * i, in_child=True)
    assert (verdict.outcome, verdict.reason) == ("leak", "+40.0 KiB/iter sustained over 229 iterations")


@pytest.mark.parametrize("page", [4 * KIB, 40 * KIB])
def test_resident_memory_that_keeps_its_rate_is_a_leak_that_no_allocator_counts(page: int) -> None:
    """As pages of one large mapping that are touched one by one."""
    verdict = walk(budget("rss"), lambda i: page * i, exact_flat=True)
    assert verdict.outcome == "leak"
    assert verdict.reason.endswith(
        ", while the exact memory counters do not grow: it is mapped, or allocated past malloc"
    )


def test_a_level_within_the_noise_of_resident_memory_is_inconclusive() -> None:
    def noisy(i: int) -> int:
        return 100 * KIB * (i > 0) + 400 * KIB * (i % 3 == 1)

    verdict = walk(budget("rss", 0), noisy)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "100 KiB above the start, 0 B allowed; the noise of this run is 400 KiB"
    assert verdict.advice == "set a level above the noise, or bound growth only"
    clear = walk(budget("rss", 0), lambda i: 5 * MIB * (i > 0))
    assert (clear.outcome, clear.reason) == ("over_budget", "settles at +5.0 MiB, 0 B allowed")
    assert 'rss_budget("5.0 MiB")' in clear.advice


@pytest.mark.parametrize(
    ("grown", "n", "reason", "needed"),
    [
        (lambda i: 1000 * i, 60, "grew +1000 B/iter over 60 iterations; a cache may take up to 100 to fill", 120),
        (lambda _: 0, 40, "40 iterations, 50 needed", 50),
    ],
)
def test_at_the_end_it_is_said_what_is_missing(grown: Callable[[int], int], n: int, reason: str, needed: int) -> None:
    verdict = judge(
        Series("heap", tuple(map(grown, range(n + 1)))),
        budget("heap"),
        Context(final=True, effort=Effort(iterations=100)),
    )
    assert verdict is not None
    assert (verdict.outcome, verdict.reason, verdict.advice) == ("inconclusive", reason, f"about {needed} {MORE}")


def test_an_unexplained_wandering_is_inconclusive_with_its_size() -> None:
    source, readings = random.Random(0), [0]
    for i in range(ADAPTIVE):
        readings.append(readings[-1] + 2000 * (source.random() < (0.1 if i < 100 else 0.04)))
    verdict = walk(budget("heap"), readings)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "rises unevenly, +75 B/iter overall"


def test_a_run_that_may_go_on_gets_no_verdict_before_its_time() -> None:
    assert judge(Series("fd", (11,) * 13), budget("fd")) is None
    assert judge(Series("fd", (11,) * 14), budget("fd")) is not None
    assert judge(Series("heap", (11,) * 50), budget("heap")) is None
    assert judge(Series("heap", (11,) * 51), budget("heap")) is not None


# Noise.


def iid(source: random.Random) -> list[int]:
    return [source.randrange(200_000) for _ in range(ADAPTIVE + 1)]


def spiky(source: random.Random) -> list[int]:
    return [1_000_000 + source.randrange(5_000_000 if source.random() < 0.1 else 2000) for _ in range(ADAPTIVE + 1)]


def autoregressive(source: random.Random) -> list[int]:
    value, readings = 0.0, []
    for _ in range(ADAPTIVE + 1):
        value = 0.8 * value + source.gauss(0, 20_000)
        readings.append(int(10_000_000 + value))
    return readings


@pytest.mark.parametrize("noise", [iid, spiky, autoregressive])
def test_noise_is_never_a_leak_and_a_slope_within_it_always_is(noise: Callable[[random.Random], list[int]]) -> None:
    outcomes = [walk(budget("heap"), noise(random.Random(seed))).outcome for seed in range(100)]
    assert "leak" not in outcomes
    # And it is not merely left undecided: nearly all of it is judged clean.
    assert outcomes.count("ok") > 90
    for seed in range(15):
        planted = [value + 15_000 * i for i, value in enumerate(noise(random.Random(seed)))]
        assert walk(budget("heap"), planted).outcome == "leak"


# What the collector alone gave back.


def test_what_only_the_collector_closes_is_unclosed() -> None:
    verdict = walk(budget("fd", 0), lambda _: 11, released=lambda _: 2)
    assert (verdict.outcome, verdict.slope, verdict.iterations, verdict.level) == ("unclosed", 2.0, 17, 0)
    assert verdict.reason == "2 descriptors per iteration released by the garbage collector only"
    assert verdict.advice == "close them when done: the collector runs late, or never if it is disabled"
    assert verdict.explicit
    assert walk(budget("fd", 0), lambda _: 11, released=lambda _: 0).outcome == "ok"


def test_unclosed_may_be_allowed_or_only_warned_of() -> None:
    assert walk(budget("fd", 0, unclosed="allow"), lambda _: 11, released=lambda _: 2).outcome == "ok"
    warned = walk(budget("fd", 0, unclosed="warn"), lambda _: 11, released=lambda _: 2)
    assert (warned.outcome, warned.tolerated) == ("unclosed", True)


def test_what_the_collector_closed_once_is_ok_once_it_is_settled() -> None:
    verdict = walk(budget("fd", 0), lambda _: 11, released=lambda i: int(i == 4))
    assert verdict.outcome == "ok"
    # The clean counter alone would have been enough after 13; the collector's share is waited for.
    assert verdict.iterations > 13


# The floor.


@pytest.mark.parametrize("n", [13, 20, 46, 100])
def test_the_floor_of_an_exact_counter_would_have_spoilt_the_ok_and_become_a_leak(n: int) -> None:
    clean = judge(Series("fd", (11,) * (n + 1)), budget("fd"), Context(final=True))
    assert clean is not None
    assert clean.floor is not None
    floor = clean.floor
    planted = tuple(11 + int(floor * i) for i in range(ADAPTIVE * 4))
    spoilt = judge(Series("fd", planted[: n + 1]), budget("fd"), Context(final=True))
    assert spoilt is not None
    assert spoilt.outcome != "ok"
    assert any(growth(planted[: at + 1], 0.0, 16, exact=True).state == "growing" for at in looks(len(planted) - 1))


def test_only_an_ok_has_a_floor() -> None:
    assert walk(budget("fd", 0), lambda i: i).floor is None
    assert walk(budget("fd", 0), lambda i: int(i >= 7)).floor is None
    assert walk(budget("heap"), lambda _: 5).floor == 37.5


# A process that ran out, and a block that ran once.


def test_growth_up_to_the_failure_is_a_leak() -> None:
    verdict = ran_out(Series("fd", (11, 12, 13, 15)), by_default("fd"), "OSError: [Errno 24] Too many open files")
    assert verdict is not None
    assert (verdict.outcome, verdict.level, verdict.iterations, verdict.explicit) == ("leak", 4, 3, False)
    assert verdict.slope == pytest.approx(4 / 3)
    assert verdict.reason == "+1.3/iter over 3 iterations, then OSError: [Errno 24] Too many open files"


@pytest.mark.parametrize(
    "readings", [(11,), (11, 11, 11, 11), (11, 12, 12, 12, 12), (11, 12, 11, 12, 11), (14, 13, 12)]
)
def test_a_counter_that_did_not_grow_up_to_the_failure_is_not_the_cause(readings: tuple[int, ...]) -> None:
    assert ran_out(Series("fd", readings), budget("fd"), "MemoryError: ") is None


@pytest.mark.parametrize(
    ("held_to", "readings", "released", "outcome", "reason"),
    [
        (budget("fd", 0), (11, 11), (0,), "ok", ""),
        (budget("fd", 1), (11, 12), (0,), "ok", ""),
        (budget("fd", 0), (11, 10), (0,), "ok", ""),
        (budget("fd", 0), (11, 12), (0,), "over_budget", "+1 after the block, 0 allowed"),
        (budget("fd"), (11, 12), (0,), "over_budget", "+1 after the block, 0 allowed"),
        (budget("heap", "1 KiB"), (0, 8192), (), "over_budget", "+8.0 KiB after the block, 1.0 KiB allowed"),
        (budget("heap", "1 KiB"), (0, 2048), (), "ok", ""),
        (budget("rss", 0), (0, 8192), (), "inconclusive", "+8.0 KiB after the block, 0 B allowed"),
        (budget("rss", 0), (0, MIB), (), "over_budget", "+1.0 MiB after the block, 0 B allowed"),
        (budget("fd", 0), (11, 11), (2,), "unclosed", "2 descriptors released by the garbage collector only"),
        (budget("fd", 0, unclosed="allow"), (11, 11), (2,), "ok", ""),
    ],
)
def test_a_block_is_judged_by_its_difference(
    held_to: Budget, readings: tuple[int, ...], released: tuple[int, ...], outcome: str, reason: str
) -> None:
    verdict = judge_once(Series(held_to.resource, readings, released), held_to)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)


def test_a_series_too_short_for_any_floor_claims_none() -> None:
    verdict = judge(Series("heap", (5,) * 5), Budget("heap", 0), Context(final=True, effort=Effort(iterations=4)))
    assert verdict is not None
    assert (verdict.outcome, verdict.floor) == ("ok", None)


def test_what_the_interpreter_makes_for_itself_is_within_any_level_of_the_heap() -> None:
    verdict = walk(budget("heap", 0), lambda i: 32 * (i >= 11))
    assert verdict.outcome == "ok"
    assert verdict.reason == "32 B above the start; up to 4.0 KiB over the level is attributed to the interpreter"
    assert walk(budget("heap", 0), lambda i: 8192 * (i >= 11)).outcome == "over_budget"


def test_what_is_missing_is_said_with_the_growth_so_far_and_the_time_that_it_takes() -> None:
    few = Series("fd", (11, 12, 13, 14, 15, 16))
    verdict = judge(few, budget("fd"), Context(final=True, seconds=2.0))
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "5 iterations, 13 needed; +4 so far")
    # Thirteen iterations and three of warm-up take 32 s, and half as much again for safety.
    assert verdict.advice == "an iteration took 2 s: allow time for about 13, --leakcheck-max-time=48"
    unlimited = judge(few, budget("fd"), Context(final=True))
    assert unlimited is not None
    assert unlimited.advice == f"about 13 {MORE}"


def test_a_block_that_exceeds_its_level_says_what_would_name_the_line() -> None:
    verdict = judge_once(Series("fd", (11, 12)), budget("fd", 0))
    assert verdict.outcome == "over_budget"
    assert "leakcheck.steps() repeats it and names the line" in verdict.advice
