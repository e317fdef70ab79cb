"""Judging a series look by look, as a repetition does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_leakcheck.config.budget import Budget, parse_budget
from pytest_leakcheck.config.plan import ADAPTIVE, Effort
from pytest_leakcheck.config.settings import RUN
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.judge.judge_series import Context, judge
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Series


def walk(
    budget: Budget,
    reading: Callable[[int], int] | Sequence[int],
    *,
    released: Callable[[int], int] | None = None,
    most: int = ADAPTIVE,
    run_length: int = RUN,
    **context: Any,
) -> Verdict:
    """The first verdict on the readings, and the last chance to give one at `most`."""
    x = tuple(map(reading, range(most + 1))) if callable(reading) else tuple(reading)
    gone = tuple(map(released, range(most))) if released else ()
    effort = Effort(iterations=0 if most == ADAPTIVE else most, run_length=run_length)
    for at in looks(most):
        series = Series(budget.resource, x[: at + 1], gone[:at])
        verdict = judge(series, budget, Context(final=at == most, effort=effort, **context))
        if verdict is not None:
            return verdict
    raise AssertionError("the last look gave no verdict")


def budget(resource: str, *level: object, **keywords: object) -> Budget:
    return parse_budget(resource, level, keywords)
