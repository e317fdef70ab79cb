"""Run a test at each size of an axis, and judge the growth law of its peaks; or run it once more for a ``peak=``.

Each size runs in a subprocess, or a world (a group of ranks, which run the test together), of its own. The session logs
the reports of the run at the largest size, with the finding in place of the outcome of the body, or those of a run in
which the test itself fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Final

import pytest

from pytest_leakcheck.attribution.tracing.peak_composition import add_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.markers import SCALING, effort_of
from pytest_leakcheck.config.scaling_marker import Aim, read_sweep
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import conclude_sizes
from pytest_leakcheck.judge.judge_peak import judge_peak
from pytest_leakcheck.judge.judge_scaling import judge_points
from pytest_leakcheck.judge.not_judged import process_lost, sizes_interrupted, unavailable
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT
from pytest_leakcheck.model.scaling_points import NOT_READ, Point, Scaled, Sizing
from pytest_leakcheck.model.verdict import RED, Verdict
from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.allure_results import AllureResults
from pytest_leakcheck.plugin.harness_errors import why_failed
from pytest_leakcheck.plugin.isolation.dispatch import START_UP, send
from pytest_leakcheck.plugin.isolation.lost_process import explain_loss
from pytest_leakcheck.plugin.isolation.messages import Answer
from pytest_leakcheck.plugin.item_reports import make_report, report_findings, reports_of, tear_down, warn
from pytest_leakcheck.plugin.stash import SWEEP
from pytest_leakcheck.probes import clock
from pytest_leakcheck.report import junit
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.child_peak import ChildrenPeak

# The name of the lock file and of the xdist group that keep xdist workers from running worlds at the same time, because
# their processes would starve each other.
_WORLD_GROUP: Final = "leakcheck-worlds"
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
        item.add_marker(pytest.mark.xdist_group(_WORLD_GROUP))


def run_sizes(item: pytest.Item, nextitem: pytest.Item | None, settings: Settings) -> None:
    """Run an item at each size of its axis, and log the reports with the finding."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = _ScaledRun(item, settings).reports()
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    AllureResults(item.config).conclude(reports)
    tear_down(item, nextitem, log=not any(report.when == "teardown" for report in reports))
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


