"""Read the marks of each collected item, and store its plan: its budgets, iterations, time and resource limits."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import pytest

from pytest_leakcheck.config.markers import SCALING, is_opted_out, plan_unmarked, read_marks
from pytest_leakcheck.config.rules import for_test, unused
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model import InputError
from pytest_leakcheck.plugin.chosen_tests import Sampling, selected_by
from pytest_leakcheck.plugin.stash import NOT_ASKED, PLAN, PROCESS
from pytest_leakcheck.plugin.timeout import within_timeout


class Collection:
    """The hooks that store a plan on each item that is to be judged; registered only with ``--leakcheck``."""

    def __init__(self, settings: Settings, sampling: Sampling | None) -> None:
        """Take the settings, and what chooses among the planned items; None if all are judged."""
        self._settings, self._sampling = settings, sampling
        self.collected: set[str] = set()
        # The node ids of the items that are judged without a mark.
        self._unmarked: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Plan the items; an invalid mark is a collection error, which pytest reports alike with and without xdist."""
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
        if self._sampling is not None:
            self._sampling.choose(items, self._unmarked)
        self.collected.update(item.nodeid for item in items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.collected.update(ids)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Write which rules match no file, unless the session selects a part of the suite."""
        if not self.collected or selected_by(config):
            return
        for pattern in unused(self._settings, self.collected):
            line = f"leakcheck_rules: {pattern}: matches no file that has tests: patterns begin at the root directory"
            terminalreporter.write_line(f"{line}, {config.rootpath}", yellow=True)

    def _plan_items(self, nodes: Iterable[object]) -> list[str]:
        """Store a plan on each item to judge, on each other one why not; return an error message per invalid mark."""
        wrong: list[str] = []
        for item in nodes:
            if not isinstance(item, pytest.Item):
                continue
            try:
                if item.get_closest_marker(SCALING) is not None:
                    # A process that was started for one test runs it at one size.
                    if PROCESS not in item.config.stash:
                        from pytest_leakcheck.plugin.scaling.scaled_item import plan_sizes

                        plan_sizes(item)
                    continue
                loops = "leakcheck" in getattr(item, "fixturenames", ())
                settings = for_test(self._settings, item.nodeid)
                plan = read_marks(item.nodeid, item.iter_markers(), settings, loops=loops)
            except InputError as error:
                wrong.append(f"{item.nodeid}: {error}")
            else:
                if plan is None and not loops:
                    item.stash[NOT_ASKED] = _why_not_asked(item, settings)
                    if not item.stash[NOT_ASKED]:
                        plan = plan_unmarked(item.nodeid, settings)
                        self._unmarked.add(item.nodeid)
                if plan is not None:
                    item.stash[NOT_ASKED] = ""
                    item.stash[PLAN] = within_timeout(item, plan)
        return wrong


def _why_not_asked(item: pytest.Item, settings: Settings) -> str:
    """Return why an item without a plan of its own is not judged, as the summary states it; empty if it is."""
    reasons = {
        "opted out": is_opted_out(item.iter_markers()),
        "without a mark": settings.scope == "marked",
        "off by leakcheck_rules": settings.scope == "off",
        "doctests": isinstance(item, pytest.DoctestItem),
        # Only functions are known to bear repetition, and a benchmark repeats its body by itself.
        "not functions": not isinstance(item, pytest.Function),
        "benchmarks": "benchmark" in getattr(item, "fixturenames", ()),
        "xfail(run=False)": any(mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")
