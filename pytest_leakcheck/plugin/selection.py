"""Tell whether a session runs the whole suite, whether an item asks for a verdict, and whether a debugger is at work."""

from __future__ import annotations

import sys
from typing import Final

import pytest

from pytest_leakcheck.plugin.stash import PLAN, SWEEP

_OPTIONS: Final = {"keyword": "-k", "markexpr": "-m", "lf": "--lf", "last_failed": "--lf", "deselect": "--deselect"}

# The options with which each test runs once.
_DEBUGGING_OPTIONS: Final = {"usepdb": "--pdb", "trace": "--trace", "setuponly": "--setup-only"}
# A debugger that an editor attaches imports one of these modules.
_DEBUGGER_MODULES: Final = ("pydevd", "debugpy")
STOPPED: Final = "a debugger stopped in it"


def find_debugger(config: pytest.Config) -> str:
    """Return why no test is measured now, as part of a sentence: it must not stop in every iteration. Empty if it may."""
    if flag := next((flag for option, flag in _DEBUGGING_OPTIONS.items() if config.getoption(option)), ""):
        return f"with {flag}, each test runs once"
    # Other tools also set a trace function, such as coverage.py.
    kinds = type(getattr(sys.gettrace(), "__self__", None)).__mro__
    attached = any(name in sys.modules for name in _DEBUGGER_MODULES) or any(one.__module__ == "bdb" for one in kinds)
    monitoring = getattr(sys, "monitoring", None)
    if attached or (monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID)):
        return "a debugger is attached, so each test runs once"
    return ""


def asks_for_verdict(item: pytest.Item) -> bool:
    """Return whether an item has a plan or a sweep, or may judge loops of its own."""
    return PLAN in item.stash or SWEEP in item.stash or "leakcheck" in getattr(item, "fixturenames", ())


def selected_by(config: pytest.Config) -> str:
    """Return the argument that selects a part of the suite; empty if the session runs the whole."""
    for name, flag in _OPTIONS.items():
        if config.getoption(name, None):
            return flag
    given = config.args_source is pytest.Config.ArgsSource.ARGS
    return str(config.args[0]) if given else ""
