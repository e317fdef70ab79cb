"""Logs an iteration that was run silently as the one run of its test: what plain pytest would have shown.

That is the first iteration, of a test that fails, skips or is expected to fail, and of one that passes but does not repeat:
the body of neither is run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import pytest

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin.errors import LeakError
from pytest_leakcheck.plugin.item_reports import attach
from pytest_leakcheck.plugin.session_report import glyphs_of
from pytest_leakcheck.report.finding_text import block

# pytest's own makers of a report; other plugins' may ask for fixtures, which are gone when a report is made here.
_OWN: Final = ("runner", "skipping", "leakcheck-repeater")
# Bytes, for the reports of a test whose start is read before its first iteration.
_ROOM: Final = 1 << 16


class FirstRun:
    """The reports of the first iteration, held while the others are run and read.

    Normally they are there before the start is read, and count as part of it. Without a warm-up the start comes first: then
    they are written into a block of memory that was there before it.
    """

    def __init__(self, item: pytest.Item, *, warmup: int) -> None:
        self._item = item
        self._reports: list[pytest.TestReport] = []
        self._room: bytearray | None = None
        if warmup == 0:
            self._room = bytearray(_ROOM)
            # The first use of all this leaves more behind than the next ones.
            call = pytest.CallInfo.from_call(lambda: None, when="call")
            self.keep([pytest.TestReport.from_item_and_call(item, call)])
            self.take()

    def keep(self, reports: Sequence[pytest.TestReport]) -> None:
        if self._room is None or not self._write(self._room, reports):
            self._reports = list(reports)

    def take(self) -> list[pytest.TestReport]:
        if self._room is None or self._reports:
            return self._reports
        from pytest_leakcheck.plugin.item_reports import report_of
        from pytest_leakcheck.runner.processes import supervisor

        kept = supervisor.from_line(self._room.partition(b"\n")[0].decode())
        return [report_of(self._item, data) for data in kept]

    def _write(self, room: bytearray, reports: Sequence[pytest.TestReport]) -> bool:
        # Loaded only here: few tests go without a warm-up.
        from pytest_leakcheck.runner.processes import supervisor

        config = self._item.config
        to_data = config.hook.pytest_report_to_serializable
        data = [to_data(config=config, report=report) for report in reports]
        line = supervisor.to_line(data).encode() + b"\n"
        if len(line) > len(room):
            return False
        room[: len(line)] = line
        return True


def log(item: pytest.Item, nextitem: pytest.Item | None, reports: list[pytest.TestReport]) -> None:
    """Log these as the reports of the test, and end what was left up for the iterations that do not follow."""
    state = item.session._setupstate
    captured = len(item._report_sections)
    capture = item.config.pluginmanager.getplugin("capturemanager")
    with capture.item_capture("teardown", item) if capture is not None else contextlib.nullcontext():
        call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    sections = [(f"Captured {key} {when}", text) for when, key, text in item._report_sections[captured:]]
    if call.excinfo is not None and not reports[-1].failed:
        sections = reports[-1].sections + sections
        reports[-1] = _make_report(item, call)
        reports[-1].sections = sections
    else:
        reports[-1].sections += sections
    for report in reports:
        report.leakcheck_silent = False  # type: ignore[attr-defined]
        item.ihook.pytest_runtest_logreport(report=report)


def with_finding(
    item: pytest.Item, reports: Sequence[pytest.TestReport], finding: Finding, seconds: float
) -> list[pytest.TestReport]:
    """The reports of a run that passed, with what was found later; where that is red, its call has failed.

    Args:
        item: The test.
        reports: Of all phases, and of subtests.
        finding: On the test.
        seconds: How long all runs have taken.
    """
    changed = []
    for report in reports:
        if not isinstance(report, pytest.SubtestReport):
            if report.when == "call":
                report = _judged(item, report, finding)  # noqa: PLW2901 - one of the three is replaced
                report.duration = seconds
            known = {name for name, _value in report.user_properties}
            report.user_properties += [(name, value) for name, value in item.user_properties if name not in known]
        changed.append(report)
    return changed


def _judged(item: pytest.Item, report: pytest.TestReport, finding: Finding) -> pytest.TestReport:
    if finding.colour != "red":
        attach(report, [finding])
        return report

    def fail() -> None:
        raise LeakError(block(finding, glyphs_of(item.config)))

    red = _make_report(item, pytest.CallInfo.from_call(fail, when="call"))
    red.sections, red.start, red.stop = report.sections, report.start, report.stop
    return red


def _make_report(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """As pytest makes it, with what it makes of an expected failure."""
    manager = item.config.pluginmanager
    others = [plugin for name, plugin in manager.list_name_plugin() if plugin is not None and name not in _OWN]
    hook = manager.subset_hook_caller("pytest_runtest_makereport", others)
    report: pytest.TestReport = hook(item=item, call=call)
    return report
