from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.scaling_marker import FigureBound, check_axis, parse_bound
from pytest_leakcheck.judge.judge_scaling import NOISE, RESOLUTION, advise_ranks, judge_points
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Engine, Figure, Point, Recording, Scaled
from pytest_leakcheck.model.resources import find_resource

KIB, MIB = 2**10, 2**20
SIZES = (8, 16, 32, 64, 128, 256)
ALL, FEW = "from 8 to 256 shards", "from 1 to 4 world_size"
MORE = "also run the sizes 512 and 1024"
PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)


def judged(
    resource: str,
    value: object,
    peaks: list[int],
    sizes: tuple[int, ...] = SIZES,
    axis: str = "shards",
    *,
    lower: bool = False,
) -> Verdict:
    bound = parse_bound(value, axis, find_resource(resource).unit, lower=lower)
    return judge_points(resource, axis, sizes, peaks, bound, lower=lower)


LINEAR = [n * MIB for n in SIZES]
ROOT = [round(4 * MIB * n**0.5) for n in SIZES]
LOG = [round(4 * MIB * math.log2(n)) for n in SIZES]
CONSTANT = [32 * MIB, 32 * MIB + 120 * KIB, 32 * MIB - 8192, 32 * MIB, 32 * MIB + 4096, 32 * MIB - 4096]


# Each growing series against what it breaks and what it keeps; the constant one is the program fixed.
@pytest.mark.parametrize(
    ("peaks", "bound", "outcome", "reason"),
    [
        (LINEAR, "O(1)", "over_budget", "O(n): +1.0 MiB per shard, O(1) allowed"),
        (LINEAR, "O(log n)", "over_budget", "O(n): +1.0 MiB per shard, O(log n) allowed"),
        (LINEAR, "O(sqrt n)", "over_budget", "O(n): +1.0 MiB per shard, O(sqrt n) allowed"),
        (LINEAR, "O(n)", "ok", "O(n): +1.0 MiB per shard, O(n) allowed"),
        (ROOT, "O(1)", "over_budget", "O(n^0.50): +52.7 MiB from 8 to 256 shards, O(1) allowed"),
        (ROOT, "O(log n)", "over_budget", "O(n^0.50): +52.7 MiB from 8 to 256 shards, O(log n) allowed"),
        (ROOT, "O(n^0.5)", "ok", "O(n^0.50): +52.7 MiB from 8 to 256 shards, O(n^0.5) allowed"),
        (LOG, "O(1)", "over_budget", "O(log n): +4.0 MiB per doubling, O(1) allowed"),
        (LOG, "O(log n)", "ok", "O(log n): +4.0 MiB per doubling, O(log n) allowed"),
        (CONSTANT, "O(1)", "ok", ""),
        (CONSTANT, "O(log n)", "ok", "O(1), O(log n) allowed"),
        (CONSTANT, "O(n)", "ok", "O(1), O(n) allowed"),
    ],
)
def test_laws_of_memory(peaks: list[int], bound: str, outcome: str, reason: str) -> None:
    verdict = judged("rss", bound, peaks)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert (verdict.level, verdict.iterations) == (max(peaks), 6)


# What each process of a world needs for itself: 58 KiB were measured at up to 16 gloo ranks.
@pytest.mark.parametrize(("each", "outcome"), [(58, "ok"), (250, "ok"), (300, "inconclusive"), (600, "over_budget")])
def test_total_of_a_world_is_resolved_per_process(each: int, outcome: str) -> None:
    worlds = (1, 2, 4, 8, 16)
    points = [Point(size, (Recording("test_it", (), peaks={"rss": each * KIB}),) * size) for size in worlds]
    scaled = Scaled("world_size", "process", tuple(points))
    added = scaled.count_added_processes("total")
    peaks, bound = scaled.peaks("rss", "total"), parse_bound("O(1)", "world_size", "bytes")
    assert judge_points("rss", "world_size", worlds, peaks, bound, added_processes=added).outcome == outcome


