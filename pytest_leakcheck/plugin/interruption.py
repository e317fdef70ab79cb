"""Report what was found in a test that Ctrl-C ends, for which pytest logs no report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.judge.not_judged import interrupted
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin.stash import KNOWN
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions
from pytest_leakcheck.runner.repetition import Repetition


def end_early(item: pytest.Item, repetition: Repetition, reason: BaseException, settings: Settings) -> None:
    """End the repetition of a test. After Ctrl-C, report its series so far; an error leaves it without a finding."""
    if not isinstance(reason, KeyboardInterrupt):
        repetition.abandon()
        return
    try:
        report_results(item, [repetition.end("interrupted")], settings)
    except Exception:  # noqa: BLE001 - the session is about to end
        repetition.abandon()


def report_results(item: pytest.Item, results: Iterable[Result], settings: Settings) -> None:
    """Report what a test has found so far, with verdicts on what was not judged."""
    with OriginalFunctions():
        policy = Policy.of(settings, item.config.stash[KNOWN])
        report_findings(item, [conclude(interrupted(result), policy) for result in results])


def report_findings(item: pytest.Item, findings: Iterable[Finding]) -> None:
    """Add findings to those of the session, in the process that prints; another process ends without them."""
    session: Any = item.config.pluginmanager.getplugin("leakcheck-session")
    with contextlib.suppress(Exception):
        for finding in findings:
            session.add(finding)
