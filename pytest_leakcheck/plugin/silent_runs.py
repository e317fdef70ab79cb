"""Keep other plugins from recording the iterations of a test.

A subtest logs its report itself: every plugin that receives it would count it in each iteration. And a reporter may
keep what it makes of each report, because in a plain session there is one run of each test.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Self

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck.attribution.call_paths import is_own
from pytest_leakcheck.plugin.allure_results import AllureResults


class SilentRuns:
    """A context in which an item can run without logging: it replaces `Session.gethookproxy`, which has its hooks."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._allure = AllureResults(item.config)
        self._of_session = item.session.gethookproxy
        self._makereport: Any = self._of_session(item.path).pytest_runtest_makereport
        self._logged: list[pytest.TestReport] = []

    def __enter__(self) -> Self:
        self._item.session.gethookproxy = self._hooks  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        del self._item.session.gethookproxy
        self._allure.resume()

    def leave_out_recorders(self) -> None:
        """Show the reports to no installed plugin from now on. Call it after the first iteration, which may be logged."""
        self._allure.pause()
        name = "pytest_runtest_makereport"
        shown = [one for one in self._makereport.get_hookimpls() if not _may_record(one.function)]
        others = [one.plugin for one in getattr(self._item.config.hook, name).get_hookimpls() if one not in shown]
        self._makereport = self._item.config.pluginmanager.subset_hook_caller(name, others)

    def run(self) -> list[pytest.TestReport]:
        """Run one iteration, and keep fixtures of wider scopes; return the reports of its subtests and phases."""
        self._logged.clear()
        # pytest's own record of warnings spans all iterations and would keep them all.
        with warnings.catch_warnings(record=True):
            reports = runtestprotocol(self._item, log=False, nextitem=self._item.parent)  # type: ignore[arg-type]
        return [*self._logged, *reports]

    def _hooks(self, fspath: os.PathLike[str]) -> _SilentHooks:
        return _SilentHooks(self._of_session(fspath), lambda *, report: self._logged.append(report), self._makereport)


class _SilentHooks:
    """The hooks of an item, with two replaced."""

    __slots__ = ("_hooks", "pytest_runtest_logreport", "pytest_runtest_makereport")

    def __init__(self, hooks: Any, keep: Any, makereport: Any) -> None:
        self._hooks = hooks
        self.pytest_runtest_logreport = keep
        self.pytest_runtest_makereport = makereport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)


def _may_record(hook: Any) -> bool:
    """Return whether a hook belongs neither to pytest and this package nor to the project."""
    module: dict[str, Any] = getattr(hook, "__globals__", {})
    package = module.get("__name__", "").partition(".")[0]
    return package not in ("_pytest", "pytest_leakcheck") and not is_own(module.get("__file__") or "")
