"""Repeat an item (a collected test) through pytest's own protocol, and judge what its runs retain.

Each iteration runs set-up, call and tear-down; then the counters are read. The first run of an item
is the one that is logged. At its turn, an item is repeated after it, and its reports wait for the
verdict. In the second pass, the session has logged that run long ago, so only a red (failing)
verdict is logged. All other runs are seen by no other plugin.
"""

from __future__ import annotations

import contextlib
import dis
import os
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from _pytest.runner import runtestprotocol

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import (
    Policy,
    Result,
    blocked,
    conclude,
    does_not_repeat,
    ends_differently,
)
from pytest_leakcheck.judge.exhaustion import exhausted_by
from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.finding import RED, FailingPaths, Finding
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.item_reports import (
    apply,
    attach,
    end_item,
    hand_to_rerunfailures,
    log_leak,
    report_findings,
    rerunner_of,
    tear_down_unlogged,
    with_findings,
    worst_of,
)
from pytest_leakcheck.plugin.other_plugins import AllureResults, Examples, Timer
from pytest_leakcheck.plugin.pending_errors import PendingErrors
from pytest_leakcheck.plugin.pytest_residue import Residue, settle_environment
from pytest_leakcheck.plugin.pytest_versions import is_of_subtest
from pytest_leakcheck.plugin.report_files import DeviceSnapshot
from pytest_leakcheck.plugin.session_report import SessionReport
from pytest_leakcheck.plugin.silent_tmpdir import silent_tmpdir
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions, hide_own_frames, unmeasured
from pytest_leakcheck.plugin.watchdog import Blocked, Watchdog
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.processes import thread_ids
from pytest_leakcheck.report.finding_text import junit_properties
from pytest_leakcheck.runner.environment import ForkGuard, random_states
from pytest_leakcheck.runner.known_causes import KnownCauses
from pytest_leakcheck.runner.repetition import Repetition
from pytest_leakcheck.runner.settling import leave_out_threads
from pytest_leakcheck.runner.user_gauges import Gauges

if TYPE_CHECKING:
    from pytest_leakcheck.plugin.failing_paths import FailingPath

# The instructions of the statement ``raise``.
_RAISES: Final = frozenset({dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]})