def test_only_the_total_of_a_world_of_processes_sums_processes() -> None:
    def added(engine: Engine, figure: Figure) -> int:
        return Scaled("ranks", engine, (Point(1, ()), Point(4, ()))).count_added_processes(figure)

    assert (added("gloo", "total"), added("process", "total"), added("ray", "total")) == (3, 3, 3)
    assert (added("gloo", "per_rank"), added("thread", "total"), added("", "total")) == (1, 1, 1)


def test_flat_tells_what_it_would_have_shown() -> None:
    assert judged("rss", "O(1)", [MIB] * 6).floor == RESOLUTION["bytes"] / 248
    assert judged("fd", "O(1)", [3] * 6).floor == 1 / 248
    assert judged("fd", "O(1)", [8, 16, 32, 64, 64, 64]).floor == pytest.approx(5.6 / 192)
    assert judged("rss", "O(n)", LINEAR).floor is None


# Counts: growing, fixed, and what lies between.
@pytest.mark.parametrize(
    ("peaks", "outcome", "reason"),
    [
        ([8, 16, 32, 64, 128, 256], "over_budget", "O(n): +1 per shard, O(1) allowed"),
        ([3, 4, 5, 6, 7, 8], "over_budget", "O(log n): +1 per doubling, O(1) allowed"),
        ([3, 3, 3, 3, 3, 3], "ok", ""),
        ([5, 6, 5, 5, 6, 5], "ok", "varies by up to 1 between sizes, without a trend"),
        ([9, 8, 7, 6, 5, 4], "ok", f"falls: -5 {ALL}"),
        ([8, 16, 32, 64, 64, 64], "ok", "+56, settled from 64 shards on"),
        ([8, 16, 32, 64, 100, 100], "inconclusive", f"+92 {ALL}, but +0 in the last step: it may have settled"),
        # A cache that nears its end of 150, and one that is far from its own.
        ([0, 50, 85, 110, 127, 143], "inconclusive", f"+143 {ALL}, and these sizes do not rule out that it settles"),
        ([0, 50, 95, 135, 170, 200], "over_budget", "O(log n): +40 per doubling, O(1) allowed"),
        ([5, 5, 5, 5, 5, 6], "inconclusive", f"+1 {ALL}, too close to the resolution (1)"),
        ([5, 6, 5, 5, 6, 7], "inconclusive", f"+2 {ALL}, too close to the resolution (1)"),
        ([0, 0, 0, 0, 0, 100], "inconclusive", f"+100 {ALL}, but not steadily from size to size"),
        # Three pairs in fifteen fall.
        ([10, 30, 20, 50, 40, 60], "over_budget", "O(log n): +10 per doubling, O(1) allowed"),
        ([90, 40, 10, 20, 40, 80], "inconclusive", f"falls by up to 80 and rises again: -10 {ALL}"),
        ([0, 2000, 200, 400, 800, 1000], "inconclusive", f"falls by up to 1800 and rises again: +1000 {ALL}"),
    ],
)
def test_constant_counts(peaks: list[int], outcome: str, reason: str) -> None:
    verdict = judged("fd", "O(1)", peaks)
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert verdict.advice == (MORE if outcome == "inconclusive" else "")


@pytest.mark.laboratory
def test_peaks_that_scatter_at_random_are_hardly_ever_called_growth() -> None:
    dice = random.Random(5)
    outcomes = [judged("rss", "O(1)", [dice.randrange(MIB) for _ in SIZES]).outcome for _ in range(2000)]
    assert outcomes.count("over_budget") <= 6
    # The same with a trend that is no larger than the scatter: this must not be called flat.
    trends = [judged("rss", "O(1)", [dice.randrange(MIB) + 8 * KIB * n for n in SIZES]).outcome for _ in range(2000)]
    assert trends.count("ok") <= 20


