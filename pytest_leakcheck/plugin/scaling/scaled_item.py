"""Run a test at each size of an axis, and judge the growth law of its peaks; or run it once more for a ``peak=``.

Each size runs in a subprocess, or a world (a group of ranks, which run the test together), of its own. The session logs
the reports of the run at the largest size, with the finding in place of the outcome of the body, or those of a run in
which the test itself fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Final

import pytest

from pytest_leakcheck.attribution.tracing.peak_composition import add_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import effort_of
from pytest_leakcheck.config.scaling_marker import Aim, read_sweep
from pytest_leakcheck.config.settings import SCALING, Settings
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude_sizes, sizes_interrupted, unavailable
from pytest_leakcheck.judge.judge_scaling import judge_peak, judge_points
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import RED, Finding, Verdict
from pytest_leakcheck.model.recording import NOT_READ, Point, Recording, Scaled, Sizing
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT
from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.isolation.engines import WORLD_GROUP, Subprocess
from pytest_leakcheck.plugin.isolation.item_elsewhere import ItemElsewhere
from pytest_leakcheck.plugin.isolation.lost_process import explain_loss
from pytest_leakcheck.plugin.isolation.messages import Answer
from pytest_leakcheck.plugin.item_reports import make_report, reports_of, warn
from pytest_leakcheck.plugin.stash import SWEEP
from pytest_leakcheck.plugin.undisturbed import why_failed
from pytest_leakcheck.report.finding_text import junit_properties

# Seconds. The memory peak is analyzed at a size whose run took at most this long; if none did, at the smallest size.
_MAX_QUICK_SECONDS: Final = 12.0


def plan_sizes(item: pytest.Item) -> None:
    """Store the sweep of a test over an axis; raise `InputError` if the mark is invalid or does not suit the item."""
    if SWEEP in item.stash:
        return
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        wrong = "only a function can take the size of an axis as an argument: write def test_it(shards)"
        raise InputError(f"{SCALING}: {wrong}")
    sweep = item.stash[SWEEP] = read_sweep(item.iter_markers(), item.fixturenames)
    if sweep.engine == "thread" and iscoroutinefunction(item.obj):
        wrong = f'engine="thread" runs a function in each rank, not a coroutine: write def {item.name}'
        raise InputError(f"{SCALING}: {wrong}")
    if sweep.engine and (xdist.is_loaded(item.config) or xdist.is_worker(item.config)):
        item.add_marker(pytest.mark.xdist_group(WORLD_GROUP))


class ScaledItem(ItemElsewhere):
    """An item that is run at each size of its axis."""

    def __init__(self, item: pytest.Item, settings: Settings) -> None:
        self._sweep = item.stash[SWEEP]
        super().__init__(item, settings, effort_of(settings), self._sweep.engine)
        self._points: list[Point] = []
        self._culprits: Sequence[Culprit] = ()

    def _conclude_unmeasured(self, error: Exception) -> list[pytest.TestReport]:
        missing = [unavailable(aim.resource, why_failed(error)) for aim in self._sweep.aims]
        return [make_report(self._item, self._conclude(missing))]

    def _measure(self) -> list[pytest.TestReport]:
        last: list[pytest.TestReport] = []
        for size in self._sweep.sizes:
            at = f"{self._sweep.axis}={size}"
            answer = self._run_size(size)
            for sent in answer.messages:
                warn(self._item, sent.warnings)
            if own := _find_own_failure(self._item, at, answer):
                return own
            recordings = tuple(recording for sent in answer.messages for recording in sent.recordings[:1])
            if answer.is_lost or len(recordings) < len(answer.messages):
                loss = explain_loss(answer, self._effort, at)
                return [self._report_lost(loss, self._sweep.aims[0].resource)]
            self._points.append(Point(size, recordings, answer.children, round(answer.ended.seconds, 3)))
            self._culprits = answer.culprits
            last = reports_of(self._item, answer.messages[0])
        judged = self._judge()
        finding = self._conclude(judged)
        if finding.verdict.resource == RESIDENT and finding.verdict.outcome in RED:
            # Only the culprit (the cause) of the worst verdict is reported.
            self._culprits = (*self._culprits, *self._explain_memory_peak())
            finding = self._conclude(judged)
        for one in last:
            if one.when == "teardown":
                # The report from which JUnit's XML takes the properties of a test.
                one.user_properties += junit_properties(finding)
        return [make_report(self._item, finding, one.sections) if one.when == "call" else one for one in last]

    def _judge(self) -> list[Verdict]:
        return [_judge_aim(self._scaled(), aim) for aim in self._sweep.aims]

    def _judge_interrupted(self) -> Sequence[Verdict]:
        """Return the verdicts if all sizes were measured, and else only their peaks so far."""
        sizes, done = self._sweep.sizes, len(self._points)
        if done == len(sizes):
            return self._judge()
        return sizes_interrupted(self._sweep.resources, self._scaled(), sizes[done], len(sizes))

    def _explain_memory_peak(self) -> list[Culprit]:
        """Run the test at its most informative size, or else its smallest, to find what its memory peak is made of."""
        smallest, informative = self._points[0], self._scaled().most_informative_point(_MAX_QUICK_SECONDS)
        for point in (informative, smallest) if informative is not smallest else (smallest,):
            in_children = point.children >= point.peak(RESIDENT, "per_rank")
            answer = self._run_size(point.size, naming=point.near_peak)
            if not answer.is_lost:
                found = [one for one in answer.culprits if one.resource == RESIDENT]
                # Without a peak of its own, a process has no culprit.
                own = found[0] if found else Culprit(RESIDENT)
                return [add_children(own, point.children)] if in_children else found
            loss = explain_loss(answer, self._effort, f"{self._sweep.axis}={point.size}")
        reason = f"the run that searches for the cause was lost: {loss.reason}"
        return [Culprit(RESIDENT, unresolved=dict.fromkeys(("site", "owner"), reason))]

    def _run_size(self, size: int, naming: int = 0) -> Answer:
        return self._engine.run(Sizing(self._sweep.axis, size, self._sweep.resources, self._sweep.engine, naming))

    def _scaled(self) -> Scaled:
        return Scaled(self._sweep.axis, self._sweep.engine, tuple(self._points))

    def _make_finding(self, recording: Recording, verdicts: Sequence[Verdict], policy: Policy) -> Finding:
        budgets: dict[str, str] = {}
        for aim in self._sweep.aims:
            budgets[aim.resource] = ", ".join(filter(None, (budgets.get(aim.resource), str(aim))))
        return conclude_sizes(recording, budgets, verdicts, self._scaled(), policy, self._sweep.reason, self._culprits)


def _judge_aim(scaled: Scaled, aim: Aim) -> Verdict:
    """Judge the peaks of one aim (a bound on one resource)."""
    missing = next(filter(None, (point.why_not(aim.resource) for point in scaled.points)), "")
    if missing:
        if missing == NOT_READ:
            missing = f"the test never called leakcheck.gauge({aim.resource.removeprefix(GAUGE_PREFIX)!r}, ...)"
        return unavailable(aim.resource, missing)
    peaks = scaled.peaks(aim.resource, aim.figure)
    lower, exact = aim.figure == "at_least", scaled.is_exact(aim.resource)
    kind = scaled.points[0].kind(aim.resource)
    return judge_points(aim.resource, scaled.axis, scaled.sizes, peaks, aim.bound, lower=lower, exact=exact, kind=kind)


def _find_own_failure(item: pytest.Item, at: str, answer: Answer) -> list[pytest.TestReport]:
    """Return the reports of the first rank in which the test itself failed or was skipped; else an empty list."""
    found: list[tuple[float, int, list[pytest.TestReport]]] = []
    for rank, sent in enumerate(answer.messages):
        reports = reports_of(item, sent)
        odd = [report.stop for report in reports if not report.passed or hasattr(report, "wasxfail")]
        if odd:
            found.append((odd[0], rank, reports))
    # A rank that ended without a last message is the cause of the failures of the others, so these are not reported.
    if not found or answer.silent_ranks:
        return []
    # The first failure may have caused those of the other ranks.
    _stop, rank, reports = min(found, key=lambda one: one[:2])
    where = at + (f", rank {rank} of {len(answer.messages)}" if len(answer.messages) > 1 else "")
    for report in reports:
        if report.failed:
            report.sections.insert(0, ("leakcheck", f"failed in a separate process at {where}"))
    return reports


def judge_peaks(item: pytest.Item, result: Result, settings: Settings) -> Result:
    """Add a verdict on each budget with a peak to the result of the repetition, unless that result is red (failing).

    If a peak is exceeded, the culprit is the known cause of the first exceeded peak. If the process cannot be started,
    the verdicts on peaks are ``unavailable``.
    """
    budgets = [budget for budget in result.plan.budgets if budget.peak is not None]
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    try:
        return _measure_peaks(Subprocess(item, effort_of(settings)), result, budgets)
    except Exception as error:  # noqa: BLE001 - errors of others are raised again
        missing = tuple(unavailable(budget.resource, why_failed(error), peak=True) for budget in budgets)
    return replace(result, verdicts=(*result.verdicts, *missing))


def _measure_peaks(engine: Subprocess, result: Result, budgets: list[Budget]) -> Result:
    sizing = Sizing("", 0, tuple(budget.resource for budget in budgets))
    answer = engine.run(sizing)
    recordings = answer.messages[0].recordings[:1]
    point = Point(0, recordings, answer.children) if recordings else None
    verdicts = [judge_peak(budget, point, answer.ended.reason) for budget in budgets]
    red = next((one for one in verdicts if one.outcome in RED), None)
    culprit: Culprit | None = None
    if red is not None and point is not None:
        if red.resource == RESIDENT and point.near_peak > 0:
            answer = engine.run(replace(sizing, naming=point.near_peak))
        culprit = next((one for one in answer.culprits if one.resource == red.resource), None)
    return replace(result, verdicts=(*result.verdicts, *verdicts), culprit=culprit or result.culprit)
