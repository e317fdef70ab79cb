"""Make, change and log pytest's reports of items that ran elsewhere or several times."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest

from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.finding import Finding


def report_of(item: pytest.Item, data: dict[str, Any]) -> pytest.TestReport:
    data["nodeid"] = item.nodeid
    for finding in data.get("leakcheck", ()):
        finding["test"] = finding["recording"]["test"] = item.nodeid
    report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
    assert isinstance(report, pytest.TestReport)
    if isinstance(report, pytest.SubtestReport):
        # They travel as text, which pytest quotes once more as it reads them.
        report.context.kwargs.update(data["_subtest.context"]["kwargs"])  # type: ignore[attr-defined]
    return report


def warn(item: pytest.Item, told: dict[str, Any]) -> None:
    """Show a warning of the child's; a category that this process does not know is shown as a plain one."""
    module, name = told["category"]
    category = getattr(sys.modules.get(module), name, None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = Warning
    # Told by its text: the arguments of a warning may be anything.
    message = warnings.WarningMessage(told["text"], category, told["filename"], told["lineno"])
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": message,
            "when": "runtest",
            "nodeid": told["nodeid"],
            "location": told["location"],
        }
    )


def tear_down(item: pytest.Item, nextitem: pytest.Item | None, *, log: bool) -> None:
    """End what earlier tests left up for this one and those after it do not need."""
    state = item.session._setupstate
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    report = pytest.TestReport.from_item_and_call(item, call)
    if log or report.failed:
        item.ihook.pytest_runtest_logreport(report=report)


def attach(report: pytest.TestReport, findings: list[Finding]) -> None:
    """Have a report carry what was found."""
    report.leakcheck = encode(findings)  # type: ignore[attr-defined]
    # What the short summary, JUnit and annotations show of a failure; in CI pytest does not cut it to the line.
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and crash.message.startswith(("LeakError: ", "Failed: ")):
        crash.message = crash.message.partition("\n")[0]
