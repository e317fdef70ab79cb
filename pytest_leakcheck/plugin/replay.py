"""End a measured test: log the reports of a run that is over as the only ones, or else run it once more, logged.

The first iteration is the only run if it fails or skips, as in plain pytest, or a later iteration fails for another
reason than a leak. If pytest-rerunfailures is to re-run the test, the first iteration counts as its first attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin.item_reports import apply, attach
from pytest_leakcheck.plugin.stash import PROCESS


def end(item: pytest.Item, nextitem: pytest.Item | None, reports: list[pytest.TestReport]) -> None:
    """Log the reports of a run that is over, or run the item if there are none; then the end of the item."""
    if reports:
        _tear_down(item, nextitem, reports)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
    else:
        runtestprotocol(item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None, reports: list[pytest.TestReport]) -> None:
    """Tear down the fixtures that the next item does not need, and tell in the report of the tear-down what came of it."""
    state = item.session._setupstate
    captured = len(item._report_sections)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with capture.item_capture("teardown", item) if capture is not None else contextlib.nullcontext():
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    sections = [(f"Captured {key} {when}", text) for when, key, text in item._report_sections[captured:]]
    if reports[-1].when == "teardown":
        sections = reports[-1].sections + sections
        if call.excinfo is not None and not reports[-1].failed:
            reports[-1] = _make_report(item, call)
    else:
        reports.append(_make_report(item, call))
    reports[-1].sections = sections


def with_finding(
    item: pytest.Item, reports: Sequence[pytest.TestReport], finding: Finding, seconds: float
) -> list[pytest.TestReport]:
    """Add a finding to the reports of a run that passed; `seconds`, of all iterations, become the duration of the call."""
    changed = []
    for report in reports:
        if not isinstance(report, pytest.SubtestReport):
            if report.when == "call":
                report = _apply_finding(item, report, finding)  # noqa: PLW2901 - only the call report is replaced
                report.duration = seconds
            known = {name for name, _value in report.user_properties}
            report.user_properties += [(name, value) for name, value in item.user_properties if name not in known]
        changed.append(report)
    return changed


def _apply_finding(item: pytest.Item, report: pytest.TestReport, finding: Finding) -> pytest.TestReport:
    """Attach a finding to a call report; replace the report if the finding is red."""
    if finding.colour != "red":
        attach(report, [finding])
        return report
    red = _make_report(item, pytest.CallInfo.from_call(lambda: apply(finding, item), when="call"))
    red.sections, red.start, red.stop = report.sections, report.start, report.stop
    return red


def _make_report(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """Make a report as pytest does, including its handling of expected failures."""
    manager = item.config.pluginmanager
    # Other plugins may request fixtures in this hook, but the fixtures are already torn down.
    makers = ("runner", "skipping", "leakcheck-repeater")
    others = [plugin for name, plugin in manager.list_name_plugin() if plugin is not None and name not in makers]
    hook = manager.subset_hook_caller("pytest_runtest_makereport", others)
    report: pytest.TestReport = hook(item=item, call=call)
    return report


def rerunner_of(item: pytest.Item) -> Any:
    """Return the module of pytest-rerunfailures if it re-runs an item that fails; not in a process for one test."""
    plugin: Any = item.config.pluginmanager.getplugin("rerunfailures")
    needed = ("get_reruns_count", "pytest_runtest_protocol", "runtestprotocol")
    known = all(callable(getattr(plugin, name, None)) for name in needed)
    return plugin if known and PROCESS not in item.config.stash and plugin.get_reruns_count(item) else None


def hand_to_rerunfailures(
    plugin: Any, item: pytest.Item, nextitem: pytest.Item | None, reports: Sequence[pytest.TestReport]
) -> bool:
    """Log a failed first iteration as the first attempt, and run the others; return False with reports of subtests."""
    if any(isinstance(report, pytest.SubtestReport) for report in reports):
        return False
    original = plugin.runtestprotocol

    def first_attempt(*_args: object, **_kwargs: object) -> Sequence[pytest.TestReport]:
        plugin.runtestprotocol = original
        return reports

    # The plugin has no hook for an attempt that was made already, so its name for pytest's function is replaced.
    plugin.runtestprotocol = first_attempt
    try:
        return plugin.pytest_runtest_protocol(item, nextitem) is True
    finally:
        plugin.runtestprotocol = original