class _ScaledRun:
    """The runs of one test at all its sizes."""

    def __init__(self, item: pytest.Item, settings: Settings) -> None:
        self._item, self._settings, self._sweep = item, settings, item.stash[SWEEP]
        self._points: list[Point] = []
        self._culprits: Sequence[Culprit] = ()
        self._began = clock.monotonic()

    def reports(self) -> list[pytest.TestReport]:
        """Run the test at each size, and return the reports to log."""
        why_not = supervisor.unsupported()
        if self._sweep.engine == "gloo" and find_spec("torch") is None:
            why_not = why_not or 'engine="gloo" needs torch.distributed, and torch is not installed here'
        if not why_not:
            try:
                return self._run_sizes()
            except KeyboardInterrupt:
                report_findings(self._item, [self._conclude_interrupted()])
                raise
            except Exception as error:  # noqa: BLE001 - errors of others are raised again
                why_not = why_failed(error)
        missing = [unavailable(aim.resource, why_not) for aim in self._sweep.aims]
        return [make_report(self._item, self._conclude(missing))]

    def _run_sizes(self) -> list[pytest.TestReport]:
        last: list[pytest.TestReport] = []
        for size in self._sweep.sizes:
            at = f"{self._sweep.axis}={size}"
            answer, children = self._run_size(size)
            for sent in answer.messages:
                warn(self._item, sent.warnings)
            if own := _find_own_failure(self._item, at, answer):
                return own
            recordings = tuple(recording for sent in answer.messages for recording in sent.recordings[:1])
            if answer.is_lost or len(recordings) < len(answer.messages):
                loss = explain_loss(answer, effort_of(self._settings), at)
                verdict = process_lost(self._sweep.aims[0].resource, 0, loss.reason, loss.advice)
                return [make_report(self._item, self._conclude([verdict], "lost"), loss.sections)]
            self._points.append(Point(size, recordings, children, round(answer.ended.seconds, 3)))
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
                one.user_properties += junit.properties(finding)
        return [make_report(self._item, finding, one.sections) if one.when == "call" else one for one in last]

    def _judge(self) -> list[Verdict]:
        return [_judge_aim(self._scaled(), aim) for aim in self._sweep.aims]

    def _conclude_interrupted(self) -> Finding:
        """Conclude what was measured until Ctrl-C: the verdicts if all sizes were, and else only their peaks."""
        sizes, done = self._sweep.sizes, len(self._points)
        if done == len(sizes):
            judged = self._judge()
        else:
            judged = sizes_interrupted(self._sweep.resources, self._scaled(), sizes[done], len(sizes))
        return self._conclude(judged, "interrupted")

    def _explain_memory_peak(self) -> list[Culprit]:
        """Run the test at its most informative size, or else its smallest, to find what its memory peak is made of."""
        smallest, informative = self._points[0], self._scaled().most_informative_point(_MAX_QUICK_SECONDS)
        for point in (informative, smallest) if informative is not smallest else (smallest,):
            in_children = point.children >= point.peak(RESIDENT, "per_rank")
            answer, _children = self._run_size(point.size, naming=point.near_peak)
            if not answer.is_lost:
                found = [one for one in answer.culprits if one.resource == RESIDENT]
                # Without a peak of its own, a process has no culprit.
                own = found[0] if found else Culprit(RESIDENT)
                return [add_children(own, point.children)] if in_children else found
            loss = explain_loss(answer, effort_of(self._settings), f"{self._sweep.axis}={point.size}")
        reason = f"the run that searches for the cause was lost: {loss.reason}"
        return [Culprit(RESIDENT, unresolved=dict.fromkeys(("site", "owner"), reason))]

    def _run_size(self, size: int, naming: int = 0) -> tuple[Answer, int]:
        sizing = Sizing(self._sweep.axis, size, self._sweep.resources, self._sweep.engine, naming)
        with _hold_world_lock(self._item.config) if sizing.of_processes else nullcontext():
            return _measure(self._item, self._settings, sizing)

    def _scaled(self) -> Scaled:
        return Scaled(self._sweep.axis, self._sweep.engine, tuple(self._points))

    def _conclude(self, judged: Sequence[Verdict], stopped: Stopped = "judged") -> Finding:
        seconds, environment = round(clock.monotonic() - self._began, 6), describe_environment()
        recording = Recording(self._item.nodeid, (), seconds=seconds, stopped=stopped, environment=environment)
        budgets: dict[str, str] = {}
        for aim in self._sweep.aims:
            budgets[aim.resource] = ", ".join(filter(None, (budgets.get(aim.resource), str(aim))))
        lost = ("inconclusive",) if stopped == "lost" else ()
        policy = Policy((*self._settings.fail_on, *lost), self._settings.missing)
        return conclude_sizes(recording, budgets, judged, self._scaled(), policy, self._sweep.reason, self._culprits)


def _measure(item: pytest.Item, settings: Settings, sizing: Sizing) -> tuple[Answer, int]:
    """Run the test once; return the answer, and the peak bytes of child processes, 0 if not observed."""
    children = ChildrenPeak()
    watch = children.look if RESIDENT in sizing.resources and not sizing.of_processes else None
    return send(item, supervisor.Patience(START_UP, settings.max_time), sizing, watch), children.peak


@contextmanager
def _hold_world_lock(config: pytest.Config) -> Iterator[None]:
    """Hold a lock so that only one xdist worker of the session runs a world at a time."""
    if not xdist.is_worker(config):
        yield
        return
    import fcntl

    # The folder of a worker lies in that of the session.
    with Path(config._tmp_path_factory.getbasetemp().parent, _WORLD_GROUP).open("w") as file:  # type: ignore[attr-defined]
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
    why_not = supervisor.unsupported()
    if not why_not:
        try:
            return _measure_peaks(item, result, settings, budgets)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            why_not = why_failed(error)
    missing = tuple(unavailable(budget.resource, why_not, peak=True) for budget in budgets)
    return replace(result, verdicts=(*result.verdicts, *missing))


def _measure_peaks(item: pytest.Item, result: Result, settings: Settings, budgets: list[Budget]) -> Result:
    sizing = Sizing("", 0, tuple(budget.resource for budget in budgets))
    answer, children = _measure(item, settings, sizing)
    recordings = answer.messages[0].recordings[:1]
    point = Point(0, recordings, children) if recordings else None
    verdicts = [judge_peak(budget, point, answer.ended.reason) for budget in budgets]
    red = next((one for one in verdicts if one.outcome in RED), None)
    culprit: Culprit | None = None
    if red is not None and point is not None:
        if red.resource == RESIDENT and point.near_peak > 0:
            answer, _children = _measure(item, settings, replace(sizing, naming=point.near_peak))
        culprit = next((one for one in answer.culprits if one.resource == red.resource), None)
    return replace(result, verdicts=(*result.verdicts, *verdicts), culprit=culprit or result.culprit)
