"""Run an item by an engine, once or at each size of an axis, and log its reports in this process.

Consumers of the reports see the same as for a run in this process. A process that dies, hangs or
does not find the test results in a failed report with the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from typing import Final, Literal

import pytest

from pytest_leakcheck.attribution.tracing.allocations import add_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan, effort_of
from pytest_leakcheck.config.scaling_marker import FigureBound, read_sweep
from pytest_leakcheck.config.settings import SCALING, Settings
from pytest_leakcheck.judge.conclude_finding import (
    Policy,
    Result,
    conclude,
    conclude_sizes,
    fails_alone,
    process_interrupted,
    process_lost,
    sizes_interrupted,
    unavailable,
)
from pytest_leakcheck.judge.judge_scaling import advise_ranks, judge_peak, judge_points
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import RED, Finding, Verdict
from pytest_leakcheck.model.recording import NOT_READ, Point, Recording, Scaled, Sizing, Stopped
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.isolation.engines import WORLD_GROUP, WORLDS, Subprocess
from pytest_leakcheck.plugin.isolation.messages import Answer
from pytest_leakcheck.plugin.item_reports import (
    end_item,
    findings_of,
    make_report,
    report_findings,
    reports_of,
    warn,
)
from pytest_leakcheck.plugin.other_plugins import AllureResults, has_xdist, is_worker
from pytest_leakcheck.plugin.pytest_versions import is_of_subtest
from pytest_leakcheck.plugin.undisturbed import unmeasured, why_failed
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.foreign_files import Unreadable
from pytest_leakcheck.report.finding_text import junit_properties
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.processes import supervisor

# Seconds. The memory peak is analyzed at a size whose run took at most this long; if none did, at
# the smallest size.
_MAX_QUICK_SECONDS: Final = 12.0
_ADVICE_UNREADABLE: Final = "the test writes into files of the plugin, or replaces what pytest has made of its report: run it without the plugin"


class ItemElsewhere(ABC):
    """An item that an engine runs; a subclass tells what to run and how to judge the answers."""

    def __init__(
        self, item: pytest.Item, settings: Settings, effort: Effort, engine: str = ""
    ) -> None:
        self._item, self._settings, self._effort = item, settings, effort
        self._engine = WORLDS.get(engine, Subprocess)(item, effort)
        self._began = clock.monotonic()

    def run(self, nextitem: pytest.Item | None) -> None:
        """Run the item, and log its reports; if it has none, run it in this process as it is."""
        item = self._item
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            reports = self._measure()
        except KeyboardInterrupt:
            report_findings(item, [self._conclude(self._judge_interrupted(), "interrupted")])
            raise
        except Unreadable as error:
            reports = [self._report_lost(_unreadable(error), self._resource)]
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            reports = self._conclude_unmeasured(error)
        if reports:
            AllureResults(item.config).conclude(reports)
        end_item(item, nextitem, reports)

    @property
    @abstractmethod
    def _resource(self) -> str:
        """The resource that a verdict names if there is none on any."""

    @abstractmethod
    def _measure(self) -> list[pytest.TestReport]:
        """Run the item, and return the reports to log."""

    @abstractmethod
    def _make_finding(
        self, recording: Recording, verdicts: Sequence[Verdict], policy: Policy
    ) -> Finding:
        """Return the finding on the item; `recording` has no readings."""

    @abstractmethod
    def _judge_interrupted(self) -> Sequence[Verdict]:
        """Return the verdicts when Ctrl-C ends the item."""

    @abstractmethod
    def _conclude_unmeasured(self, error: Exception) -> list[pytest.TestReport]:
        """Return the reports if the item could not be measured; raise an error of others again."""

    def _conclude(self, verdicts: Sequence[Verdict], stopped: Stopped = "judged") -> Finding:
        """Conclude what no process has concluded; a lost test is red in any case."""
        seconds, environment = round(clock.monotonic() - self._began, 6), describe_environment()
        recording = Recording(
            self._item.nodeid, (), seconds=seconds, stopped=stopped, environment=environment
        )
        lost = ("inconclusive",) if stopped == "lost" else ()
        policy = Policy((*self._settings.fail_on, *lost), self._settings.missing)
        return self._make_finding(recording, verdicts, policy)

    def _report_lost(
        self,
        loss: Loss,
        resource: str,
        iterations: int = 0,
        when: Literal["call", "teardown"] = "call",
    ) -> pytest.TestReport:
        """Return the report with the red finding on a lost test, and how its process ended."""
        verdict = process_lost(resource, iterations, loss.reason, loss.advice)
        return make_report(self._item, self._conclude([verdict], "lost"), loss.sections, when)


class IsolatedItem(ItemElsewhere):
    """An item that is repeated and judged in a separate process."""

    def __init__(self, item: pytest.Item, settings: Settings, plan: Plan) -> None:
        super().__init__(item, settings, plan.effort)
        self._plan = plan

    def judge(self) -> list[Finding]:
        """Judge the item in the second pass, without logging: it has run in this process before."""
        try:
            reports = self._reports_of(self._engine.run())
        except KeyboardInterrupt:
            report_findings(self._item, [self._conclude(self._judge_interrupted(), "interrupted")])
            raise
        except Unreadable as error:
            loss = _unreadable(error)
            return [
                self._conclude([process_lost(self._resource, 0, loss.reason, loss.advice)], "lost")
            ]
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            return [self._conclude(self._verdicts_without(error))]
        found = [one for report in reports for one in findings_of(getattr(report, "leakcheck", ""))]
        if found:
            return found
        failed = next((report for report in reports if not report.passed), None)
        return [self._conclude([fails_alone(self._plan, _crash_of(failed))], "failed")]

    @property
    def _resource(self) -> str:
        return self._plan.budgets[0].resource

    def _measure(self) -> list[pytest.TestReport]:
        item, answer = self._item, self._engine.run()
        reports = self._reports_of(answer)
        if any(getattr(report, "leakcheck_unmeasured", "") == keys.STOPPED for report in reports):
            # The subprocess has no terminal to type in, so run the test in this process.
            item.stash[keys.UNMEASURED] = keys.STOPPED
            return []
        warn(item, answer.messages[0].warnings)
        if any(data["when"] == "teardown" for data in answer.messages[0].reports):
            AllureResults(item.config).drop(item.nodeid)
        return reports

    def _reports_of(self, answer: Answer) -> list[pytest.TestReport]:
        """Return the process's reports, and one with the reason if it ended before its last one."""
        (messages,) = answer.messages
        reports = reports_of(self._item, messages)
        phases = [report.when for report in reports if not is_of_subtest(report)]
        if "teardown" not in phases:
            under = f", under a ceiling of {self._plan.ceiling}" if self._plan.ceiling.sizes else ""
            loss, iterations = (
                explain_loss(answer, self._effort, under=under),
                max(0, answer.ended.iteration - 1),
            )
            when: Literal["call", "teardown"] = "teardown" if "call" in phases else "call"
            reports.append(self._report_lost(loss, self._resource, iterations, when))
        return reports

    def _make_finding(
        self, recording: Recording, verdicts: Sequence[Verdict], policy: Policy
    ) -> Finding:
        how = {"lost": "ended without a verdict", "interrupted": "interrupted by Ctrl-C"}.get(
            recording.stopped
        )
        if how is not None:
            recording = replace(recording, environment={**recording.environment, "isolated": how})
        return conclude(Result(self._plan, recording, tuple(verdicts), {}), policy)

    def _judge_interrupted(self) -> Sequence[Verdict]:
        return [process_interrupted(self._plan, self._engine.iteration)]

    def _conclude_unmeasured(self, error: Exception) -> list[pytest.TestReport]:
        """Store the verdicts on the item, which then runs in this process."""
        item, finding = self._item, self._conclude(self._verdicts_without(error))
        item.stash[keys.PLAN], item.stash[keys.FINDINGS] = self._plan, [finding]
        item.user_properties += junit_properties(finding)
        return []

    def _verdicts_without(self, error: Exception) -> Sequence[Verdict]:
        """Return the verdicts if there is no process; raise an error of others again."""
        if isinstance(error, Unavailable):
            return [unavailable(budget.resource, str(error)) for budget in self._plan.budgets]
        return unmeasured(self._plan, error).verdicts


