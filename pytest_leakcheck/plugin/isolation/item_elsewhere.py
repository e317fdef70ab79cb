"""Run an item by an engine, and log its reports in this process.

Consumers of the reports see the same as for a run in this process. A process that dies, hangs or does not find the test
results in a failed report with the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pytest

from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import (
    Policy,
    Result,
    conclude,
    process_interrupted,
    process_lost,
    unavailable,
)
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.plugin import replay
from pytest_leakcheck.plugin.isolation.engines import WORLDS, Subprocess
from pytest_leakcheck.plugin.isolation.lost_process import Loss, explain_loss
from pytest_leakcheck.plugin.item_reports import make_report, report_findings, reports_of, warn
from pytest_leakcheck.plugin.other_plugins import AllureResults
from pytest_leakcheck.plugin.stash import FINDINGS, PLAN, STOPPED, UNMEASURED
from pytest_leakcheck.plugin.undisturbed import unmeasured
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.report.finding_text import junit_properties
from pytest_leakcheck.runner.environment import describe_environment


class ItemElsewhere(ABC):
    """An item that an engine runs: a subclass tells what to run and how to judge the answers; the end is the same."""

    def __init__(self, item: pytest.Item, settings: Settings, effort: Effort, engine: str = "") -> None:
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
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            reports = self._conclude_unmeasured(error)
        if reports:
            AllureResults(item.config).conclude(reports)
        replay.end(item, nextitem, reports)

    @abstractmethod
    def _measure(self) -> list[pytest.TestReport]:
        """Run the item, and return the reports to log."""

    @abstractmethod
    def _make_finding(self, recording: Recording, verdicts: Sequence[Verdict], policy: Policy) -> Finding:
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
        recording = Recording(self._item.nodeid, (), seconds=seconds, stopped=stopped, environment=environment)
        lost = ("inconclusive",) if stopped == "lost" else ()
        policy = Policy((*self._settings.fail_on, *lost), self._settings.missing)
        return self._make_finding(recording, verdicts, policy)

    def _report_lost(
        self, loss: Loss, resource: str, iterations: int = 0, when: Literal["call", "teardown"] = "call"
    ) -> pytest.TestReport:
        """Return the report with the red finding on a lost test, and how its process ended."""
        verdict = process_lost(resource, iterations, loss.reason, loss.advice)
        return make_report(self._item, self._conclude([verdict], "lost"), loss.sections, when)


class IsolatedItem(ItemElsewhere):
    """An item that is repeated and judged in a separate process."""

    def __init__(self, item: pytest.Item, settings: Settings, plan: Plan) -> None:
        super().__init__(item, settings, plan.effort)
        self._plan = plan

    def _measure(self) -> list[pytest.TestReport]:
        item, answer = self._item, self._engine.run()
        (messages,) = answer.messages
        reports = reports_of(item, messages)
        if any(getattr(report, "leakcheck_unmeasured", "") == STOPPED for report in reports):
            # The subprocess has no terminal to type in, so run the test in this process.
            item.stash[UNMEASURED] = STOPPED
            return []
        warn(item, messages.warnings)
        phases = [report.when for report in reports if not isinstance(report, pytest.SubtestReport)]
        if "teardown" in phases:
            AllureResults(item.config).drop(item.nodeid)
        else:
            under = f", under a ceiling of {self._plan.ceiling}" if self._plan.ceiling.sizes else ""
            loss, iterations = explain_loss(answer, self._effort, under=under), max(0, answer.ended.iteration - 1)
            when: Literal["call", "teardown"] = "teardown" if "call" in phases else "call"
            reports.append(self._report_lost(loss, self._plan.budgets[0].resource, iterations, when))
        return reports

    def _make_finding(self, recording: Recording, verdicts: Sequence[Verdict], policy: Policy) -> Finding:
        how = {"lost": "ended without a verdict", "interrupted": "interrupted by Ctrl-C"}.get(recording.stopped)
        if how is not None:
            recording = replace(recording, environment={**recording.environment, "isolated": how})
        return conclude(Result(self._plan, recording, tuple(verdicts), {}), policy)

    def _judge_interrupted(self) -> Sequence[Verdict]:
        return [process_interrupted(self._plan, self._engine.iteration)]

    def _conclude_unmeasured(self, error: Exception) -> list[pytest.TestReport]:
        """Store the verdicts on the item, which then runs in this process."""
        item, plan = self._item, self._plan
        verdicts: Sequence[Verdict] = [unavailable(budget.resource, str(error)) for budget in plan.budgets]
        if not isinstance(error, Unavailable):
            verdicts = unmeasured(plan, error).verdicts
        finding = self._conclude(verdicts)
        item.stash[PLAN], item.stash[FINDINGS] = plan, [finding]
        item.user_properties += junit_properties(finding)
        return []
