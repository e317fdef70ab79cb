"""Plan each collected item: read its marks, and store what they ask for."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import pytest

from pytest_leakcheck.config.markers import SCALING, MarkError, read_marks
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.plugin.stash import PLAN, PROCESS
from pytest_leakcheck.plugin.timeout import within_timeout


class Collection:
    """The hooks that plan items; registered with ``--leakcheck``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """A mark that cannot be read is an error of collection: that is reported alike with and without xdist."""
        report = yield
        wrong = self._plan_items(collector.config, report.result or ())
        if wrong:
            report.outcome, report.longrepr, report.result = "failed", "\n".join(wrong), []
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Once more, for marks that a conftest has added since."""
        wrong = self._plan_items(config, items)
        if wrong:
            raise pytest.UsageError(*wrong)

    def _plan_items(self, config: pytest.Config, nodes: Iterable[object]) -> list[str]:
        # A debugger in the middle of a repetition would be a surprise: one run, no verdict.
        once = config.getoption("usepdb") or config.getoption("trace") or config.getoption("setuponly")
        wrong: list[str] = []
        for item in nodes:
            if not isinstance(item, pytest.Item):
                continue
            try:
                if not once and item.get_closest_marker(SCALING) is not None:
                    self._plan_sizes(item)
                    continue
                loops = "leakcheck" in getattr(item, "fixturenames", ())
                plan = read_marks(item.nodeid, item.iter_markers(), self._settings, loops=loops)
            except MarkError as error:
                wrong.append(f"{item.nodeid}: {error}")
            else:
                if plan is not None and not once:
                    item.stash[PLAN] = within_timeout(item, plan)
        return wrong

    def _plan_sizes(self, item: pytest.Item) -> None:
        """Loaded only where a test is run over an axis, and not in the process that runs one size of it."""
        if PROCESS in item.config.stash:
            return
        from pytest_leakcheck.plugin.scaling.scaled_item import plan_sizes

        plan_sizes(item)