# 3 and 4 sizes: flat and clear growth are told, all else asks for more.
@pytest.mark.parametrize(
    ("peaks", "bound", "outcome", "reason"),
    [
        ([64, 64, 64], "O(1)", "ok", ""),
        ([64, 128, 256], "O(1)", "over_budget", "O(n): +64 per world_size, O(1) allowed"),
        ([64, 64, 128], "O(1)", "inconclusive", f"+64 {FEW}, and 3 sizes do not show whether it continues"),
        ([64, 65, 64], "O(1)", "ok", "varies by up to 1 between sizes, without a trend"),
        ([64, 90, 65], "O(1)", "inconclusive", "varies by up to 25 between 3 sizes"),
        ([64, 128, 256], "O(n)", "inconclusive", "3 sizes do not distinguish O(n) from other laws"),
        ([3, 6, 12], "3/world_size", "ok", "+3 per world_size, at most 3 allowed"),
        ([3, 6, 12], "2/world_size", "over_budget", "+3 per world_size, at most 2 allowed"),
        ([64, 64, 64], "<= max(64, world_size)", "ok", ""),
        (
            [64, 64, 256],
            "<= max(64, world_size)",
            "over_budget",
            "at world_size 4: 256, at most 64 allowed (max(64, world_size))",
        ),
        ([3, 4, 3], 3, "over_budget", "at world_size 2: 4, at most 3 allowed"),
    ],
)
def test_few_sizes(peaks: list[int], bound: object, outcome: str, reason: str) -> None:
    verdict = judged("gauge:in_flight", bound, peaks, (1, 2, 4), "world_size")
    assert (verdict.outcome, verdict.reason) == (outcome, reason)
    assert verdict.advice == ("also run the sizes 8 and 16" if outcome == "inconclusive" else "")


def test_four_sizes_of_memory() -> None:
    sizes = (8, 16, 32, 64)
    assert judged("rss", "O(1)", [n * MIB for n in sizes], sizes).outcome == "over_budget"
    assert judged("rss", "O(1)", [n * 10 * KIB for n in sizes], sizes).outcome == "inconclusive"
    assert judged("rss", "O(1)", [64 * MIB] * 4, sizes).outcome == "ok"


def test_a_lower_bound() -> None:
    def at_least(peaks: list[int]) -> Verdict:
        return judged("gauge:in_flight", "64 - (world_size - 1)", peaks, (1, 2, 4), "world_size", lower=True)

    assert at_least([64, 63, 61]).outcome == "ok"
    throttled = at_least([64, 63, 50])
    assert throttled.outcome == "over_budget"
    assert throttled.reason == "at world_size 4: 50, at least 61 required (64 - (world_size - 1))"


@pytest.mark.parametrize(
    ("bound", "outcome", "reason"),
    [
        ("1.2 MiB/shard", "ok", "+1.0 MiB per shard, at most 1.2 MiB allowed"),
        ("0.5 MiB/shard", "over_budget", "+1.0 MiB per shard, at most 512 KiB allowed"),
        ("1 MiB/shard", "inconclusive", "+1.0 MiB per shard, at most 1.0 MiB allowed: too close to decide"),
        ("<= 1 MiB * shards", "ok", ""),
        ("<= 1 MiB * (shards + 1)", "ok", ""),
        ("<= 200 MiB", "over_budget", "at shards 256: 256 MiB, at most 200 MiB allowed"),
        ("<= 100 MiB + 100 KiB * shards", "over_budget", ""),
        ("<= 512 MiB", "ok", ""),
    ],
)
def test_slopes_and_limits_of_memory(bound: str, outcome: str, reason: str) -> None:
    verdict = judged("rss", bound, LINEAR)
    assert verdict.outcome == outcome
    assert verdict.reason == reason or not reason
    assert verdict.slope == pytest.approx(MIB)


