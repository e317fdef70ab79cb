"""What holds of verdicts whatever the readings."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort
from pytest_leakcheck.judge.judge_series import Context, Hint, judge
from pytest_leakcheck.model.recording import Series

KIB, MIB, GIB = 2**10, 2**20, 2**30

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


# Invariants.

RESOURCES = st.sampled_from(["fd", "process", "heap", "object", "rss"])
READINGS = st.lists(st.integers(0, 40), min_size=2, max_size=60)


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
@given(RESOURCES, st.integers(0, 10**12), st.integers(51, 90), st.none() | st.integers(0, 5))
def test_a_constant_series_is_ok(resource: str, value: int, length: int, level: int | None) -> None:
    verdict = judge(Series(resource, (value,) * length), Budget(resource, level))
    assert verdict is not None
    assert verdict.outcome == "ok"


@PROPERTY
@given(st.sampled_from(["fd", "thread", "process", "gauge:frames"]), st.integers(1, 10**6), st.integers(18, 90))
def test_a_line_of_a_scarce_counter_is_a_leak(resource: str, slope: int, length: int) -> None:
    verdict = judge(Series(resource, tuple(slope * i for i in range(length))), Budget(resource, 0))
    assert verdict is not None
    assert (verdict.outcome, verdict.slope) == ("leak", slope)


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
