"""Choose how to run an item: as is, repeated, isolated (in a subprocess), or once per size of ``scaling_budget``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.markers import ceiling_of, effort_of
from pytest_leakcheck.config.plan import Plan, plan_test
from pytest_leakcheck.config.rules import for_test
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.plugin.chosen_tests import STOPPED, find_debugger, is_asked
from pytest_leakcheck.plugin.repeated_item import Repeater
from pytest_leakcheck.plugin.stash import FINDINGS, NOT_ASKED, ORIGIN, PLAN, PROCESS, REPEATED, SWEEP, UNMEASURED


class ItemProtocol:
    """The hook that replaces pytest's protocol for one item; registered with ``--leakcheck``."""

    def __init__(self, settings: Settings, repeater: Repeater) -> None:
        self._settings, self._repeater = settings, repeater

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item.stash[UNMEASURED]:
            return None
        # Imported here, because most tests run in this process and need neither isolation nor psutil.
        if SWEEP in item.stash:
            from pytest_leakcheck.plugin.scaling.scaled_item import ScaledItem

            ScaledItem(item, for_test(self._settings, item.nodeid)).run(nextitem)
        elif (plan := self._plan_if_isolated(item)) is not None:
            from pytest_leakcheck.plugin.isolation.item_elsewhere import IsolatedItem

            IsolatedItem(item, self._settings, plan).run(nextitem)
        elif PLAN in item.stash:
            self._repeater.run_item(item, nextitem, item.stash[PLAN])
        else:
            return None
        return True

    def _plan_if_isolated(self, item: pytest.Item) -> Plan | None:
        """Return the plan of an item that must run in a subprocess; None for others, and in a process for one test."""
        if PROCESS in item.config.stash:
            return None
        plan = item.stash.get(PLAN, None)
        if plan is None and "leakcheck" in getattr(item, "fixturenames", ()) and not item.stash.get(NOT_ASKED, ""):
            settings = for_test(self._settings, item.nodeid)
            # Provisional: its resource is named if the subprocess gives no verdict.
            budgets, ceiling = (Budget(next(iter(RESOURCES))),), ceiling_of(item.iter_markers(), settings)
            plan = plan_test(item.nodeid, budgets, effort_of(settings), ceiling=ceiling)
        return plan if plan is not None and plan.effort.isolate else None


class ItemState:
    """The hooks that note why an item is not measured, and release what was stored on it: pytest keeps all items."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._item = item
        item.stash[UNMEASURED] = find_debugger(item.config)
        try:
            return (yield)
        finally:
            keys: tuple[pytest.StashKey[Any], ...] = (FINDINGS, REPEATED, ORIGIN)
            for key in keys:
                if key in item.stash:
                    del item.stash[key]

    @pytest.hookimpl
    def pytest_enter_pdb(self) -> None:
        """Note that ``breakpoint()`` or ``pdb.set_trace()`` stopped in the test, so that it is not repeated again."""
        if self._item is not None and not self._item.stash[UNMEASURED]:
            self._item.stash[UNMEASURED] = STOPPED

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the reasons on the report, which an xdist worker sends to its session."""
        item = self._item
        if item is None or item.nodeid != report.nodeid:
            return
        if not_asked := item.stash.get(NOT_ASKED, ""):
            report.leakcheck_not_asked = not_asked  # type: ignore[attr-defined]
        if (reason := item.stash[UNMEASURED]) and is_asked(item):
            report.leakcheck_unmeasured = reason  # type: ignore[attr-defined]