class Repeater:
    """The hooks that repeat and judge items; registered with ``--leakcheck``."""

    def __init__(self, settings: Settings, session: SessionReport) -> None:
        self._settings, self._session = settings, session
        self._known_threads: frozenset[str] = frozenset()
        self._left_threads: dict[str, str] = {}
        self._causes: KnownCauses | None = None
        # Of the test that is being repeated.
        self._snapshot: DeviceSnapshot

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Note the threads of other plugins, such as the server of pytest-rerunfailures."""
        leave_out_threads()

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        """Note the threads that importing the tests has started: no test has left them."""
        # The project may have replaced what listing the threads takes.
        with contextlib.suppress(Exception):
            self._known_threads = thread_ids()

    def run_item(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan) -> None:
        """Run an item at its turn, repeat it, and log its first run with the finding."""
        rerunner = rerunner_of(item)
        if rerunner is None:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        with self._measuring(item):
            findings, reports = self._repeat(item, plan, _Runs(item))
        if rerunner is not None:
            # That plugin logs the start of each attempt.
            failed = not findings and any(report.failed for report in reports)
            if failed and hand_to_rerunfailures(rerunner, item, nextitem, reports):
                return
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        # What is torn down now belongs to the time of the test, as in a plain session.
        Timer(item).start()
        with room_for_descriptors():
            if findings:
                reports = with_findings(item, reports, findings, self._settings)
            end_item(item, nextitem, reports)

    def judge_item(self, item: pytest.Item, nextitem: pytest.Item | None, plan: Plan) -> None:
        """Repeat an item in the second pass, and log a red finding as one more report of it."""
        first = item.stash[keys.FIRST_RUN]
        with silent_tmpdir(item.config, apart=True):
            with self._measuring(item):
                findings, _reports = self._repeat(item, plan, _Runs(item, first.seconds))
            with room_for_descriptors(), Watchdog(item.config) as watchdog:
                tear_down_unlogged(item, nextitem, watchdog.limit(first.seconds))
        with room_for_descriptors():
            for finding in findings:
                self.log_if_red(item, finding)
        self.pytest_runtest_logfinish(item.nodeid)

    def log_if_red(self, item: pytest.Item, finding: Finding) -> None:
        """Log a red finding as one more report; pass others, and lost tests, to the session."""
        if finding.colour == "red" and finding.verdict.outcome in RED:
            log_leak(item, finding)
        else:
            self._session.add_unlogged(finding)

    @contextlib.contextmanager
    def _measuring(self, item: pytest.Item) -> Iterator[None]:
        """Have what one repeated item needs. A forked child process exits here on an exception."""
        fork_guard = item.stash[keys.FORK_GUARD] = ForkGuard()
        self._snapshot = DeviceSnapshot(item, self._settings)
        try:
            yield
        except BaseException:
            fork_guard.exit_if_forked(1)
            raise
        finally:
            self._snapshot.stop()

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
        """Record threads that any test left running: a verdict on later growth names the test."""
        # A test may have replaced or forbidden what listing the threads takes.
        with contextlib.suppress(Exception):
            now = thread_ids()
            self._left_threads |= dict.fromkeys(now - self._known_threads, nodeid)
            self._known_threads = now

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Apply the finding to a test that was to run in a subprocess, and runs in this process."""
        if keys.REPEATING not in item.stash and keys.PLAN in item.stash:
            for finding in item.stash.get(keys.FINDINGS, []):
                apply(finding, item, self._settings)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        result = yield
        if iteration := request.node.stash.get(keys.REPEATING, None):
            iteration.residue.after_setup(fixturedef, request)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if iteration := item.stash.get(keys.REPEATING, None):
            iteration.gauges.read()
            iteration.residue.before_teardown()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if fork_guard := item.stash.get(keys.FORK_GUARD, None):
            fork_guard.exit_if_forked(int(call.excinfo is not None))
        if call.excinfo is not None:
            hide_own_frames(call.excinfo.value)
        report = yield
        if iteration := item.stash.get(keys.REPEATING, None):
            # Use `call.excinfo`, not `report.outcome`: under xfail(strict), a passing iteration is
            # reported as failed.
            if call.excinfo is not None:
                iteration.error = call.excinfo.value
        elif keys.FINDINGS in item.stash and (
            report.when == "call" or (report.when == "setup" and not report.passed)
        ):
            attach(report, item, item.stash[keys.FINDINGS], call)
            # ``--durations`` and JUnit show where the time of a session goes.
            report.duration += item.stash.get(keys.REPEATED, 0.0)
        return report

    def _repeat(
        self, item: pytest.Item, plan: Plan, runs: _Runs
    ) -> tuple[list[Finding], list[pytest.TestReport]]:
        """Run all iterations; return findings, and the reports to log (none in the second pass)."""
        began = clock.monotonic()
        failing: list[Result] = []
        paths: FailingPaths | None = None
        with runs:
            result = self._run_all(item, plan, runs)
            if plan.failures and result is not None:
                # What leaks or fails anyway would do so on each failing path too.
                most = 0 if _is_red(result) or result.recording.stopped == "failed" else None
                paths, failing = self._repeat_failing(item, plan, runs, most)
        # The test itself failed or skipped in the run to log, or a debugger stopped in it.
        if result is None:
            return [], runs.logged
        finding = self._snapshot.take(replace(self._conclude(item, result), failing=paths))
        # The first finding is on the test as it is, the others on its failing paths.
        findings = [finding, *(self._conclude(item, one) for one in failing)]
        item.stash[keys.FINDINGS] = findings
        item.stash[keys.REPEATED] = clock.monotonic() - began
        with OriginalFunctions():
            item.user_properties += junit_properties(worst_of(findings))
        return findings, runs.logged

    def _repeat_failing(
        self, item: pytest.Item, plan: Plan, runs: _Runs, most: int | None
    ) -> tuple[FailingPaths, list[Result]]:
        """Repeat an item for each of the first calls that are to raise, until the time is over."""
        # Imported only here: most sessions have no failing paths.
        from pytest_leakcheck.plugin.failing_paths import MOST, ObservedCalls

        deadline, results = clock.monotonic() + plan.effort.max_time, list[Result]()
        with ObservedCalls(item, plan.failures) as calls:
            found = calls.listed(lambda: self._run_once(item, plan, runs))
            for fault in found.first(MOST if most is None else most):
                left = deadline - clock.monotonic()
                if left <= 0:
                    break
                result = self._run_all(
                    item, plan.failing_at(fault, left), runs, calls.raise_at(fault)
                )
                if result is None:
                    break
                results.append(result)
        return FailingPaths(len(found), len(results)), results

    def _run_once(self, item: pytest.Item, plan: Plan, runs: _Runs) -> None:
        """Run an item in silence, without reading any counter."""
        iteration = keys.Iteration(Residue(item), self._repetition(item, plan, runs), Gauges())
        item.stash[keys.REPEATING] = iteration
        try:
            runs.run()
        finally:
            del item.stash[keys.REPEATING]
            iteration.error = None
            iteration.residue.put_back()
            iteration.repetition.abandon()

    def _run_all(
        self, item: pytest.Item, plan: Plan, runs: _Runs, path: FailingPath | None = None
    ) -> Result | None:
        """Run the item until the repetition ends, and release everything; None as `_repeat`.

        On a failing `path`, each iteration is to end as the first one.
        """
        timer = Timer(item)
        timer.stop()
        iteration = keys.Iteration(Residue(item), self._repetition(item, plan, runs), Gauges())
        item.stash[keys.REPEATING] = iteration
        try:
            return self._iterate(item, iteration, runs, timer, path)
        except pytest.exit.Exception as error:
            return _end_leaving(item, iteration.repetition, runs, error)
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            if iteration.count > 1 and exhausted_by(error):
                # The test has left pytest or the measurement nothing. At the end, its ceiling no
                # longer holds.
                with contextlib.suppress(Exception):
                    result = iteration.repetition.end("failed", error)
                    if _is_red(result):
                        return result
            iteration.repetition.abandon()
            return unmeasured(plan, error)
        except BaseException as error:  # noqa: BLE001 - raised again, unless the test raised it
            return _end_leaving(item, iteration.repetition, runs, error)
        finally:
            del item.stash[keys.REPEATING]

    def _repetition(self, item: pytest.Item, plan: Plan, runs: _Runs) -> Repetition:
        causes = self._causes or KnownCauses(item.config.stash[keys.KNOWN])
        # To tell whose a leak is takes the lines of its test.
        self._causes = None if self._settings.blame else causes
        # On a failing path, the first run is the warm-up.
        has_run = runs.count > 0 and plan.fault is None
        return Repetition(plan, left=self._left_threads, causes=causes, has_run=has_run)

    def _iterate(
        self,
        item: pytest.Item,
        iteration: keys.Iteration,
        runs: _Runs,
        timer: Timer,
        path: FailingPath | None,
    ) -> Result | None:
        repetition = iteration.repetition
        with silent_tmpdir(item.config):
            # What is read later is chosen here.
            repetition.begin()
        if repetition.is_warm:
            iteration.residue.begin_silent()
            repetition.start()
        while True:
            iteration.count += 1
            timer.start()
            failed = runs.run()
            timer.stop()
            error, iteration.error = iteration.error, None
            failed |= error is not None
            if item.stash[keys.UNMEASURED] or (failed and runs.is_first_logged):
                repetition.end("failed")
                return None
            iteration.residue.put_back(logged=runs.is_first_logged)
            if iteration.count == 1:
                runs.silence()
                # Silent runs have other variables.
                settle_environment()
                _follow_gauges(iteration)
            if path is not None and not isinstance(error, Blocked):
                if how := path.find_difference(error):
                    return _end_differently(repetition, iteration.count, how, error)
                path.release(error)
                failed, error = False, None
            if failed:
                return _end_failed(
                    repetition, runs.count if path is None else iteration.count, error
                )
            if not repetition.iteration_done():
                return repetition.end()
            self._snapshot.follow(repetition)