def test_where_it_gets_steeper_the_steepest_part_counts() -> None:
    verdict = judged("fd", "300/shard", [n * n for n in SIZES])
    assert verdict.outcome == "over_budget"
    assert verdict.reason == "+384 per shard between 128 and 256, where it is steepest, at most 300 allowed"
    assert judged("fd", "400/shard", [n * n for n in SIZES]).outcome == "ok"


def test_memory_that_is_over_by_less_than_the_noise_is_not_held_against_it() -> None:
    peaks = [MIB] * 5 + [MIB + NOISE["bytes"]]
    verdict = judged("rss", "<= 1 MiB", peaks)
    assert (verdict.outcome, verdict.advice) == ("inconclusive", "allow more headroom than that")
    assert verdict.reason == "at shards 256: 1.0 MiB, at most 1.0 MiB allowed; that is within the noise of 48.0 KiB"
    peaks[-1] += 1
    assert judged("rss", "<= 1 MiB", peaks).outcome == "over_budget"
    assert judged("fd", "<= 3", [3, 3, 3, 3, 3, 4]).outcome == "over_budget"


def test_an_exponent_that_may_lie_on_both_sides_asks_for_sizes() -> None:
    peaks = [round(60 * KIB * n**0.7) for n in SIZES]
    verdict = judged("rss", "O(sqrt n)", peaks)
    assert (verdict.outcome, verdict.advice) == ("inconclusive", MORE)
    assert "; the exponent is between 0." in verdict.reason
    assert verdict.reason.endswith(", and up to 0.75 counts as O(sqrt n)")


def test_the_sizes_to_add_go_on_by_the_same_factor() -> None:
    sizes = (1, 3, 10, 32)
    verdict = judged("fd", "O(1)", [1, 1, 1, 2], sizes)
    assert verdict.advice == "also run the sizes 102 and 323"


def test_valid_axes() -> None:
    assert check_axis([8, 16, 32, 64]) == (8, 16, 32, 64)
    assert check_axis((1, 3, 10, 32)) == (1, 3, 10, 32)
    assert check_axis([10, 100, 1000]) == (10, 100, 1000)


VALID = "write sizes such as [8, 16, 32, 64]"


ANYTHING: st.SearchStrategy[Any] = (
    st.none() | st.integers() | st.text() | st.lists(st.none() | st.integers() | st.floats() | st.integers(1, 64))
)


@PROPERTY
@given(ANYTHING)
def test_any_sizes_are_an_axis_or_an_error_of_ours(sizes: Any) -> None:
    try:
        checked = check_axis(sizes)
    except InputError as error:
        message = str(error)
    else:
        assert checked == tuple(sizes)
        return
    assert message.endswith(VALID)


BOUNDS = st.sampled_from(["O(1)", "O(log n)", "O(n)", "5/shard", "<= 30", "<= shards + 3"])
PEAKS = st.lists(st.integers(0, 60), min_size=3, max_size=8)


@PROPERTY
@given(st.sampled_from(["fd", "rss"]), BOUNDS, PEAKS)
def test_whatever_the_peaks_there_is_a_verdict(resource: str, bound: str, peaks: list[int]) -> None:
    sizes = tuple(2**step for step in range(len(peaks)))
    verdict = judged(resource, bound, peaks, sizes)
    assert verdict.outcome in ("ok", "over_budget", "inconclusive")
    assert bool(verdict.advice) == (verdict.outcome == "inconclusive")
    assert verdict.outcome == "ok" or verdict.reason
    assert verdict.floor is None or (verdict.outcome == "ok" and verdict.floor > 0)


@PROPERTY
@given(PEAKS)
def test_what_a_law_allows_every_higher_law_allows(peaks: list[int]) -> None:
    sizes = tuple(2**step for step in range(len(peaks)))
    rank = {"over_budget": 0, "inconclusive": 1, "ok": 2}
    outcomes = [
        rank[judged("fd", bound, peaks, sizes).outcome] for bound in ("O(1)", "O(log n)", "O(sqrt n)", "O(n)", "O(n^2)")
    ]
    assert outcomes == sorted(outcomes)


