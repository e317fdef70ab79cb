"""Repeat an item (a collected test) through pytest's own protocol, and log a last run, or the first one in its place.

Each iteration runs set-up, call and tear-down without logging; then the counters are read. A red (failing) verdict is
raised in the call phase of the last run, so every consumer sees an ordinary failed test. The first iteration is logged
if it fails or skips, as in plain pytest, or a later one fails for another reason than a leak.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Self

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck.attribution.call_paths import is_own
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude, does_not_repeat
from pytest_leakcheck.judge.exhaustion import exhausted_by
from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.finding import RED, Finding
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.item_reports import (
    apply,
    attach,
    end_item,
    hand_to_rerunfailures,
    report_findings,
    rerunner_of,
    with_finding,
)
from pytest_leakcheck.plugin.other_plugins import AllureResults, Examples, Timer
from pytest_leakcheck.plugin.pytest_residue import Residue
from pytest_leakcheck.plugin.pytest_versions import is_of_subtest
from pytest_leakcheck.plugin.report_files import DeviceSnapshot
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions, unmeasured
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.processes import thread_ids
from pytest_leakcheck.report.finding_text import junit_properties
from pytest_leakcheck.runner.environment import ForkGuard
from pytest_leakcheck.runner.repetition import Repetition
from pytest_leakcheck.runner.settling import leave_out_threads
from pytest_leakcheck.runner.user_gauges import Gauges


class Repeater:
    """The hooks that repeat and judge items; registered with ``--leakcheck``."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known_threads = thread_ids()
        self._left_threads: dict[str, str] = {}
        # Of the test that is being repeated.
        self._snapshot: DeviceSnapshot

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Note the threads of other plugins, such as the server of pytest-rerunfailures."""
        leave_out_threads()

    def run_item(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan) -> None:
        """Repeat an item, then log one run with the finding. A forked child process exits here on an exception."""
        fork_guard = item.stash[keys.FORK_GUARD] = ForkGuard()
        examples = Examples(item)
        self._snapshot = DeviceSnapshot(item, self._settings)
        try:
            self._run(item, nextitem, plan, examples)
        except BaseException:
            fork_guard.exit_if_forked(1)
            raise
        finally:
            examples.put_back()
            self._snapshot.stop()

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan, examples: Examples) -> None:
        rerunner = rerunner_of(item)
        if rerunner is None:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        began = clock.monotonic()
        with warnings.catch_warnings(), _SilentRuns(item) as runs:
            # An object that the garbage collector frees unclosed is a finding. Under `-W error`, its warning would fail
            # the next iteration.
            warnings.simplefilter("ignore", ResourceWarning)
            result, first_run = self._repeat(item, plan, examples, runs)
        if rerunner is not None:
            # That plugin logs the start of each attempt.
            failed = result is None and any(report.failed for report in first_run)
            if failed and hand_to_rerunfailures(rerunner, item, nextitem, first_run):
                return
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if result is not None:
            finding = self._snapshot.take(self._conclude(item, result))
            item.stash[keys.FINDINGS] = [finding]
            item.stash[keys.REPEATED] = clock.monotonic() - began
            with OriginalFunctions():
                item.user_properties += junit_properties(finding)
            if first_run:
                with room_for_descriptors():
                    first_run = with_finding(item, first_run, finding, item.stash[keys.REPEATED])
        Timer(item).start_last()
        if not first_run:
            examples.fix()
            AllureResults(item.config).forget_run()
        with room_for_descriptors():
            end_item(item, nextitem, first_run)

    def _conclude(self, item: pytest.Item, result: Result) -> Finding:
        """Return the finding on a test; it is inconclusive if that fails."""
        policy = Policy.of(self._settings, item.config.stash[keys.KNOWN])
        try:
            if any(budget.peak is not None for budget in result.plan.budgets):
                from pytest_leakcheck.plugin.isolation.item_elsewhere import judge_peaks

                result = judge_peaks(item, result, self._settings)
            with OriginalFunctions():
                return conclude(result, policy)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            with OriginalFunctions():
                return conclude(unmeasured(result.plan, error), policy)

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record the threads that a test, judged or not, left running: a verdict on later growth names that test."""
        # A test may have replaced or forbidden what listing the threads takes.
        with contextlib.suppress(Exception):
            now = thread_ids()
            self._left_threads |= dict.fromkeys(now - self._known_threads, nodeid)
            self._known_threads = now

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """In the logged run, raise `LeakError` for a red finding, and skip the test if a resource could not be read."""
        if keys.REPEATING not in item.stash and keys.PLAN in item.stash:
            for finding in item.stash.get(keys.FINDINGS, []):
                apply(finding, item, self._settings)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if keys.REPEATING in item.stash:
            item.stash[keys.REPEATING].gauges.read()
            item.stash[keys.REPEATING].residue.before_teardown()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if keys.FORK_GUARD in item.stash:
            item.stash[keys.FORK_GUARD].exit_if_forked(int(call.excinfo is not None))
        report = yield
        if keys.REPEATING in item.stash:
            # Use `call.excinfo`, not `report.outcome`: under xfail(strict), a passing iteration is reported as failed.
            if call.excinfo is not None:
                item.stash[keys.REPEATING].error = call.excinfo.value
        elif keys.FINDINGS in item.stash and (report.when == "call" or (report.when == "setup" and not report.passed)):
            attach(report, item.stash[keys.FINDINGS], call)
            # ``--durations`` and JUnit show where the time of a session goes.
            report.duration += item.stash.get(keys.REPEATED, 0.0)
        return report

    def _repeat(
        self, item: pytest.Item, plan: Plan, examples: Examples, runs: _SilentRuns
    ) -> tuple[Result | None, list[pytest.TestReport]]:
        """Run the iterations, which are not logged; return the result, and any reports to log instead of a last run.

        The result is None if the test itself failed or skipped in the first iteration, or a debugger stopped in it.
        The reports are those of the first iteration.
        """
        timer = Timer(item)
        timer.stop()
        residue = Residue(item)
        repetition = Repetition(plan, left=self._left_threads)
        # Made in the warm-up, so they are part of the start level.
        first_run: list[pytest.TestReport] = []
        iteration = item.stash[keys.REPEATING] = keys.Iteration(residue, repetition, Gauges())
        try:
            repetition.begin()
            while True:
                iteration.count += 1
                timer.start()
                reports = runs.run()
                timer.stop()
                error, iteration.error = iteration.error, None
                failed = error is not None or any(report.failed for report in reports if is_of_subtest(report))
                if item.stash[keys.UNMEASURED] or (failed and iteration.count == 1):
                    repetition.end("failed")
                    return None, first_run or reports
                residue.put_back()
                examples.fix()
                if iteration.count == 1:
                    first_run = reports
                    runs.leave_out_recorders()
                    repetition.follow(*iteration.gauges.seal())
                if failed:
                    result = _end_failed(repetition, iteration.count, error)
                    return result, [] if _is_red(result) else first_run
                del reports
                if not repetition.iteration_done():
                    return repetition.end(), []
                self._snapshot.follow(repetition)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            if iteration.count > 1 and exhausted_by(error):
                # The test has left pytest or the measurement nothing. At the end, its ceiling no longer holds.
                with contextlib.suppress(Exception):
                    result = repetition.end("failed", error)
                    if _is_red(result):
                        return result, []
            repetition.abandon()
            return unmeasured(plan, error), first_run
        except BaseException as error:
            _end_early(item, repetition, error)
            raise
        finally:
            del item.stash[keys.REPEATING]


def _end_early(item: pytest.Item, repetition: Repetition, reason: BaseException) -> None:
    """End the repetition of a test as the session is about to end; after Ctrl-C, report its series so far."""
    with contextlib.suppress(Exception):
        if isinstance(reason, KeyboardInterrupt):
            report_findings(item, (), [repetition.end("interrupted")])
    repetition.abandon()


def _end_failed(repetition: Repetition, count: int, error: BaseException | None) -> Result:
    """Return a leak if a resource that the test leaks ran out; otherwise, the test is not repeatable."""
    result = repetition.end("failed", error)
    if _is_red(result):
        return result
    what = describe_error(error) if error is not None else "a subtest failed"
    return replace(result, verdicts=(does_not_repeat(result.plan, count, what),), culprit=None)


def _is_red(result: Result) -> bool:
    return any(verdict.outcome in RED for verdict in result.verdicts)


class _SilentRuns:
    """A context in which an item can run without logging: it replaces `Session.gethookproxy`, which has its hooks.

    A subtest logs its report itself: every plugin that receives it would count it in each iteration. And a reporter may
    keep what it makes of each report, because in a plain session there is one run of each test.
    """

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