def _follow_gauges(iteration: keys.Iteration) -> None:
    # In a separate frame, so that what this returns is gone when the counters are read.
    gauges, budgets = iteration.gauges.seal()
    if gauges:
        iteration.repetition.follow(gauges, budgets)


def _end_leaving(
    item: pytest.Item, repetition: Repetition, runs: _Runs, error: BaseException
) -> Result:
    """End a test that raised this in a silent run; after any other error, end the session."""
    if not runs.is_first_logged and (
        isinstance(error, (Blocked, pytest.exit.Exception)) or _is_raised(error)
    ):
        return _end_failed(repetition, runs.count, error)
    _end_early(item, repetition, error)
    raise error


def _is_raised(error: BaseException) -> bool:
    """Return whether a statement raised an error; Ctrl-C raises at any other instruction."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] in _RAISES


def _end_early(item: pytest.Item, repetition: Repetition, reason: BaseException) -> None:
    """End the repetition as the session is about to end; after Ctrl-C, report its series so far."""
    with contextlib.suppress(Exception):
        if isinstance(reason, KeyboardInterrupt):
            report_findings(item, (), [repetition.end("interrupted")])
    repetition.abandon()


def _end_failed(repetition: Repetition, run: int, error: BaseException | None) -> Result:
    """Return a leak if a leaked resource ran out in this run; else, the test does not repeat."""
    result = repetition.end("failed", error)
    if _is_red(result):
        return result
    if isinstance(error, Blocked):
        verdict = blocked(result.plan, run, error.where)
    else:
        verdict = does_not_repeat(
            result.plan, run, describe_error(error) if error is not None else "a subtest failed"
        )
    return replace(result, verdicts=(verdict,), culprit=None)


def _end_differently(
    repetition: Repetition, iteration: int, how: str, error: BaseException | None
) -> Result:
    """Return a leak if a resource that the path leaks ran out; else, the path is not judged."""
    result = repetition.end("failed", error)
    if _is_red(result):
        return result
    return replace(result, verdicts=(ends_differently(result.plan, iteration, how),), culprit=None)


def _is_red(result: Result) -> bool:
    return any(verdict.outcome in RED for verdict in result.verdicts)


class _Runs:
    """The runs of an item in this context: the one to log, if not logged before, and silent ones.

    A silent run replaces `Session.gethookproxy`, which has the hooks of the item: no plugin but
    pytest and this one sees its reports, and what it warns of is dropped. A subtest logs its report
    itself, so it is kept here in any run.

    Attributes:
        logged: The reports of the run to log, also of its subtests.
        count: The number of runs, with the one of the first pass.
    """

    def __init__(self, item: pytest.Item, first_seconds: float | None = None) -> None:
        """Take the seconds of the run in the first pass; None if the first run here is logged."""
        self.logged: list[pytest.TestReport] = []
        self.count = int(first_seconds is not None)
        self._item, self._first_seconds = item, first_seconds
        self._of_session = item.session.gethookproxy
        self._examples = Examples(item)
        self._context = contextlib.ExitStack()
        self._watchdog = Watchdog(item.config)
        # What the first run has left is young. What it has set up must stay so: caches are sought
        # among young objects.
        self._pending = PendingErrors(item.config, generation=0)
        self._hooks: Callable[[os.PathLike[str]], _ReplacedHooks] = self._keep_reports

    @property
    def is_first_logged(self) -> bool:
        """Whether the last run was the one to log."""
        return self.count == 1

    def __enter__(self) -> Self:
        self._item.session.gethookproxy = self._proxy  # type: ignore[method-assign,assignment]
        self._context.callback(self._examples.put_back)
        self._context.enter_context(self._watchdog)
        if self._first_seconds is not None:
            self._begin_silence()
        return self

    def __exit__(self, *_: object) -> None:
        del self._item.session.gethookproxy
        self._context.close()

    def silence(self) -> None:
        """Show further runs to no other plugin; do nothing in the second pass, which shows none."""
        if self.is_first_logged:
            # Later tests draw the numbers of a plain session.
            self._context.enter_context(random_states())
            self._context.enter_context(silent_tmpdir(self._item.config))
            self._context.enter_context(AllureResults(self._item.config).paused())
            self._context.enter_context(self._pending)
            self._begin_silence()

    def _begin_silence(self) -> None:
        config = self._item.config
        self._context.enter_context(warnings.catch_warnings())
        if not _names_resource_warning(self._item):
            # An object that the garbage collector frees unclosed is a finding. Under `-W error`,
            # its warning would fail the next run.
            warnings.simplefilter("ignore", ResourceWarning)
        logs = config.pluginmanager.getplugin("logging-plugin")
        # The file of `--log-file`, and live logs. The handlers stay where a test may look for them.
        for name in ("log_file_handler", "log_cli_handler"):
            if handler := getattr(logs, name, None):
                # A filter that returns nothing lets no record through.
                handler.addFilter(_do_nothing)
                self._context.callback(handler.removeFilter, _do_nothing)
        option = config.option
        # `--setup-show` would print each run.
        self._context.callback(setattr, option, "setupshow", getattr(option, "setupshow", False))
        option.setupshow = False
        name = "pytest_runtest_makereport"
        others = [
            hook.plugin
            for hook in getattr(config.hook, name).get_hookimpls()
            if not _is_quiet(hook)
        ]
        self._makereport: Any = config.pluginmanager.subset_hook_caller(name, others)
        self._hooks = self._drop_reports
        self._examples.fix()

    def run(self) -> bool:
        """Run one iteration, and keep fixtures of wider scopes; return whether a subtest failed."""
        self.count += 1
        if self.is_first_logged:
            began = clock.monotonic()
            reports = runtestprotocol(self._item, log=False, nextitem=self._item.parent)  # type: ignore[arg-type]
            self._first_seconds = clock.monotonic() - began
            self.logged += reports
            return any(report.failed for report in self.logged if is_of_subtest(report))
        assert self._first_seconds is not None
        self._subtests_failed = False
        # pytest's own record of warnings spans all iterations and would keep them all.
        self._pending.drop()
        with warnings.catch_warnings(record=True), self._watchdog.limit(self._first_seconds):
            runtestprotocol(self._item, log=False, nextitem=self._item.parent)  # type: ignore[arg-type]
        self._examples.fix()
        return self._subtests_failed

    def _proxy(self, fspath: os.PathLike[str]) -> _ReplacedHooks:
        return self._hooks(fspath)

    def _keep_reports(self, fspath: os.PathLike[str]) -> _ReplacedHooks:
        return _ReplacedHooks(self._of_session(fspath), pytest_runtest_logreport=self._keep)

    def _drop_reports(self, fspath: os.PathLike[str]) -> _ReplacedHooks:
        return _ReplacedHooks(
            self._of_session(fspath),
            pytest_runtest_logreport=self._drop,
            pytest_runtest_makereport=self._makereport,
            pytest_exception_interact=_do_nothing,
        )

    def _keep(self, *, report: pytest.TestReport) -> None:
        self.logged.append(report)

    def _drop(self, *, report: pytest.TestReport) -> None:
        self._subtests_failed |= report.failed


class _ReplacedHooks:
    """The hooks of an item, some of which are replaced."""

    def __init__(self, hooks: Any, **replaced: Any) -> None:
        self._hooks = hooks
        self.__dict__ |= replaced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)


def _do_nothing(*_: object, **__: object) -> None:
    pass


def _is_quiet(hook: Any) -> bool:
    """Return whether a hook is pytest's or this package's, and so records nothing of its own."""
    package = getattr(hook.function, "__globals__", {}).get("__name__", "").partition(".")[0]
    return package in ("_pytest", "pytest_leakcheck")


def _names_resource_warning(item: pytest.Item) -> bool:
    """Return whether a filter of the session or test names `ResourceWarning`, and must apply."""
    config = item.config
    filters = [*config.getini("filterwarnings"), *(config.getoption("pythonwarnings", None) or ())]
    filters += [str(one) for mark in item.iter_markers("filterwarnings") for one in mark.args]
    return any("ResourceWarning" in one for one in filters)
