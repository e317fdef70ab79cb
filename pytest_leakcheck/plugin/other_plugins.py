"""Adapt to other plugins: allure-pytest, Hypothesis, timeouts of a repeated test, and xdist.

While a process judges tests, it has a temporary folder of its own, which an xdist worker gets from
its controller.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

# The functions themselves: a test may replace those of the module.
from threading import current_thread, main_thread
from typing import Any, Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from pytest_leakcheck.attribution.tracing import traced_children
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.plugin import silent_tmpdir
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.audit_events import leave_out
from pytest_leakcheck.probes.own_folder import make_folder, own_folder, remove_folder, use_folder
from pytest_leakcheck.runner.processes.private_tmpdir import has_room, shared_folder

_ALLURE_LISTENER: Final = "allure_listener"
# The attribute of a test function that holds the settings of Hypothesis.
_HYPOTHESIS_SETTINGS: Final = "_hypothesis_internal_use_settings"
# The settings with which pytest-timeout last set the timer of an item.
_TIMER_SETTINGS: Final = pytest.StashKey[Any]()
# An iteration has at least the rest of `faulthandler_timeout`.
_MAX_SPENT_SHARE: Final = 0.1
# What an xdist controller tells its workers: the folder of a worker, and the one in which it lies.
_FOLDER_KEY: Final = "leakcheck_folder"
_SHARED_KEY: Final = "leakcheck_shared"
# The session's temporary folder. The key is set only in a process that has a private one while it
# judges.
SESSION_FOLDER: Final = pytest.StashKey[str]()


class AllureResults:
    """What allure-pytest records: the run of a test that is logged. Does nothing without it."""

    def __init__(self, config: pytest.Config) -> None:
        self._managers: list[Any] = []
        self._listener: Any = config.pluginmanager.getplugin(_ALLURE_LISTENER)
        if self._listener is not None:
            # Steps and attachments reach the listener through a plugin manager of Allure's own.
            self._managers = [config.pluginmanager, sys.modules["allure_commons"].plugin_manager]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing in this context."""
        managers = [manager for manager in self._managers if manager.is_registered(self._listener)]
        for manager in managers:
            manager.unregister(self._listener)
        try:
            yield
        finally:
            for manager in managers:
                manager.register(self._listener, _ALLURE_LISTENER)

    def conclude(self, reports: Sequence[pytest.TestReport]) -> None:
        """Set the result's outcome from the reports, if pytest's hook made none or one is red."""
        if self._listener is None:
            return
        result = self._listener.allure_logger.get_test(None)
        red = next((report.longreprtext for report in reports if report.failed), None)
        if result is not None and (result.status is None or red is not None):
            model = sys.modules["allure_commons.model2"]
            result.status = model.Status.PASSED if red is None else model.Status.FAILED
            if red is not None:
                result.statusDetails = model.StatusDetails(
                    message=red.partition("\n")[0], trace=red
                )

    def drop(self, nodeid: str) -> None:
        """Write no result of a test here, because the subprocess that ran it has written one."""
        uuid = self._listener._cache.pop(nodeid) if self._listener is not None else None
        if uuid is not None:
            self._listener.allure_logger.drop_test(uuid)


class Examples:
    """The Hypothesis settings of a test; does nothing for other tests, and imports no Hypothesis.

    The run that is logged uses the user's settings, so a failure in it is the test's own. The
    others repeat fixed examples, because new ones would be different work, without the database, a
    file that grows, and without health checks: one would report the new instance of the test class
    of each iteration as a fault.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._holder: Any = None
        self._attribute = _HYPOTHESIS_SETTINGS
        self._original: Any = None
        self._fixed: Any = None
        hypothesis: Any = sys.modules.get("hypothesis")
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if hypothesis is None or not getattr(function, "is_hypothesis_test", False):
            return
        holder: Any = function
        if not hasattr(function, _HYPOTHESIS_SETTINGS):
            # A state machine has its settings on the class.
            holder, self._attribute = getattr(item, "cls", None), "settings"
        own = getattr(holder, self._attribute, None)
        if isinstance(own, hypothesis.settings):
            self._holder = holder
            # Create the settings here, before the start level (the reading that later ones are
            # compared with) is read.
            self._fixed = hypothesis.settings(
                parent=own,
                derandomize=True,
                database=None,
                deadline=None,
                # A failure of a later iteration is not investigated.
                phases=[phase for phase in own.phases if phase.name not in ("shrink", "explain")],
                suppress_health_check=list(hypothesis.HealthCheck),
            )

    def fix(self) -> None:
        """Set the fixed settings before each run but the first: Hypothesis may replace them."""
        if self._holder is not None:
            self._original = self._original or getattr(self._holder, self._attribute)
            setattr(self._holder, self._attribute, self._fixed)

    def put_back(self) -> None:
        """Restore the user's settings after the last run."""
        if self._original is not None:
            setattr(self._holder, self._attribute, self._original)


