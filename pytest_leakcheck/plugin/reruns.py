"""Let pytest-rerunfailures re-run a test whose first iteration failed.

That iteration counts as the first attempt: its reports are logged as a re-run, and its body does not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_leakcheck.plugin.stash import PROCESS


def is_active(item: pytest.Item) -> bool:
    """Return whether pytest-rerunfailures re-runs an item that fails; not in a process that was started for one test."""
    plugin = _find_plugin(item)
    return plugin is not None and bool(plugin.get_reruns_count(item))


def run_again(item: pytest.Item, nextitem: pytest.Item | None, reports: Sequence[pytest.TestReport]) -> bool:
    """Log the reports of a failed first iteration as the first attempt, and make and log the other attempts.

    Call it only if `is_active` holds. Return whether all reports are logged. With reports of subtests, nothing is done.
    """
    plugin = _find_plugin(item)
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


def _find_plugin(item: pytest.Item) -> Any:
    """Return the module of the plugin; None where it is absent, unknown, or must not re-run the item."""
    plugin = item.config.pluginmanager.getplugin("rerunfailures")
    needed = ("get_reruns_count", "pytest_runtest_protocol", "runtestprotocol")
    known = all(callable(getattr(plugin, name, None)) for name in needed)
    return plugin if known and PROCESS not in item.config.stash else None
