"""The verdicts, pinned by literal series: each is walked look by look, as a repetition does, until one is given."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.config.plan import ADAPTIVE, Effort
from pytest_leakcheck.judge.exhaustion import ran_out
from pytest_leakcheck.judge.growth import growth, looks
from pytest_leakcheck.judge.judge_series import NO_HINT, Context, Hint, judge, judge_known, judge_once
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Series
from walks import budget, walk

KIB, MIB, GIB = 2**10, 2**20, 2**30
OVER = budget("rss", "2 GiB", over=100_000)
THERE = "2.9 GiB after 100,000 iterations at +30.0 KiB/iter"
TWO_EACH = budget("fd", per_iteration=2)
TWO_EACH_BELOW = budget("fd", 1_000, per_iteration=2, over=1_000)
MORE = "iterations would decide it: --leakcheck-iterations, --leakcheck-max-time"
PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


RESOURCES = st.sampled_from(["fd", "process", "heap", "object", "rss"])
READINGS = st.lists(st.integers(0, 40), min_size=2, max_size=60)


def judged(readings: Iterable[int], held_to: Budget, hint: Hint = NO_HINT, **context: Any) -> Verdict:
    """The verdict on these readings, which there must be."""
    verdict = judge(Series(held_to.resource, tuple(readings)), held_to, Context(**context), hint)
    assert verdict is not None
    return verdict


def by_default(resource: str) -> Budget:
    return Budget(resource, explicit=False)


# What a series of one shape comes to, beside the same work without the fault.


@pytest.mark.parametrize(
    ("held_to", "reading", "outcome", "reason"),
    [
        (budget("fd", 0), lambda i: 11 + i, "leak", "+1.0/iter sustained over 17 iterations"),
        (budget("fd", 0), lambda _: 11, "ok", ""),
        (budget("fd"), lambda i: 11 + (i >= 7), "ok", "one-off +1 at iteration 7"),
        (by_default("fd"), lambda i: 11 + (i >= 7), "ok", "one-off +1 at iteration 7"),
        (budget("fd", 1), lambda i: 11 + (i >= 7), "ok", "one-off +1 at iteration 7"),
        (budget("fd", 3), lambda i: 11 + min(i, 3), "ok", "settles at +3"),
        (budget("fd", 3), lambda i: 11 + min(i, 4), "over_budget", "settles at +4, 3 allowed"),
        (budget("fd", 3), lambda i: 11 + i // 10, "leak", "+0.1/iter sustained over 287 iterations"),
        (budget("fd"), lambda i: i // 4, "leak", "+0.25/iter sustained over 92 iterations"),
        (TWO_EACH, lambda i: 2 * i, "ok", "settles at +20"),
        (TWO_EACH, lambda i: 3 * i, "leak", "+3.0/iter sustained over 17 iterations, +2.0/iter allowed"),
        # What the growth comes to over a longer run.
        (OVER, lambda i: 30 * KIB * i, "over_budget", f"{THERE}, 2.0 GiB allowed"),
        (replace(OVER, level=3 * GIB), lambda i: 30 * KIB * i, "ok", THERE),
        # So does growth that is tolerated in each of them.
        (TWO_EACH_BELOW, lambda i: 2 * i, "over_budget", "1992 after 1,000 iterations at +2.0/iter, 1000 allowed"),
        (replace(TWO_EACH_BELOW, level=2_000), lambda i: 2 * i, "ok", "1992 after 1,000 iterations at +2.0/iter"),
        (TWO_EACH_BELOW, lambda i: 11 + min(i, 4), "ok", "settles at +4"),
    ],
)
def test_a_shape_has_one_verdict(held_to: Budget, reading: Callable[[int], int], outcome: str, reason: str) -> None:
    verdict = walk(held_to, reading)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert (verdict.floor is not None) == (outcome == "ok")


def test_unproven_growth_that_is_tolerated_waits_for_a_proof_and_is_ok_without_one() -> None:
    uneven = [2 * i - i % 2 * 3 for i in range(14)]
    assert judge(Series("fd", tuple(uneven)), TWO_EACH_BELOW, Context()) is None
    assert judged(uneven, TWO_EACH_BELOW, final=True).outcome == "ok"


def test_a_step_above_the_level_has_two_ways_out() -> None:
    verdict = walk(budget("fd", 0), lambda i: 11 + (i >= 7))
    assert (verdict.outcome, verdict.level, verdict.slope) == ("over_budget", 1, 0.0)
    assert verdict.advice == "if it is meant to stay: fd_budget(1), or fd_budget() to bound growth only"


# Up to the last iteration before the first look that may say ok.
@pytest.mark.parametrize("at", range(1, 14))
def test_a_step_is_over_budget_at_whichever_iteration_it_comes(at: int) -> None:
    verdict = walk(budget("fd", 0), lambda i: 11 + (i >= at))
    assert (verdict.outcome, verdict.reason) == ("over_budget", f"one-off +1 at iteration {at}, 0 allowed")


@pytest.mark.parametrize("every", range(1, 11))
def test_a_leak_at_every_tenth_iteration_or_more_often_is_found(every: int) -> None:
    assert walk(by_default("fd"), lambda i: i // every).outcome == "leak"


@pytest.mark.parametrize("resource", ["fd", "heap", "object"])
def test_a_sawtooth_is_clean(resource: str) -> None:
    assert walk(budget(resource, 0), lambda i: i % 10 * 1000).outcome == "ok"


# Memory and gc objects: caches fill.


@pytest.mark.parametrize("resource", ["heap", "object"])
@pytest.mark.parametrize("size", [64, 128, 200])
def test_a_filling_cache_is_never_a_leak_and_what_goes_on_is(resource: str, size: int) -> None:
    assert walk(budget(resource), lambda i: 1000 * min(i, size)).outcome in ("ok", "inconclusive")
    verdict = walk(budget(resource), lambda i: 1000 * i)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 1000.0, 229)


def test_a_cache_that_grows_with_the_logarithm_is_never_a_leak() -> None:
    verdict = walk(budget("heap"), lambda i: int(100_000 * math.log1p(i)))
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "still growing, ever more slowly: +774 B/iter, then +272 B/iter"
    assert verdict.advice.startswith("about 1124 iterations would decide it: ")


def test_a_bounded_owner_explains_growth_and_is_named_only_at_the_end() -> None:
    hint = Hint("bounded cache still filling: lru_cache of load: 128 of 256")
    readings = [1000 * i for i in range(ADAPTIVE + 1)]
    assert judge(Series("heap", tuple(readings)), budget("heap"), Context(), hint) is None
    verdict = judged(readings, budget("heap"), hint, final=True)
    assert (verdict.outcome, verdict.reason, verdict.advice) == ("inconclusive", hint.text, f"about 1124 {MORE}")
    assert judged(readings, budget("heap"), final=True).outcome == "leak"


def test_resident_memory_without_a_budget_is_a_leak_if_it_grows_fast_and_keeps_its_rate() -> None:
    unnamed = default_budget("rss")
    verdict = walk(unnamed, lambda i: 2 * MIB * i, idle=MIB)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 2.0 * MIB, 22)
    assert verdict.reason == (
        "+2.0 MiB/iter sustained over 22 iterations, "
        "while the exact memory counters do not grow: it is mapped, or allocated past malloc"
    )
    assert walk(budget("rss"), lambda i: 2 * MIB * i).outcome == "leak"
    assert walk(unnamed, lambda i: 300 * KIB * i, idle=MIB).outcome == "leak"
    assert walk(unnamed, lambda i: 256 * KIB * i, idle=MIB).outcome == "ok"
    # Much needs no horizon.
    assert walk(unnamed, lambda i: 8 * MIB * i, idle=MIB).iterations == 17
    assert walk(unnamed, lambda i: 50 * MIB * i, idle=MIB, headroom=24 * GIB).iterations == 17


@pytest.mark.parametrize(
    "reading",
    [
        lambda i: int(20 * MIB * i**0.6),
        lambda i: 8 * MIB * min(i, 30) * (60 - min(i, 30)) // 60,
        lambda i: 8 * MIB * min(i, 12),
        lambda i: 100 * MIB * (i % 10),
    ],
    ids=["fragmentation", "slower for 30 iterations", "a pool that is full", "given back"],
)
def test_resident_memory_without_a_budget_that_slows_down_is_no_leak(reading: Callable[[int], int]) -> None:
    assert walk(default_budget("rss"), reading, idle=0).outcome in ("ok", "inconclusive")


def test_memory_that_was_there_at_the_start_may_become_resident() -> None:
    unnamed = default_budget("rss")
    verdict = walk(unnamed, lambda i: 2 * MIB * i, idle=GIB)
    assert (verdict.outcome, verdict.iterations) == ("inconclusive", 22)
    assert verdict.reason.endswith(
        ", unless it is memory that was there at the start, up to 1.0 GiB, and is used only now"
    )
    assert verdict.advice == "to have it judged, set a budget: rss_budget()"
    # Growth that soon exceeds it is waited for.
    verdict = walk(unnamed, lambda i: 2 * MIB * i, idle=100 * MIB)
    assert (verdict.outcome, verdict.iterations) == ("leak", 73)
    assert judged([2 * MIB * i for i in range(40)], unnamed, idle=100 * MIB, final=True).outcome == "inconclusive"
    # Nothing is known of another malloc.
    verdict = walk(unnamed, lambda i: 2 * MIB * i)
    assert (verdict.outcome, verdict.iterations) == ("inconclusive", 22)
    assert verdict.reason.endswith("past malloc")


def test_mappings_that_are_used_need_no_longer_horizon_than_resident_memory() -> None:
    unnamed = default_budget("mmap")
    assert walk(unnamed, lambda i: 2 * MIB * i, touched=True, idle=MIB).iterations == 22
    assert walk(unnamed, lambda i: 8 * MIB * i, touched=True, idle=MIB).iterations == 17
    assert walk(unnamed, lambda i: 2 * MIB * i, touched=False, idle=MIB).iterations == 229
    assert walk(unnamed, lambda i: 2 * MIB * i, touched=True, idle=100 * MIB).iterations == 73
    assert walk(unnamed, lambda i: 8 * MIB * min(i, 12), touched=True, idle=0).outcome == "ok"


@pytest.mark.parametrize(("each", "allow"), [(3 * KIB, "16.0 KiB"), (172 * KIB, "")])
def test_slow_growth_under_a_level_is_told_how_a_library_is_allowed_it(each: int, allow: str) -> None:
    """What a fixed tf.data pipeline does, and a leaky one, under ``heap_budget("64 MiB")``."""
    held_to, advice = (
        budget("heap", "64 MiB"),
        f'if a library retains it: heap_budget("64.0 MiB", per_iteration="{allow}")',
    )
    undecided = judged(range(0, 100 * each, each), held_to, final=True)
    assert undecided.outcome == "inconclusive"
    assert undecided.advice == f"about 200 {MORE}" + (f"; {advice}" if allow else "")
    leak = judged(range(0, 300 * each, each), held_to)
    assert (leak.outcome, leak.advice) == ("leak", advice if allow else "")
    assert judged(range(0, 300 * each, each), budget("heap", "64 MiB", per_iteration="16 KiB")).outcome == (
        "ok" if allow else "leak"
    )


def test_resident_memory_without_a_budget_is_judged_for_what_exact_counters_do_not_show() -> None:
    readings = [3 * MIB * i for i in range(60)]
    assert judged(readings, default_budget("rss"), Hint(rate=2.5 * MIB)).outcome == "ok"
    rest = judged(readings, default_budget("rss"), Hint(rate=1.0 * MIB), idle=0)
    assert (rest.outcome, rest.slope) == ("leak", 2.0 * MIB)


def test_objects_that_replace_others_are_no_part_of_a_level() -> None:
    readings = [0] * 4 + [2] * 60
    assert judged(readings, budget("object", 0)).outcome == "over_budget"
    assert judged(readings, budget("object", 0), Hint(rate=2 / 64, replaced=2)).outcome == "ok"
    kept = judged(readings, budget("object", 0), Hint(rate=1 / 64, replaced=1))
    assert (kept.outcome, kept.level) == ("over_budget", 1)


def test_growth_that_goes_on_without_the_test_is_in_doubt_at_once() -> None:
    hint = Hint("also grows while the test is paused", advice="stop it")
    verdict = judged(range(20), budget("fd"), hint)
    assert (verdict.outcome, verdict.reason, verdict.advice) == ("inconclusive", hint.text, "stop it")
    assert judged(range(20), budget("fd")).outcome == "leak"


def test_growth_that_ends_too_late_is_a_leak() -> None:
    hint = Hint("held by timers that end after 32 s", advice="cancel them", within=320)
    verdict = judged(range(20), budget("fd"), hint, headroom=1000)
    assert (verdict.outcome, verdict.reason, verdict.advice) == ("inconclusive", hint.text, "cancel them")
    # More than the process may have; and the run is over by then.
    dies = judged(range(20), budget("fd"), hint, headroom=200)
    assert (dies.outcome, dies.reason) == (
        "leak",
        "+1.0/iter sustained over 19 iterations; held by timers that end after 32 s, which is too late: "
        "+320 in 320 iterations, 200 left",
    )
    late = judged(range(20), budget("fd"), replace(hint, within=36_000))
    assert late.reason.endswith("too late: +36000 in 36,000 iterations")
    assert late.outcome == "leak"


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
    verdict = judged(map(grown, range(n + 1)), budget("heap"), final=True, effort=Effort(iterations=100))
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


@pytest.mark.parametrize(
    ("readings", "released", "outcome"),
    [
        ((11, 12, 13, 14, 15), (0, 0, 0, 0), "leak"),
        ((11, 12, 13, 13, 15), (0, 0, 0, 0), ""),
        ((11, 11, 11, 11, 11), (2, 2, 2, 2), "unclosed"),
        ((11, 11, 11, 11, 11), (2, 0, 2, 2), ""),
        ((11, 11, 11, 11, 11), (), ""),
    ],
)
def test_a_few_iterations_are_judged_as_if_their_cause_were_known(
    readings: tuple[int, ...], released: tuple[int, ...], outcome: str
) -> None:
    series = Series("fd", readings, released)
    verdict = judge_known(series, by_default("fd"))
    assert (verdict.outcome if verdict else "") == outcome
    allowed = judge_known(series, Budget("fd", explicit=False, unclosed="allow"))
    assert (allowed.outcome if allowed else "") == outcome.replace("unclosed", "")


def test_memory_in_cycles_has_the_mark_that_allows_them() -> None:
    verdict = walk(budget("vram", "1 MiB"), lambda _: 1 << 20, released=lambda _: 6144)
    assert (verdict.outcome, verdict.slope) == ("unclosed", 6144.0)
    assert verdict.advice.startswith("break the cycle: ")
    assert verdict.advice.endswith('If a library makes it: vram_budget("1.0 MiB", unclosed="allow")')
    for allowed in (budget("vram", 0), budget("vram", 0, unclosed="allow")):
        advice = walk(allowed, lambda _: 0, released=lambda _: 6144).advice
        assert advice.endswith('vram_budget(0, unclosed="allow")') == (allowed.unclosed == "fail")


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
    floor = judged([11] * (n + 1), budget("fd"), final=True).floor
    assert floor is not None
    planted = tuple(11 + int(floor * i) for i in range(ADAPTIVE * 4))
    assert judged(planted[: n + 1], budget("fd"), final=True).outcome != "ok"
    assert any(growth(planted[: at + 1], 0.0, 16, exact=True).state == "growing" for at in looks(len(planted) - 1))


def test_the_floor_of_a_heap_has_a_margin_for_the_allocator() -> None:
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
    assert ("leakcheck.steps() repeats it and names the line" in verdict.advice) == (
        outcome in ("over_budget", "inconclusive")
    )


def test_a_series_too_short_for_any_floor_claims_none() -> None:
    verdict = judged([5] * 5, Budget("heap", 0), final=True, effort=Effort(iterations=4))
    assert (verdict.outcome, verdict.floor) == ("ok", None)


def test_what_the_interpreter_makes_for_itself_is_within_any_level_of_the_heap() -> None:
    verdict = walk(budget("heap", 0), lambda i: 32 * (i >= 11))
    assert verdict.outcome == "ok"
    assert verdict.reason == "32 B above the start; up to 4.0 KiB over the level is attributed to the interpreter"
    assert walk(budget("heap", 0), lambda i: 8192 * (i >= 11)).outcome == "over_budget"


def test_what_is_missing_is_said_with_the_growth_so_far_and_the_time_that_it_takes() -> None:
    verdict = judged(range(11, 17), budget("fd"), final=True, seconds=2.0)
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "5 iterations, 13 needed; +4 so far")
    # Thirteen iterations and three of warm-up take 32 s, and half as much again for safety.
    assert verdict.advice == "an iteration took 2 s: allow time for about 13, --leakcheck-max-time=48"
    assert judged(range(11, 17), budget("fd"), final=True).advice == f"about 13 {MORE}"


# Child processes have a part: what their garbage collectors release is known, or shows in the shape alone.


def teeth(rise: int, kept: int = 0) -> Callable[[int], int]:
    """Two children make things by turns; the first releases all of its own every 4th time, the second every 5th."""
    return lambda i: 30 + rise * ((i // 2) % 4 + ((i + 1) // 2) % 5) + kept * i


@pytest.mark.parametrize("rise", [1, 9])
def test_what_children_let_go_of_at_once_is_inconclusive_with_its_rise(rise: int) -> None:
    verdict = walk(budget("fd", 0), teeth(rise), elsewhere=True)
    assert (verdict.outcome, verdict.slope) == ("inconclusive", rise)
    assert verdict.reason.startswith(f"+{rise}.0/iter, and occasionally ")
    assert verdict.reason.endswith(" are released at once, by a child or its garbage collector")
    # Growth that is the smaller part of it does not make it a leak of that little.
    assert walk(budget("fd", 0), teeth(9, kept=1), elsewhere=True).slope == 10


def test_what_the_collectors_of_children_account_for_is_unclosed() -> None:
    # A count on its way moves it as well.
    opened = [30 + 9 * i + 40 * (i * i % 7 == 1) for i in range(51)]
    released = [60 if i % 7 == 6 else 0 for i in range(50)]
    readings = [all_ever - sum(released[:i]) for i, all_ever in enumerate(opened)]
    verdict = judge(Series("fd", tuple(readings), tuple(released)), budget("fd", 0), Context(elsewhere=True))
    assert verdict is not None
    assert verdict.outcome == "unclosed"
    assert 9 <= verdict.slope <= 10
    assert verdict.reason.endswith(" descriptors per iteration released by a garbage collector only")
    # One collection in a leak of the same rate does not make it so.
    grows = Series("fd", tuple(30 + 9 * i for i in range(51)), (0,) * 20 + (9,) + (0,) * 29)
    verdict = judge(grows, budget("fd", 0), Context(elsewhere=True))
    assert verdict is not None
    assert verdict.outcome == "leak"


def test_what_is_on_its_way_from_children_is_noise() -> None:
    def on_its_way(i: int) -> int:
        # Lower at the start than ever after.
        return 203 + i * i * 7 % 90 if i else 200

    verdict = walk(budget("fd", 0), on_its_way, elsewhere=True)
    assert verdict.outcome == "ok"
    assert verdict.reason == "3 above the start; varies by 82 between iterations"
    # A leak of as much per iteration as the floor shows.
    floor = verdict.floor or 0
    assert walk(budget("fd", 0), lambda i: on_its_way(i) + round(floor * i), elsewhere=True).outcome == "leak"


def test_more_iterations_are_not_the_only_advice_if_a_childs_collector_may_be_the_cause() -> None:
    # It has been higher, and moves by tens between iterations.
    readings = [400, *(200 + 3 * i + i * i * 7 % 90 for i in range(1, 60))]
    advice = judged(readings, budget("fd", 0), elsewhere=True, final=True).advice
    assert advice.startswith(
        "a child's garbage collector may release them: disable it there, by gc.disable(); otherwise"
    )
    assert "collector" not in judged(readings, budget("fd", 0), final=True).advice


def test_a_level_that_holds_all_of_it_is_ok_and_so_is_what_may_stay_unclosed() -> None:
    assert walk(budget("fd", 9 * 7), teeth(9), elsewhere=True).outcome == "ok"
    assert walk(budget("fd", 9 * 6), teeth(9), elsewhere=True).outcome == "inconclusive"
    assert walk(budget("fd", unclosed="allow"), teeth(9), elsewhere=True).outcome == "ok"


def test_in_one_process_it_is_the_test_that_lets_go() -> None:
    assert walk(budget("fd"), teeth(9)).outcome == "ok"


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(lambda _: 30, id="still"),
        pytest.param(lambda i: 30 + i % 2, id="by turns"),
        pytest.param(lambda i: 30 + (i % 7 == 0), id="seldom"),
        pytest.param(lambda i: 30 + 5 * (i % 3 == 0), id="spikes"),
    ],
)
def test_what_is_closed_each_time_is_ok(reading: Callable[[int], int]) -> None:
    assert walk(budget("fd"), reading, elsewhere=True).outcome == "ok"


def test_a_leak_in_a_child_is_a_leak() -> None:
    verdict = walk(budget("fd", 0), lambda i: 30 + 9 * i, elsewhere=True)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 9.0, 17)


# What holds of verdicts whatever the readings.


@PROPERTY
@given(RESOURCES, READINGS, st.integers(-(10**9), 10**9), st.none() | st.integers(0, 50), st.booleans())
def test_only_differences_are_judged(
    resource: str,
    readings: list[int],
    constant: int,
    level: int | None,
    final: bool,
) -> None:
    shifted = tuple(value + constant for value in readings)
    context, held_to = Context(final=final), Budget(resource, level)
    assert judge(Series(resource, tuple(readings)), held_to, context) == judge(
        Series(resource, shifted), held_to, context
    )


@PROPERTY
@given(
    resource=RESOURCES,
    readings=READINGS,
    released=st.lists(st.integers(0, 3), min_size=60, max_size=60),
    level=st.none() | st.integers(0, 50),
    unclosed=st.sampled_from(["fail", "warn", "allow"]),
    horizon=st.integers(1, 300),
    explained=st.sampled_from(["", "lru_cache of f: 1 of 2"]),
    exact_flat=st.booleans(),
)
def test_the_last_look_always_gives_a_verdict(
    *,
    resource: str,
    readings: list[int],
    released: list[int],
    level: int | None,
    unclosed: Any,
    horizon: int,
    explained: str,
    exact_flat: bool,
) -> None:
    series = Series(resource, tuple(readings), tuple(released[: len(readings) - 1]))
    context = Context(final=True, effort=Effort(iterations=horizon), exact_flat=exact_flat)
    hint = Hint(explained)
    verdict = judge(series, Budget(resource, level, unclosed=unclosed), context, hint)
    assert verdict is not None
    assert verdict.iterations == series.iterations


@PROPERTY
@given(RESOURCES, READINGS, st.booleans())
def test_what_only_falls_is_never_a_leak(resource: str, readings: list[int], final: bool) -> None:
    series = Series(resource, tuple(sorted(readings, reverse=True)))
    verdict = judge(series, Budget(resource, 0), Context(final=final, effort=Effort(iterations=1)))
    assert verdict is None or verdict.outcome not in ("leak", "over_budget")


@PROPERTY
@given(RESOURCES, READINGS, st.integers(0, 50), st.integers(0, 50))
def test_a_larger_level_never_turns_ok_into_over_budget(
    resource: str, readings: list[int], level: int, more: int
) -> None:
    series = Series(resource, tuple(readings))
    strict = judge(series, Budget(resource, level), Context(final=True))
    loose = judge(series, Budget(resource, level + more), Context(final=True))
    assert strict is not None
    assert loose is not None
    assert not (strict.outcome == "ok" and loose.outcome != "ok")


@pytest.mark.parametrize(
    ("held_to", "each", "outcome"),
    [
        (budget("fd"), 40, "leak"),
        (budget("fd", per_iteration=50), 40, "inconclusive"),
        (budget("heap"), 100 * MIB, "leak"),
        # The process would not die of it within its run.
        (budget("heap"), 1000, "inconclusive"),
        # Malloc may have had what no exact counter shows.
        (by_default("rss"), 100 * MIB, "inconclusive"),
    ],
)
def test_even_growth_is_certain_after_six_iterations_if_no_room_is_left_for_more(
    held_to: Budget, each: int, outcome: str
) -> None:
    readings = range(7, 7 + 7 * each, each)
    facts: dict[str, Any] = {"final": True, "headroom": 20 * GIB, "exact_flat": held_to.resource == "rss"}
    assert judged(readings, held_to, stopped=True, **facts).outcome == outcome
    assert judged(readings, held_to, **facts).outcome == "inconclusive"
    assert judged(readings[:-1], held_to, stopped=True, **facts).outcome == "inconclusive"
    filling = Hint("a bounded cache fills", at_most=20.0 * each)
    assert judged(readings, held_to, filling, stopped=True, **facts).outcome != "leak"


@pytest.mark.parametrize(("carried", "outcome"), [(0, "ok"), (400_000, "inconclusive")])
def test_where_a_cache_will_be_full_is_measured_from_the_first_start(carried: int, outcome: str) -> None:
    filling = Hint("a bounded cache fills", at_most=700_000.0)
    readings = range(0, 300_000, 1000)
    assert judged(readings, budget("heap", "1 MiB"), filling, final=True, carried=carried).outcome == outcome


@pytest.mark.parametrize(("level", "needed"), [(40, 60), (80, 110)])
def test_a_pool_that_fills_is_told_how_many_iterations_show_its_level(level: int, needed: int) -> None:
    verdict = judged(range(23), budget("fd", level), final=True)
    assert (verdict.outcome, verdict.advice) == ("inconclusive", f"about {needed} {MORE}")


@pytest.mark.parametrize(("slope", "is_far"), [(700, True), (1500, False)])
def test_growth_that_takes_a_thousand_iterations_to_its_level_may_be_allowed(slope: int, *, is_far: bool) -> None:
    verdict = walk(budget("heap", "1 MiB"), lambda i: slope * i)
    assert verdict.outcome == "leak"
    assert ("per_iteration" in verdict.advice) is is_far


@pytest.mark.parametrize(("every", "outcome"), [(3, "unclosed"), (5, "leak")])
def test_a_collector_elsewhere_releases_a_quarter_of_what_it_accounts_for(every: int, outcome: str) -> None:
    opened, released = range(61), [int(i % every == 0 and i > 0) for i in range(61)]
    readings = tuple(i - sum(released[: i + 1]) for i in opened)
    series = Series("fd", readings, tuple(released[1:]))
    verdict = judge(series, budget("fd"), Context(elsewhere=True))
    assert verdict is not None
    assert verdict.outcome == outcome


@pytest.mark.parametrize(("slope", "is_leak"), [(150, False), (250, True)])
def test_mappings_that_are_used_are_a_leak_from_four_times_their_resolution_on(slope: int, *, is_leak: bool) -> None:
    series = Series("mmap", tuple(slope * KIB * i for i in range(23)))
    verdict = judge(series, default_budget("mmap"), Context(touched=True, idle=0))
    assert (verdict is not None and verdict.outcome == "leak") is is_leak