def _crash_of(report: pytest.TestReport | None) -> str:
    """Return the first line of why a test failed or was skipped."""
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    text = (
        crash.message if crash is not None else getattr(report, "longreprtext", "") or "no verdict"
    )
    return str(text).strip().splitlines()[-1 if crash is None else 0]


@dataclass(frozen=True, slots=True)
class Loss:
    """Why there is no verdict, what to do, and the last output and stacks, as report sections."""

    reason: str
    advice: str
    sections: tuple[tuple[str, str], ...]


def _unreadable(error: Unreadable) -> Loss:
    return Loss(f"sent what cannot be read: {error}", _ADVICE_UNREADABLE, ())


def explain_loss(answer: Answer, effort: Effort, at: str = "", under: str = "") -> Loss:
    """Explain why a process gave no verdict or recording.

    `at` is the size of an axis, or empty for a repeated test. `under` are its limits as words, or
    empty if it has none.
    """
    ended = answer.ended
    output = "\n".join(sent.not_collected for sent in answer.messages if sent.not_collected)
    if output:
        reason = "could not be collected in a separate process"
        advice = "its file must be importable in a fresh process; the error is below"
    elif any(sent.not_found for sent in answer.messages):
        reason = "not found again in a separate process"
        advice = (
            "the test's id changes from one collection to the next (a time, an address or a random number in it?): "
            "give its parameters fixed ids, or measure it without isolate"
        )
    else:
        reason = _explain_end(answer, at, effort.max_time) if at else ended.reason + under
        output = ended.said.strip()
        advice = "the last output of the process is below; run the test on its own to see more"
        if ended.hung:
            advice = f"fix the call that hangs, or raise the limit: {effort.advise_time(4 * effort.max_time)}"
    said = (("Captured stderr of the subprocess", output),) if output else ()
    # The stacks of processes that were ended from outside.
    name = "stack of rank {}" if len(answer.stacks) > 1 else "stack of the process"
    stacks = [
        (name.format(rank), supervisor.excerpt(stack))
        for rank, stack in enumerate(answer.stacks)
        if stack.strip()
    ]
    return Loss(reason, advice, (*said, *stacks))