@PROPERTY
@given(PEAKS, st.integers(0, 10**6), st.sampled_from(["O(1)", "O(log n)", "O(n)", "5/shard"]))
def test_a_constant_on_top_changes_no_verdict_on_growth(peaks: list[int], constant: int, bound: str) -> None:
    sizes = tuple(2**step for step in range(len(peaks)))
    plain = judged("fd", bound, peaks, sizes)
    assert judged("fd", bound, [peak + constant for peak in peaks], sizes).outcome == plain.outcome


def advice(worlds: dict[int, list[int]], bound: str = "<= 64", figure: Figure = "total") -> str:
    """On the peaks of each rank, by size of the world."""
    points = [
        Point(size, tuple(Recording("test_it", (), peaks={"fd": peak}) for peak in ranks))
        for size, ranks in worlds.items()
    ]
    scaled = Scaled("world_size", "process", tuple(points))
    verdict = judged("fd", bound, [sum(ranks) for ranks in worlds.values()], tuple(worlds), "world_size")
    return advise_ranks(verdict, FigureBound("fd", figure, parse_bound(bound, "world_size", "count")), scaled).advice


def test_ranks_that_take_as_much_as_one_alone_are_to_divide_it() -> None:
    divide = "each rank takes as much as one alone: divide what is meant for all ranks by world_size"
    assert advice({1: [64], 2: [64] * 2, 4: [60, 64, 64, 66]}) == divide


@pytest.mark.parametrize(
    ("worlds", "bound", "figure"),
    [
        ({1: [64], 2: [64] * 2, 4: [64] * 4}, "<= 256", "total"),
        ({1: [64], 2: [64] * 2, 4: [64] * 4}, "<= 60", "per_rank"),
        ({1: [64], 2: [64] * 2, 4: [64, 64, 64, 16]}, "<= 64", "total"),
        ({1: [64], 2: [64] * 2, 4: [64, 64, 64, 54]}, "<= 64", "total"),
        ({1: [64], 2: [128] * 2, 4: [256] * 4}, "<= 64", "total"),
        ({1: [0], 2: [64] * 2, 4: [64] * 4}, "<= 64", "total"),
        ({2: [64] * 2, 4: [64] * 4, 8: [64] * 8}, "<= 64", "total"),
        # Threads: one figure for all.
        ({1: [64], 2: [128], 4: [256]}, "<= 64", "total"),
    ],
    ids=[
        "allowed",
        "not a sum",
        "one has less",
        "one has a sixth less",
        "they have more",
        "one has none",
        "no world of 1",
        "threads",
    ],
)
def test_other_ranks_get_no_such_advice(worlds: dict[int, list[int]], bound: str, figure: Figure) -> None:
    assert advice(worlds, bound, figure) == ""


@pytest.mark.parametrize(("excess", "outcome"), [(8, "inconclusive"), (18, "over_budget")])
def test_an_exact_peak_is_over_by_more_than_12_kib(excess: int, outcome: str) -> None:
    bound = parse_bound("<= 1048576", "shards", "bytes")
    peaks = [MIB + excess * KIB] * 3
    assert judge_points("rss", "shards", (1, 2, 4), peaks, bound, exact=True).outcome == outcome


# The noise of a peak leaves 0.9 KiB per shard open.
@pytest.mark.parametrize(
    ("each", "shown"),
    [(16, "O(n): +16.0 KiB per shard (15.6 KiB to 16.4 KiB)"), (30, "O(n): +30.0 KiB per shard, O(n)")],
)
def test_the_interval_of_a_slope_is_shown_from_a_twenty_fifth_of_it_on(each: int, shown: str) -> None:
    assert shown in judged("rss", "O(n)", [n * each * KIB for n in SIZES]).reason
