"""Run an item in a subprocess, and log its reports in this process.

Consumers of the reports see the same as for a run in this process. A process that dies, hangs or does not find the test
results in a failed report with the reason.
"""

from __future__ import annotations

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.judge.not_judged import process_interrupted, process_lost, unavailable
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.plugin.allure_results import AllureResults
from pytest_leakcheck.plugin.chosen_tests import STOPPED
from pytest_leakcheck.plugin.harness_errors import unmeasured
from pytest_leakcheck.plugin.isolation.dispatch import START_UP, send
from pytest_leakcheck.plugin.isolation.lost_process import Loss, explain_loss
from pytest_leakcheck.plugin.isolation.messages import (
    Answer,
    Reported,
    Warned,
    select,
)
from pytest_leakcheck.plugin.item_reports import make_report, report_findings, report_of, tear_down, warn
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
    why_not = supervisor.unsupported()
    if why_not:
        verdicts = tuple(unavailable(budget.resource, why_not) for budget in plan.budgets)
        _run_once(item, nextitem, plan, settings, verdicts)
    else:
        try:
            answer = _send(item, plan)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            _run_once(item, nextitem, plan, settings, unmeasured(plan, error).verdicts)
        else:
            _log_answer(item, nextitem, plan, settings, answer)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _run_once(
    item: pytest.Item, nextitem: pytest.Item | None, plan: Plan, settings: Settings, verdicts: tuple[Verdict, ...]
) -> None:
    """Run an item in this process, logged, with verdicts that were given without measuring it."""
    recording = Recording(plan.test, (), environment=describe_environment())
    item.stash[PLAN] = plan
    finding = conclude(Result(plan, recording, verdicts, {}), Policy(settings.fail_on, settings.missing))
    item.stash[FINDINGS] = [finding]
    item.user_properties += junit.properties(finding)
    runtestprotocol(item, nextitem=nextitem)


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
    reports = [report_of(item, one.report) for one in select(messages, Reported)]
    if any(getattr(report, "leakcheck_unmeasured", "") == STOPPED for report in reports):
        # The subprocess has no terminal to type in, so run the test in this process.
        item.stash[UNMEASURED] = STOPPED
        runtestprotocol(item, nextitem=nextitem)
        return
    for warning in select(messages, Warned):
        warn(item, warning)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    phases = [report.when for report in reports if not isinstance(report, pytest.SubtestReport)]
    if "teardown" not in phases:
        finding, loss = _conclude_lost(plan, answer, settings)
        report = make_report(item, finding, loss.sections, when="teardown" if "call" in phases else "call")
        AllureResults(item.config).conclude([report])
        item.ihook.pytest_runtest_logreport(report=report)
    else:
        AllureResults(item.config).drop(item.nodeid)
    tear_down(item, nextitem, log="teardown" not in phases)


def _without_readings(plan: Plan, stopped: Stopped, how: str, seconds: float) -> Recording:
    """Return the recording of a test whose process has sent none."""
    return Recording(
        plan.test,
        (),
        warmup=plan.effort.warmup,
        seconds=round(seconds, 6),
        stopped=stopped,
        environment={**describe_environment(), "isolated": how},
    )


def _conclude_lost(plan: Plan, answer: Answer, settings: Settings) -> tuple[Finding, Loss]:
    """Return the red finding on a lost test, with how the process ended."""
    ended, loss = answer.ended, explain_loss(answer, plan.effort)
    under = f", under a ceiling of {plan.ceiling}" if plan.ceiling.sizes and loss.reason == ended.reason else ""
    verdict = process_lost(plan.budgets[0].resource, max(0, ended.iteration - 1), loss.reason + under, loss.advice)
    recording = _without_readings(plan, "lost", "ended without a verdict", ended.seconds)
    policy = Policy((*settings.fail_on, "inconclusive"))
    return conclude(Result(plan, recording, (verdict,), {}), policy), loss
