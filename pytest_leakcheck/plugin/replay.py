"""Log the first iteration of a test, which ran without logging, as the only run of the test.

If the first iteration fails, skips or fails as expected, the result is what plain pytest would show. The first
iteration is also logged, with the finding, if it passes but a later iteration fails for another reason than a leak. In
both cases, the body of the test does not run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import pytest

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin.allure_results import AllureResults
from pytest_leakcheck.plugin.errors import LeakError
from pytest_leakcheck.plugin.item_reports import attach
from pytest_leakcheck.plugin.terminal_encoding import report_text

# The plugins whose `pytest_runtest_makereport` may run here: two of pytest's own, and `Repeater`. Other plugins may
# request fixtures in this hook, but the fixtures are already torn down.
_REPORT_PLUGINS: Final = ("runner", "skipping", "leakcheck-repeater")
# Bytes for the reports of the first iteration, if there is no warm-up; larger reports are stored as objects.
_BUFFER_BYTES: Final = 1 << 16


class FirstRun:
    """The reports of the first iteration, kept while the other iterations run.

    With a warm-up, they exist before the start level is read, and are part of it. Without a warm-up, the start level is
    read before the first iteration, so they are written into a buffer that was allocated before that reading.
    """

    def __init__(self, item: pytest.Item, *, warmup: int) -> None:
        self._item = item
        self._allure = AllureResults(item.config)
        self._reports: list[pytest.TestReport] = []
        self._buffer: bytearray | None = None
        if warmup == 0:
            self._buffer = bytearray(_BUFFER_BYTES)
            # Use this code once in advance, because its first use allocates more memory than later ones.
            call = pytest.CallInfo.from_call(lambda: None, when="call")
            self._store([pytest.TestReport.from_item_and_call(item, call)])
            self.take()

    def keep(self, reports: Sequence[pytest.TestReport]) -> None:
        """Keep the reports, and let Allure record nothing from here to `close`."""
        self._allure.pause()
        self._store(reports)

    def _store(self, reports: Sequence[pytest.TestReport]) -> None:
        if self._buffer is None or not self._write(self._buffer, reports):
            self._reports = list(reports)

    def close(self) -> None:
        self._allure.resume()

    def take(self) -> list[pytest.TestReport]:
        if self._buffer is None or self._reports:
            return self._reports
        from pytest_leakcheck.plugin.item_reports import report_of
        from pytest_leakcheck.runner.processes import supervisor

        kept = supervisor.from_line(self._buffer.partition(b"\n")[0].decode())
        return [report_of(self._item, data) for data in kept]

    def _write(self, buffer: bytearray, reports: Sequence[pytest.TestReport]) -> bool:
        # Imported only here, because few tests run without a warm-up.
        from pytest_leakcheck.runner.processes import supervisor

        config = self._item.config
        to_data = config.hook.pytest_report_to_serializable
        data = [to_data(config=config, report=report) for report in reports]
        line = supervisor.to_line(data).encode() + b"\n"
        if len(line) > len(buffer):
            return False
        buffer[: len(line)] = line
        return True


def log(item: pytest.Item, nextitem: pytest.Item | None, reports: list[pytest.TestReport]) -> None:
    """Tear down the fixtures that the next item does not need, and log the reports of the test."""
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
        item.ihook.pytest_runtest_logreport(report=report)


def with_finding(
    item: pytest.Item, reports: Sequence[pytest.TestReport], finding: Finding, seconds: float
) -> list[pytest.TestReport]:
    """Add a finding to the reports of a run that passed; a red (failing) finding makes the call report a failure.

    `seconds` is the time of all iterations together; it becomes the duration of the call.
    """
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

    def fail() -> None:
        raise LeakError(report_text(finding, item))

    red = _make_report(item, pytest.CallInfo.from_call(fail, when="call"))
    red.sections, red.start, red.stop = report.sections, report.start, report.stop
    return red


def _make_report(item: pytest.Item, call: pytest.CallInfo[None]) -> pytest.TestReport:
    """Make a report as pytest does, including its handling of expected failures."""
    manager = item.config.pluginmanager
    others = [
        plugin for name, plugin in manager.list_name_plugin() if plugin is not None and name not in _REPORT_PLUGINS
    ]
    hook = manager.subset_hook_caller("pytest_runtest_makereport", others)
    report: pytest.TestReport = hook(item=item, call=call)
    return report
