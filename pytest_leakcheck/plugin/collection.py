"""Read the marks of each collected item, and store its plan: its budgets, iterations, time and resource limits."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import pytest

from pytest_leakcheck.config.markers import SCALING, MarkError, read_marks
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.plugin.stash import PLAN, PROCESS
from pytest_leakcheck.plugin.timeout import within_timeout


class Collection:
    """The hooks that store a plan on each item whose marks ask for one; registered only with ``--leakcheck``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Plan the collected items.

        An invalid mark is a collection error, so that pytest reports it in the same way with and without xdist.
        """
        report = yield
        wrong = self._plan_items(report.result or ())
        if wrong:
            report.outcome, report.longrepr, report.result = "failed", "\n".join(wrong), []
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Plan the items again, for marks that a conftest added after collection."""
        wrong = self._plan_items(items)
        if wrong:
            raise pytest.UsageError(*wrong)

    def _plan_items(self, nodes: Iterable[object]) -> list[str]:
        """Store a plan on each item whose marks ask for one.

        Returns:
            An error message for each item with an invalid mark.
        """
        wrong: list[str] = []
        for item in nodes:
            if not isinstance(item, pytest.Item):
                continue
            try:
                if item.get_closest_marker(SCALING) is not None:
                    self._plan_sizes(item)
                    continue
                loops = "leakcheck" in getattr(item, "fixturenames", ())
                plan = read_marks(item.nodeid, item.iter_markers(), self._settings, loops=loops)
            except MarkError as error:
                wrong.append(f"{item.nodeid}: {error}")
            else:
                if plan is not None:
                    item.stash[PLAN] = within_timeout(item, plan)
        return wrong

    def _plan_sizes(self, item: pytest.Item) -> None:
        """Plan a test that runs at several sizes, except in a process that was started for one test."""
        if PROCESS in item.config.stash:
            return
        from pytest_leakcheck.plugin.scaling.scaled_item import plan_sizes

        plan_sizes(item)
