"""Which tests are sent to a process of their own: those that ask for it, and those that run under a ceiling."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.markers import ceiling_of, effort_of
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.plugin.stash import PLAN


class IsolatingProtocol:
    """The hook that sends an item away; registered with ``--leakcheck`` in every process but the child itself."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        plan = self._plan(item)
        if plan is None or not plan.effort.isolate:
            return None
        # Loaded only here: with psutil and all it is a fifth of what this plugin loads, and most tests are run in place.
        from pytest_leakcheck.plugin.isolation.isolated_item import run_alone

        run_alone(item, nextitem, plan, self._settings)
        return True

    def _plan(self, item: pytest.Item) -> Plan | None:
        """The plan of a test that is judged; one that judges by the fixture makes its own, so here it is a mere name."""
        if PLAN in item.stash:
            return item.stash[PLAN]
        option = item.config.option
        if "leakcheck" not in getattr(item, "fixturenames", ()) or option.usepdb or option.trace or option.setuponly:
            return None
        ceiling, effort = ceiling_of(item.iter_markers(), self._settings), effort_of(self._settings)
        if ceiling.sizes:
            effort = replace(effort, isolate=True)
        return Plan(item.nodeid, (Budget(next(iter(RESOURCES))),), effort, ceiling=ceiling)
