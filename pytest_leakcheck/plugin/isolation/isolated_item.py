"""Run an item in a subprocess, and log its reports in this process.

Consumers of the reports see the same as for a run in this process. A process that dies, hangs or does not find the test
results in a failed report with the reason.
"""

from __future__ import annotations

from typing import Literal

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.judge.not_judged import process_interrupted, process_lost, unavailable
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.plugin.allure_results import AllureResults
from pytest_leakcheck.plugin.chosen_tests import STOPPED
from pytest_leakcheck.plugin.harness_errors import unmeasured
from pytest_leakcheck.plugin.isolation.dispatch import START_UP, send
from pytest_leakcheck.plugin.isolation.lost_process import explain_loss
from pytest_leakcheck.plugin.isolation.messages import Answer
from pytest_leakcheck.plugin.item_reports import make_report, report_findings, reports_of, tear_down, warn
from pytest_leakcheck.plugin.stash import FINDINGS, PLAN, UNMEASURED
from pytest_leakcheck.probes import clock
from pytest_leakcheck.report import junit
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.processes import supervisor


def run_alone(item: pytest.Item, nextitem: pytest.Item | None, plan: Plan, settings: Settings) -> None:
    """Run an item in a subprocess, and log its reports.

    If this system does not support that, skip the item with the reason, or fail it with ``--leakcheck-missing=fail``.
    If the subprocess cannot be started, run the item once in this process, without a verdict.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    answer = None
    if why_not := supervisor.unsupported():
        verdicts = tuple(unavailable(budget.resource, why_not) for budget in plan.budgets)
    else:
        try:
            answer = _send(item, plan)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            verdicts = unmeasured(plan, error).verdicts
    if answer is not None:
        _log_answer(item, nextitem, plan, settings, answer)
    else:
        _note_unmeasured(item, plan, settings, verdicts)
        runtestprotocol(item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _note_unmeasured(item: pytest.Item, plan: Plan, settings: Settings, verdicts: tuple[Verdict, ...]) -> None:
    """Store verdicts that were given without measuring an item, which then runs in this process."""
    recording = Recording(plan.test, (), environment=describe_environment())
    item.stash[PLAN] = plan
    finding = conclude(Result(plan, recording, verdicts, {}), Policy(settings.fail_on, settings.missing))
    item.stash[FINDINGS] = [finding]
    item.user_properties += junit.properties(finding)


def _send(item: pytest.Item, plan: Plan) -> Answer:
    step = 2 * plan.effort.max_time + START_UP
    began, iteration = clock.monotonic(), 0

    def note(_pid: int, board: supervisor.Board) -> None:
        nonlocal iteration
        iteration = board.iteration

    try:
        return send(item, supervisor.Patience(step, step), watch=note)
    except KeyboardInterrupt:
        recording = _without_readings(plan, "interrupted", "interrupted by Ctrl-C", clock.monotonic() - began)
        result = Result(plan, recording, (process_interrupted(plan, iteration),), {})
        report_findings(item, [conclude(result, Policy(()))])
        raise


def _log_answer(
    item: pytest.Item, nextitem: pytest.Item | None, plan: Plan, settings: Settings, answer: Answer
) -> None:
    (messages,) = answer.messages
    reports = reports_of(item, messages)
    if any(getattr(report, "leakcheck_unmeasured", "") == STOPPED for report in reports):
        # The subprocess has no terminal to type in, so run the test in this process.
        item.stash[UNMEASURED] = STOPPED
        runtestprotocol(item, nextitem=nextitem)
        return
    warn(item, messages.warnings)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    phases = [report.when for report in reports if not isinstance(report, pytest.SubtestReport)]
    if "teardown" in phases:
        AllureResults(item.config).drop(item.nodeid)
    else:
        report = _report_lost(item, plan, answer, settings, when="teardown" if "call" in phases else "call")
        AllureResults(item.config).conclude([report])
        item.ihook.pytest_runtest_logreport(report=report)
    tear_down(item, nextitem, log="teardown" not in phases)


def _without_readings(plan: Plan, stopped: Stopped, how: str, seconds: float) -> Recording:
    """Return the recording of a test whose process has sent none."""
    warmup, environment = plan.effort.warmup, {**describe_environment(), "isolated": how}
    return Recording(plan.test, (), warmup, seconds=round(seconds, 6), stopped=stopped, environment=environment)


def _report_lost(
    item: pytest.Item, plan: Plan, answer: Answer, settings: Settings, when: Literal["call", "teardown"]
) -> pytest.TestReport:
    """Return the report with the red finding on a lost test, and how the process ended."""
    ended, loss = answer.ended, explain_loss(answer, plan.effort)
    under = f", under a ceiling of {plan.ceiling}" if plan.ceiling.sizes and loss.reason == ended.reason else ""
    verdict = process_lost(plan.budgets[0].resource, max(0, ended.iteration - 1), loss.reason + under, loss.advice)
    recording = _without_readings(plan, "lost", "ended without a verdict", ended.seconds)
    finding = conclude(Result(plan, recording, (verdict,), {}), Policy((*settings.fail_on, "inconclusive")))
    return make_report(item, finding, loss.sections, when)
