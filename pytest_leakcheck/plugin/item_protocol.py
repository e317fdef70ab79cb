"""Register the measuring hooks; run an item as is, repeated, in a subprocess, or once per size.

An item without a mark runs as is at its turn; the second pass judges it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import suppress
from importlib.util import find_spec

import pytest

from pytest_leakcheck.attribution import call_paths
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan, ceiling_of, effort_of, for_test, plan_test
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.plugin import (
    baseline_session,
    fixture,
    keys,
    other_plugins,
    progress_line,
    session_report,
)
from pytest_leakcheck.plugin.collection import (
    NOT_REACHED,
    Plans,
    Sampling,
    find_debugger,
    is_asked,
    uses_fixture,
    waits,
)
from pytest_leakcheck.plugin.other_plugins import (
    is_distributed,
    is_worker,
    prepare_own_folder,
    prepare_process,
)
from pytest_leakcheck.plugin.pytest_residue import rebuild
from pytest_leakcheck.plugin.repeated_item import Repeater
from pytest_leakcheck.plugin.report_files import GithubActions
from pytest_leakcheck.plugin.second_pass import SecondPass
from pytest_leakcheck.plugin.undisturbed import keep_modules
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_folder import remove_left_folders
from pytest_leakcheck.probes.ray_counters import RECORD


def register(config: pytest.Config, settings: Settings) -> None:
    """Register the measuring hooks."""
    call_paths.set_project(config.rootpath, settings.blame)
    if settings.vram == "accounted":
        from pytest_leakcheck.probes.catalog import account_for_tensors, remove_probes

        account_for_tensors()
        config.add_cleanup(remove_probes)
    sampling = Sampling(config, settings) if keys.PROCESS not in config.stash else None
    if sampling is not None:
        _prepare_folders(config)
    if not config.pluginmanager.hasplugin("leakcheck-forks"):
        prepare_process(config)
    _record_references(config)
    plans = Plans(settings, sampling)
    baseline = baseline_session.BaselineSession(config, settings, plans.collected, plans.left_out)
    session = session_report.SessionReport(config, baseline, sampling)
    repeater = Repeater(settings, session)
    hooks: dict[str, object] = {"leakcheck-session": session}
    if sampling is not None and not is_worker(config):
        if os.environ.get("GITHUB_ACTIONS") == "true":
            github = hooks["leakcheck-github"] = GithubActions(config, session.headline)
            session.listeners.append(github.add)
        line = progress_line.ProgressLine(config, sampling)
        session.listeners.append(line.add)
        hooks |= {
            "leakcheck-progress": line,
            "leakcheck-folded-failures": session_report.FoldedFailures(config),
        }
    hooks |= {
        "leakcheck-collection": plans,
        "leakcheck-repeater": repeater,
        "leakcheck-timer": other_plugins,
        "leakcheck-fixture": fixture,
        "leakcheck-protocol": ItemProtocol(settings, repeater),
    }
    if sampling is not None:
        hooks["leakcheck-sampling"] = sampling
        hooks["leakcheck-second-pass"] = SecondPass(session)
    # The last one: of hooks that run first, its own runs first, so the others know whether the item
    # is measured.
    hooks["leakcheck-state"] = ItemState()
    for name, plugin in hooks.items():
        config.pluginmanager.register(plugin, name)


def _record_references(config: pytest.Config) -> None:
    """Have Ray, where it is installed, record its references; what the user has set stays."""
    # The name may be that of a folder, such as tests/ray, and a test suite may replace the module.
    with suppress(ImportError, ValueError):
        found = find_spec("ray")
        if found is not None and found.origin is not None and RECORD not in os.environ:
            os.environ[RECORD] = "1"
            config.add_cleanup(_forget_record)


def _forget_record() -> None:
    os.environ.pop(RECORD, None)


def _prepare_folders(config: pytest.Config) -> None:
    if not is_worker(config):
        remove_left_folders(tempfile.gettempdir())
    if is_worker(config) or not is_distributed(config):
        prepare_own_folder(config)


class ItemProtocol:
    """The hook that replaces pytest's protocol for one item."""

    def __init__(self, settings: Settings, repeater: Repeater) -> None:
        self._settings, self._repeater = settings, repeater

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if waits(item):
            return None
        # An earlier test may have removed them; measuring would import them a second time.
        keep_modules()
        if keys.FIRST_RUN in item.stash:
            self._judge(item, nextitem)
            return True
        if item.stash[keys.UNMEASURED]:
            return None
        # Imported here, because most tests run in this process and need neither isolation nor
        # psutil.
        if keys.SWEEP in item.stash:
            from pytest_leakcheck.plugin.isolation.item_elsewhere import ScaledItem

            ScaledItem(item, for_test(self._settings, item.nodeid)).run(nextitem)
        elif (plan := self._plan_if_isolated(item)) is not None:
            from pytest_leakcheck.plugin.isolation.item_elsewhere import IsolatedItem

            IsolatedItem(item, self._settings, plan).run(nextitem)
        elif keys.PLAN in item.stash:
            self._repeater.run_item(item, nextitem, item.stash[keys.PLAN])
        else:
            return None
        return True

    def _judge(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Judge an item in the second pass, if time is left for it, without logging its runs."""
        plan = item.stash.get(keys.PLAN, None)
        if plan is None or item.stash[keys.UNMEASURED]:
            return
        if plan.effort.isolate:
            from pytest_leakcheck.plugin.isolation.item_elsewhere import IsolatedItem

            for finding in IsolatedItem(item, self._settings, plan).judge():
                self._repeater.log_if_red(item, finding)
        else:
            self._repeater.judge_item(item, nextitem, plan)

    def _plan_if_isolated(self, item: pytest.Item) -> Plan | None:
        """Return the plan of an item to isolate; None for others, and in a process for one test."""
        if keys.PROCESS in item.config.stash:
            return None
        plan = item.stash.get(keys.PLAN, None)
        if plan is None and uses_fixture(item) and not item.stash.get(keys.NOT_ASKED, ""):
            # A provisional plan, with the effort and the ceiling. Its resource is named if the
            # subprocess gives no verdict.
            settings, budgets = (
                for_test(self._settings, item.nodeid),
                [Budget(next(iter(RESOURCES)))],
            )
            ceiling = ceiling_of(item.iter_markers(), settings)
            plan = plan_test(item.nodeid, budgets, effort_of(settings), ceiling=ceiling)
        return plan if plan is not None and plan.effort.isolate else None


class ItemState:
    """The hooks that note why an item is not measured, and shrink its stash: pytest keeps items."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._item = item
        item.stash[keys.UNMEASURED] = find_debugger(item.config)
        began = clock.monotonic()
        try:
            return (yield)
        finally:
            if waits(item):
                item.stash[keys.FIRST_RUN].seconds = clock.monotonic() - began
            rebuild(
                item.stash,
                item.stash._storage.keys() - {keys.FINDINGS, keys.REPEATED, keys.FORK_GUARD},
            )

    @pytest.hookimpl
    def pytest_enter_pdb(self) -> None:
        """Note a stop by ``breakpoint()`` or ``pdb.set_trace()``: do not repeat the test again."""
        if self._item is not None and not self._item.stash[keys.UNMEASURED]:
            self._item.stash[keys.UNMEASURED] = keys.STOPPED

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the reasons on the report, which an xdist worker sends to its session."""
        item = self._item
        if item is None or item.nodeid != report.nodeid:
            return
        not_asked = item.stash.get(keys.NOT_ASKED, "")
        if waits(item) and not not_asked:
            first = item.stash[keys.FIRST_RUN]
            first.passed &= report.passed
            not_asked = NOT_REACHED if first.passed else ""
        if not_asked:
            report.leakcheck_not_asked = not_asked  # type: ignore[attr-defined]
        if (reason := item.stash[keys.UNMEASURED]) and is_asked(item):
            report.leakcheck_unmeasured = reason  # type: ignore[attr-defined]