def has_timeout(item: pytest.Item) -> bool:
    """Return whether pytest-timeout is loaded; its plugin name depends on how it was loaded."""
    return hasattr(item.config.hook, "pytest_timeout_cancel_timer")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Note pytest-timeout's settings for a test's timer; this module is registered as a plugin."""
    item.stash[_TIMER_SETTINGS] = settings


class Timer:
    """The timers of one test. A timeout that is not set, or is for the body only, is left alone.

    pytest-timeout sets the timer once per test. With its method "signal", the timer is restarted
    for each iteration and stopped in between, so that no timeout interrupts a reading. A timer that
    is a thread would disturb the measurement if it were restarted each time: that of the method
    "thread" spans all iterations, and that of `faulthandler_timeout` is restarted from time to
    time.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        settings = item.stash.get(_TIMER_SETTINGS, None)
        # With `func_only`, pytest-timeout itself sets the timer for each run of the body.
        self._settings = None if getattr(settings, "func_only", True) else settings
        in_main_thread = current_thread() is main_thread()
        self._restarts = getattr(self._settings, "method", "") == "signal" and in_main_thread
        config = item.config
        dumps = (
            config.pluginmanager.hasplugin("faulthandler")
            and fault_handler_stderr_fd_key in config.stash
        )
        # Of the dump of the stacks; 0 if there is none.
        self._dump_seconds = float(config.getini("faulthandler_timeout") or 0) if dumps else 0.0
        self._dump_began = clock.monotonic()

    def stop(self) -> None:
        """Stop the timer after an iteration, if it can be restarted."""
        if self._restarts:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)

    def start(self) -> None:
        self._restart_dump()
        if self._restarts:
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)

    def _restart_dump(self) -> None:
        """Restart the timer of `faulthandler_timeout` if much of its time is over."""
        now = clock.monotonic()
        if (
            self._dump_seconds > 0
            and now - self._dump_began > _MAX_SPENT_SHARE * self._dump_seconds
        ):
            self._dump_began = now
            config = self._item.config
            stderr, exits = (
                config.stash[fault_handler_stderr_fd_key],
                config.getini("faulthandler_exit_on_timeout"),
            )
            faulthandler.dump_traceback_later(self._dump_seconds, file=stderr, exit=exits)


def within_timeout(item: pytest.Item, plan: Plan) -> Plan:
    """Limit a plan's time to a share of the test's timeout; the rest is for the first run."""
    if not has_timeout(item):
        return plan
    mark = item.get_closest_marker("timeout")
    given = (*mark.args, mark.kwargs.get("timeout")) if mark is not None else ()
    settings = (
        *given,
        item.config.getoption("timeout", None),
        os.environ.get("PYTEST_TIMEOUT"),
        item.config.getini("timeout"),
    )
    try:
        limit = float(next((one for one in settings if one is not None), None) or 0)
    except ValueError:
        limit = 0.0
    return replace(plan, effort=plan.effort.within_timeout(limit)) if limit > 0 else plan


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is an xdist worker or a subprocess of one."""
    return hasattr(config, "workerinput")


def has_xdist(config: pytest.Config) -> bool:
    """Return whether xdist is loaded; its plugin name depends on how it was loaded."""
    return hasattr(config.hook, "pytest_xdist_setupnodes")


def is_distributed(config: pytest.Config) -> bool:
    """Return whether this process is a controller whose workers run the tests."""
    return (
        has_xdist(config)
        and config.getoption("dist", "no") != "no"
        and not config.getoption("collectonly")
    )


@contextlib.contextmanager
def sending_reports_of(number: int, item: pytest.Item) -> Iterator[None]:
    """Let an xdist worker send reports of the item with this number, and then the item's end.

    The item has already run. Elsewhere, do nothing.
    """
    plugins = item.config.pluginmanager.get_plugins() if is_worker(item.config) else ()
    interactor: Any = next((one for one in plugins if hasattr(one, "item_index")), None)
    if interactor is None:
        yield
        return
    before = interactor.item_index
    interactor.item_index = number
    try:
        yield
    finally:
        interactor.item_index = before
        interactor.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def prepare_process(config: pytest.Config) -> None:
    """Prepare the process that runs the tests."""
    # pytest removes the folders of `tmp_path` by itself.
    basetemp = config.getoption("basetemp", None)
    shared = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    leave_out(os.path.realpath(basetemp) if basetemp else f"{os.path.realpath(shared)}/pytest-of-")
    if traced_children.prepare_children():
        config.add_cleanup(_release_children)


def _release_children() -> None:
    with OriginalFunctions():
        traced_children.release_children()


def prepare_own_folder(config: pytest.Config) -> None:
    """Give this process a private temporary folder for silent runs, where possible.

    A worker gets it from its controller.
    """
    given: dict[str, Any] = getattr(config, "workerinput", {})
    with contextlib.suppress(OSError):
        shared = shared_folder()
        if is_worker(config) and shared and shared == given.get(_SHARED_KEY):
            use_folder(Path(given[_FOLDER_KEY]))
        elif is_worker(config) or not shared or not has_room(shared):
            return
        config.stash[SESSION_FOLDER] = shared
        silent_tmpdir.prepare(config, own_folder(), shared)
        # Called just before the folder is removed: a test may have replaced what that takes, for
        # good.
        atexit.register(OriginalFunctions().__enter__)


def prepare_given_folder(config: pytest.Config, folder: Path) -> None:
    """Let this process, started for one test, use a folder that its session made and removes."""
    use_folder(folder)
    with contextlib.suppress(OSError):
        if has_room(str(folder.parent)) and (shared := shared_folder()):
            silent_tmpdir.prepare(config, folder, shared)


class XdistController:
    """The hooks of an xdist controller; registered only with xdist, which makes them known."""

    def __init__(self, config: pytest.Config) -> None:
        self._folders: list[Path] = []
        # The controller removes the folders, because a worker that crashes could not remove its
        # own.
        config.add_cleanup(self._remove_folders)

    @pytest.hookimpl
    def pytest_configure_node(self, node: Any) -> None:
        shared = shared_folder()
        # Only a worker that runs on this machine can use the folder.
        if shared and node.gateway.spec.popen and has_room(shared):
            folder = make_folder(shared)
            self._folders.append(folder)
            node.workerinput |= {_FOLDER_KEY: str(folder), _SHARED_KEY: shared}

    def _remove_folders(self) -> None:
        for folder in self._folders:
            remove_folder(folder)
