"""Judge the ``peak=`` of a budget by one more run of the test, in a subprocess that measures it like a single size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.judge_peak import judge_peak
from pytest_leakcheck.judge.not_judged import unavailable
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.resources import RESIDENT
from pytest_leakcheck.model.scaling_points import Point, Sizing
from pytest_leakcheck.model.verdict import RED
from pytest_leakcheck.plugin.harness_errors import why_failed
from pytest_leakcheck.plugin.isolation.dispatch import START_UP, send
from pytest_leakcheck.plugin.isolation.messages import culprits_of, recording_of
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.child_peak import ChildrenPeak


def judge_peaks(item: pytest.Item, result: Result, settings: Settings) -> Result:
    """Add a verdict on each budget with a peak to the result of the repetition, unless that result is red (failing).

    At least one budget must have a peak. If a peak is exceeded, the culprit is the known cause of the first exceeded
    peak. If the process cannot be started, the verdicts on peaks are ``unavailable``.
    """
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    budgets = [budget for budget in result.plan.budgets if budget.peak is not None]
    why_not = supervisor.unsupported()
    if not why_not:
        try:
            return _measure_peaks(item, result, settings, budgets)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            why_not = why_failed(error)
    missing = tuple(unavailable(budget.resource, why_not, peak=True) for budget in budgets)
    return replace(result, verdicts=(*result.verdicts, *missing))


def _measure_peaks(item: pytest.Item, result: Result, settings: Settings, budgets: list[Budget]) -> Result:
    patience = supervisor.Patience(START_UP, settings.max_time)
    resources = tuple(budget.resource for budget in budgets)
    children = ChildrenPeak()
    answer = send(item, patience, Sizing("", 0, resources), children.look)
    recording = recording_of(answer.messages[0])
    point = Point(0, (recording,), children.peak) if recording is not None else None
    verdicts = [judge_peak(budget, point, answer.ended.reason) for budget in budgets]
    red = next((one for one in verdicts if one.outcome in RED), None)
    culprit: Culprit | None = None
    if red is not None and point is not None:
        if red.resource == RESIDENT and point.near_peak > 0:
            answer = send(item, patience, Sizing("", 0, resources, naming=point.near_peak))
        culprit = next((one for one in culprits_of(answer) if one.resource == red.resource), None)
    return replace(result, verdicts=(*result.verdicts, *verdicts), culprit=culprit or result.culprit)