def _explain_end(answer: Answer, at: str, limit: float) -> str:
    """Explain the end of a run at one size; `limit` is the seconds that each step may take."""
    ended, ranks = answer.ended, len(answer.messages)
    if ended.error:
        return ended.reason
    if ended.hung:
        return f"hung at {at}: {_format_ranks(_stuck_ranks(answer), ranks)}made no progress for {limit:g} s"
    silent = answer.silent_ranks[:1]
    if not silent:
        return f"the test's body did not run at {at}"
    how = answer.failures.get(silent[0], supervisor.describe_exit(0 if ranks > 1 else ended.status))
    return f"{_format_ranks(silent, ranks)}{how} at {at}, before the end of the test"


def _format_ranks(numbers: Sequence[int], ranks: int) -> str:
    return f"rank {', '.join(map(str, numbers))} of {ranks} " if ranks > 1 else ""


def _stuck_ranks(answer: Answer) -> list[int]:
    """List the ranks without a recording, or all; drop those in a collective, unless all are."""
    ranks = range(len(answer.messages))
    stuck = [rank for rank in ranks if not answer.messages[rank].recordings] or list(ranks)
    return [
        rank
        for rank in stuck
        if "/torch/distributed/distributed_c10d.py" not in answer.stacks[rank]
    ] or stuck


def plan_sizes(item: pytest.Item) -> None:
    """Store the sweep of a test over an axis.

    Raises:
        InputError: The mark is invalid, or does not suit the item.
    """
    if keys.SWEEP in item.stash:
        return
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        wrong = (
            "only a function can take the size of an axis as an argument: write def test_it(shards)"
        )
        raise InputError(f"{SCALING}: {wrong}")
    sweep = item.stash[keys.SWEEP] = read_sweep(item.iter_markers(), item.fixturenames)
    if sweep.engine == "thread" and iscoroutinefunction(item.obj):
        wrong = (
            f'engine="thread" runs a function in each rank, not a coroutine: write def {item.name}'
        )
        raise InputError(f"{SCALING}: {wrong}")
    if sweep.engine and (has_xdist(item.config) or is_worker(item.config)):
        item.add_marker(pytest.mark.xdist_group(WORLD_GROUP))


