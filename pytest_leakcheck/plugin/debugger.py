"""Leave a test without a verdict if a debugger is at work: it must not stop in every iteration."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Final

import pytest

from pytest_leakcheck.plugin.selection import asks_for_verdict
from pytest_leakcheck.plugin.stash import NOT_ASKED, UNMEASURED

# The options with which each test runs once.
_OPTIONS: Final = {"usepdb": "--pdb", "trace": "--trace", "setuponly": "--setup-only"}
# A debugger that an editor attaches imports one of these modules.
_MODULES: Final = ("pydevd", "debugpy")
STOPPED: Final = "a debugger stopped in it"


def find_debugger(config: pytest.Config) -> str:
    """Return why no test is measured now, as part of a sentence; empty if no debugger is at work.

    Other tools also set a trace function, such as coverage.py. They are no debuggers.
    """
    for option, flag in _OPTIONS.items():
        if config.getoption(option):
            return f"with {flag}, each test runs once"
    for module in _MODULES:
        if module in sys.modules:
            return f"the debugger {module} is loaded, so each test runs once"
    tracer = getattr(sys.gettrace(), "__self__", None)
    bdb = sys.modules.get("bdb")
    if bdb is not None and isinstance(tracer, bdb.Bdb):
        return f"the debugger {type(tracer).__name__} traces, so each test runs once"
    monitoring = getattr(sys, "monitoring", None)
    tool = monitoring.get_tool(monitoring.DEBUGGER_ID) if monitoring is not None else None
    return f"the debugger {tool} monitors, so each test runs once" if tool is not None else ""


class DebuggerWatch:
    """The hooks that note why a test is not measured; registered with ``--leakcheck``."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._item = item
        item.stash[UNMEASURED] = find_debugger(item.config)
        return (yield)

    @pytest.hookimpl
    def pytest_enter_pdb(self) -> None:
        """Note that ``breakpoint()`` or ``pdb.set_trace()`` stopped in the test, so that it is not repeated again."""
        if self._item is not None and not self._item.stash[UNMEASURED]:
            self._item.stash[UNMEASURED] = STOPPED

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the reason on the report, which an xdist worker sends to its session."""
        item = self._item
        if item is None or item.nodeid != report.nodeid:
            return
        if not_asked := item.stash.get(NOT_ASKED, ""):
            report.leakcheck_not_asked = not_asked  # type: ignore[attr-defined]
        if not (reason := item.stash[UNMEASURED]):
            return
        if asks_for_verdict(item):
            report.leakcheck_unmeasured = reason  # type: ignore[attr-defined]
