"""Decide how an item is run: as it is, repeated in place, in a process of its own, or once per size of its axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.markers import ceiling_of, effort_of
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.plugin.repeated_item import Repeater
from pytest_leakcheck.plugin.stash import PLAN, PROCESS, SWEEP


class ItemProtocol:
    """The only hook of the plugin that takes an item over; registered with ``--leakcheck``."""

    def __init__(self, settings: Settings, repeater: Repeater) -> None:
        self._settings = settings
        self._repeater = repeater

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        # Each way is imported when the first item takes it: with psutil and all, isolation is a fifth of what the plugin
        # loads, and most tests are run in place.
        if SWEEP in item.stash:
            from pytest_leakcheck.plugin.scaling.scaled_item import run_sizes

            run_sizes(item, nextitem, self._settings)
            return True
        if (plan := self._isolated(item)) is not None:
            from pytest_leakcheck.plugin.isolation.isolated_item import run_alone

            run_alone(item, nextitem, plan, self._settings)
            return True
        if PLAN in item.stash:
            self._repeater.run_item(item, nextitem, item.stash[PLAN])
            return True
        return None

    def _isolated(self, item: pytest.Item) -> Plan | None:
        """Return the plan of an item that needs a process of its own and is not in it yet."""
        if PROCESS in item.config.stash:
            return None
        plan = item.stash.get(PLAN, None) or self._plan_of_fixture(item)
        return plan if plan is not None and plan.effort.isolate else None

    def _plan_of_fixture(self, item: pytest.Item) -> Plan | None:
        """Return a stand-in for the plan that a test with the fixture makes by itself: only its effort counts here."""
        option = item.config.option
        if "leakcheck" not in getattr(item, "fixturenames", ()) or option.usepdb or option.trace or option.setuponly:
            return None
        ceiling, effort = ceiling_of(item.iter_markers(), self._settings), effort_of(self._settings)
        if ceiling.sizes:
            effort = replace(effort, isolate=True)
        return Plan(item.nodeid, (Budget(next(iter(RESOURCES))),), effort, ceiling=ceiling)