class ScaledItem(ItemElsewhere):
    """An item that runs at each size of its axis, each in its own subprocess or world (of ranks).

    The session logs the reports of the run at the largest size, with the finding in place of the
    outcome of the body, or those of a run in which the test itself fails.
    """

    def __init__(self, item: pytest.Item, settings: Settings) -> None:
        self._sweep = item.stash[keys.SWEEP]
        super().__init__(item, settings, effort_of(settings), self._sweep.engine)
        self._points: list[Point] = []
        self._culprits: Sequence[Culprit] = ()

    @property
    def _resource(self) -> str:
        return str(self._sweep.aims[0].resource)

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
            recordings = tuple(
                recording for sent in answer.messages for recording in sent.recordings[:1]
            )
            if answer.is_lost or len(recordings) < len(answer.messages):
                loss = explain_loss(answer, self._effort, at)
                return [self._report_lost(loss, self._resource)]
            self._points.append(
                Point(size, recordings, answer.children, round(answer.ended.seconds, 3))
            )
            self._culprits = answer.culprits
            last = reports_of(self._item, answer.messages[0])
        judged = self._judge()
        finding = self._conclude(judged)
        if finding.verdict.resource == RESIDENT and finding.verdict.outcome in RED:
            # Only the culprit (the cause) of the worst verdict is reported.
            self._culprits = (*self._culprits, *self._explain_memory_peak())
            finding = self._conclude(judged)
        for report in last:
            if report.when == "teardown":
                # The report from which JUnit's XML takes the properties of a test.
                report.user_properties += junit_properties(finding)
        return [
            make_report(self._item, finding, report.sections) if report.when == "call" else report
            for report in last
        ]

    def _judge(self) -> list[Verdict]:
        return [_judge_aim(self._scaled(), aim) for aim in self._sweep.aims]

    def _judge_interrupted(self) -> Sequence[Verdict]:
        """Return the verdicts if all sizes were measured, and else only their peaks so far."""
        sizes, done = self._sweep.sizes, len(self._points)
        if done == len(sizes):
            return self._judge()
        return sizes_interrupted(self._sweep.resources, self._scaled(), sizes[done], len(sizes))

    def _explain_memory_peak(self) -> list[Culprit]:
        """Run the test at its most informative (else smallest) size to explain its memory peak."""
        smallest, informative = (
            self._points[0],
            self._scaled().most_informative_point(_MAX_QUICK_SECONDS),
        )
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
        return self._engine.run(
            Sizing(self._sweep.axis, size, self._sweep.resources, self._sweep.engine, naming)
        )

    def _scaled(self) -> Scaled:
        return Scaled(self._sweep.axis, self._sweep.engine, tuple(self._points))

    def _make_finding(
        self, recording: Recording, verdicts: Sequence[Verdict], policy: Policy
    ) -> Finding:
        budgets: dict[str, str] = {}
        for aim in self._sweep.aims:
            budgets[aim.resource] = ", ".join(filter(None, (budgets.get(aim.resource), str(aim))))
        return conclude_sizes(
            recording, budgets, verdicts, self._scaled(), policy, self._sweep.reason, self._culprits
        )


def _judge_aim(scaled: Scaled, aim: FigureBound) -> Verdict:
    """Judge the peaks of one aim (a bound on one resource)."""
    missing = next(filter(None, (point.why_not(aim.resource) for point in scaled.points)), "")
    if missing:
        if missing == NOT_READ:
            missing = f"the test never called leakcheck.gauge({aim.resource.removeprefix(GAUGE_PREFIX)!r}, ...)"
        return unavailable(aim.resource, missing)
    peaks = scaled.peaks(aim.resource, aim.figure)
    lower, exact = aim.figure == "at_least", scaled.is_exact(aim.resource)
    kind = scaled.points[0].kind(aim.resource)
    added = scaled.count_added_processes(aim.figure)
    verdict = judge_points(
        aim.resource,
        scaled.axis,
        scaled.sizes,
        peaks,
        aim.bound,
        lower=lower,
        exact=exact,
        kind=kind,
        added_processes=added,
    )
    return advise_ranks(verdict, aim, scaled)


def _find_own_failure(item: pytest.Item, at: str, answer: Answer) -> list[pytest.TestReport]:
    """Return the reports of the first rank whose test failed or was skipped, or an empty list."""
    found: list[tuple[float, int, list[pytest.TestReport]]] = []
    for rank, sent in enumerate(answer.messages):
        reports = reports_of(item, sent)
        odd = [
            report.stop for report in reports if not report.passed or hasattr(report, "wasxfail")
        ]
        if odd:
            found.append((odd[0], rank, reports))
    # A rank that ended without a last message is the cause of the failures of the others, so these
    # are not reported.
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
    """Add verdicts on peak budgets to the result of the repetition, unless it is red (failing).

    If a peak is exceeded, the culprit is the known cause of the first exceeded peak. If the process
    cannot be started, the verdicts on peaks are ``unavailable``.
    """
    budgets = [budget for budget in result.plan.budgets if budget.peak is not None]
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    try:
        return _measure_peaks(Subprocess(item, effort_of(settings)), result, budgets)
    except Exception as error:  # noqa: BLE001 - errors of others are raised again
        missing = tuple(
            unavailable(budget.resource, why_failed(error), peak=True) for budget in budgets
        )
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
    return replace(
        result, verdicts=(*result.verdicts, *verdicts), culprit=culprit or result.culprit
    )
