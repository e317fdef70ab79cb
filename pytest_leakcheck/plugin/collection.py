"""Read the marks of each collected item, and store its plan: its budgets, iterations, time and resource limits."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Final

import pytest

from pytest_leakcheck.config.markers import SCALING, is_opted_out, plan_unmarked, read_marks
from pytest_leakcheck.config.rules import for_test, unused
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model import InputError
from pytest_leakcheck.plugin.chosen_tests import Sampling, selected_by
from pytest_leakcheck.plugin.stash import NOT_ASKED, PLAN, PROCESS
from pytest_leakcheck.plugin.timeout import within_timeout

# Why a test is not judged, as the summary states it.
_OPTED_OUT: Final = "opted out"
_BY_SCOPE: Final = {"marked": "without a mark", "off": "off by leakcheck_rules"}


class Collection:
    """The hooks that store a plan on each item that is to be judged; registered only with ``--leakcheck``."""

    def __init__(self, settings: Settings, sampling: Sampling | None) -> None:
        """Take the settings, and what chooses among the planned items; None if all are judged."""
        self._settings, self._sampling = settings, sampling
        # All node ids, if there are rules whose patterns may match none.
        self._collected: set[str] = set()
        # The node ids of the items that are judged without a mark.
        self._unmarked: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
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
        if self._settings.rules:
            self._collected.update(item.nodeid for item in items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._settings.rules:
            self._collected.update(ids)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        """Write which rules match no file, unless the session selects a part of the suite."""
        if not self._collected or selected_by(config):
            return
        for pattern in unused(self._settings, self._collected):
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
                    self._plan_sizes(item)
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

    def _plan_sizes(self, item: pytest.Item) -> None:
        """Plan a test that runs at several sizes, except in a process that was started for one test."""
        if PROCESS in item.config.stash:
            return
        from pytest_leakcheck.plugin.scaling.scaled_item import plan_sizes

        plan_sizes(item)


def _why_not_asked(item: pytest.Item, settings: Settings) -> str:
    """Return why an item without a plan of its own is not judged; empty if it is."""
    if is_opted_out(item.iter_markers()):
        return _OPTED_OUT
    return _BY_SCOPE.get(settings.scope) or _why_left_out(item)


def _why_left_out(item: pytest.Item) -> str:
    """Return why ``--leakcheck-scope=all`` leaves out an item; empty if it judges it.

    A benchmark repeats its body by itself, and only functions are known to bear repetition.
    """
    if isinstance(item, pytest.DoctestItem):
        return "doctests"
    if not isinstance(item, pytest.Function):
        return "not functions"
    if "benchmark" in item.fixturenames:
        return "benchmarks"
    if any(mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")):
        return "xfail(run=False)"
    return ""
