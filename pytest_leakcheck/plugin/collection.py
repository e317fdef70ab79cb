"""Choose the tests to judge, and store a plan on each: its budgets, iterations, time and limits."""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Iterable, Sequence
from math import ceil, inf
from typing import Any, Final

import pytest

from pytest_leakcheck.attribution.call_paths import add_tested
from pytest_leakcheck.config.plan import (
    Plan,
    for_test,
    is_opted_out,
    plan_unmarked,
    read_marks,
    unused,
)
from pytest_leakcheck.config.sampling import (
    Cost,
    Forecast,
    TimePlan,
    choose_case,
    parse_duration,
    parse_sample,
)
from pytest_leakcheck.config.settings import SCALING, Settings
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.escaping import printable
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.units import format_count
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.inert import LeakError
from pytest_leakcheck.plugin.other_plugins import is_worker, within_timeout
from pytest_leakcheck.plugin.pytest_residue import rebuild
from pytest_leakcheck.probes import clock

# Why a test is not judged, as the summary states it.
NO_TIME: Final = "session time"
NOT_REACHED: Final = "not reached by the second pass"
ELSEWHERE: Final = "run in another process by a plugin"
# Where pytest's cache keeps what is known of earlier sessions.
_CACHE: Final = "leakcheck/costs"


class Plans:
    """The hooks that store a plan on each item to judge; registered only with ``--leakcheck``."""

    def __init__(self, settings: Settings, sampling: Sampling | None) -> None:
        """Take the settings, and what chooses among the planned items; None if all are judged."""
        self._settings, self._sampling = settings, sampling
        self.collected: set[str] = set()
        # The node ids that a plugin or a conftest has left out.
        self.left_out: list[str] = []
        # Where names of functions that do not exist were given.
        self._refused: set[str] = set()
        # The node ids of the items that are judged without a mark.
        self._unmarked: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Plan the items. An invalid mark is a collection error, alike with and without xdist."""
        report = yield
        if isinstance(collector, pytest.Module):
            add_tested(collector.path)
        wrong = self._plan_items(report.result or ())
        if wrong:
            report.outcome, report.longrepr, report.result = (
                "failed",
                "\n".join(map(printable, wrong)),
                [],
            )
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take what may have tests, though it was skipped or is an error."""
        if not report.passed:
            self.collected.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None]:
        """Plan the items again, for marks that a conftest added; note which others left out."""
        found = items.copy()
        yield
        wrong = self._plan_items(items)
        if wrong:
            raise pytest.UsageError(*map(printable, wrong))
        if self._sampling is not None:
            self._sampling.choose(items, self._unmarked)
        self.collected.update(item.nodeid for item in items)
        # Not each of them calls `pytest_deselected`.
        self.left_out += {item.nodeid for item in found} - self.collected

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self.collected.update(ids)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Write which rules match no file, unless the session selects a part of the suite."""
        if not self.collected or selected_by(config):
            return
        for pattern in unused(self._settings, self.collected):
            line = f"leakcheck_rules: {pattern}: matches no file that has tests: patterns begin at the root directory"
            terminalreporter.write_line(printable(f"{line}, {config.rootpath}"), yellow=True)

    def _plan_items(self, nodes: Iterable[object]) -> list[str]:
        """Store on each item a plan, or why it is not judged; return errors of invalid marks."""
        wrong: list[str] = []
        for item in nodes:
            if not isinstance(item, pytest.Item):
                continue
            loops = uses_fixture(item)
            try:
                if item.get_closest_marker(SCALING) and not is_opted_out(item.iter_markers()):
                    # A process that was started for one test runs it at one size.
                    if keys.PROCESS not in item.config.stash:
                        from pytest_leakcheck.plugin.isolation.item_elsewhere import plan_sizes

                        plan_sizes(item)
                    continue
                # What an earlier planning has stored, before a conftest added marks.
                for key in (keys.PLAN, keys.SWEEP, keys.FIRST_RUN):
                    item.stash._storage.pop(key, None)
                settings = for_test(self._settings, item.nodeid)
                plan = read_marks(item.nodeid, item.iter_markers(), settings, loops=loops)
            except InputError as error:
                wrong.append(f"{item.nodeid}: {error}")
            else:
                if plan is None and not loops:
                    plan = self._plan_unmarked(item, settings)
                if plan is not None:
                    wrong += self._find_unknown_functions(plan, settings)
                    item.stash[keys.NOT_ASKED] = ""
                    item.stash[keys.PLAN] = within_timeout(item, plan)
        return wrong

    def _find_unknown_functions(self, plan: Plan, settings: Settings) -> list[str]:
        """Return what is wrong with the names of functions whose calls are to raise, once."""
        if not plan.failures:
            return []
        # Imported only here: most sessions have no failing paths.
        from pytest_leakcheck.runner.fault_injection import targets_of

        where = f"leakcheck_failures={','.join(plan.failures)} ({settings.sources.get('failures')})"
        if plan.failures != settings.failures:
            where = f"{plan.test}: leakcheck(failures={list(plan.failures)!r})"
        try:
            targets_of(plan.failures)
        except InputError as error:
            if where not in self._refused:
                self._refused.add(where)
                return [f"{where}: {error}"]
        return []

    def _plan_unmarked(self, item: pytest.Item, settings: Settings) -> Plan | None:
        """Plan an item without a mark for the second pass; return None if it is not judged."""
        item.stash[keys.NOT_ASKED] = _why_not_asked(item, settings)
        if item.stash[keys.NOT_ASKED]:
            return None
        self._unmarked.add(item.nodeid)
        if keys.PROCESS not in item.config.stash and not _expects_leak(item):
            item.stash[keys.FIRST_RUN] = keys.FirstRun()
        return plan_unmarked(item.nodeid, settings)


def _why_not_asked(item: pytest.Item, settings: Settings) -> str:
    """Return why an item without a plan is not judged, as the summary states it; else empty."""
    reasons = {
        "opted out": is_opted_out(item.iter_markers()),
        "without a mark": settings.scope == "marked",
        "off by leakcheck_rules": settings.scope == "off",
        "doctests": isinstance(item, pytest.DoctestItem),
        # Only functions are known to bear repetition, and a benchmark repeats its body by itself.
        "not functions": not isinstance(item, pytest.Function),
        "benchmarks": "benchmark" in getattr(item, "fixturenames", ()),
        "xfail(run=False)": any(
            mark.kwargs.get("run") is False for mark in item.iter_markers("xfail")
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class Sampling:
    """The hooks that choose tests; not registered in a process that was started for one test."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config, self._settings = config, settings
        self._cache: Any = getattr(config, "cache", None)
        # The seconds that the session may take.
        self.limit = parse_duration(settings.session_time) if settings.session_time else inf
        self._spent = 0.0
        # Made once the items are known, if the session has a limit.
        self._plan: TimePlan | None = None
        # By node id, the seconds that the tests of this session took, and those that are red.
        self._seconds: dict[str, float] = {}
        self._red: set[str] = set()
        # How many of them no earlier session has judged.
        self._new = 0

    def choose(self, items: Collection[pytest.Item], unmarked: Collection[str]) -> None:
        """Leave out items not judged in this session; `unmarked` are ids judged without a mark."""
        asked = [item for item in items if is_asked(item)]
        if self._settings.cases == "one":
            cases: dict[str, list[str]] = {}
            for item in asked:
                if item.nodeid in unmarked and hasattr(item, "callspec"):
                    cases.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
            others = {case for some in cases.values() for case in some} - {
                choose_case(some) for some in cases.values()
            }
            asked = _leave_out(asked, others, "other cases")
        if self._settings.sample:
            takes = parse_sample(self._settings.sample).takes
            asked = _leave_out(
                asked, {one.nodeid for one in asked if not takes(one.nodeid)}, "not in this sample"
            )
        if self.limit < inf:
            names = [item.nodeid for item in asked]
            workers = int(getattr(self._config, "workerinput", {}).get("workercount", 1))
            self._plan = TimePlan(names, self._known_costs(), self.limit, workers)
            _leave_out(asked, set(names) - self._plan.chosen, NO_TIME)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let an item run once if the time is spent; in the second pass, do not run it again."""
        if self._plan is None or not is_judged_now(item):
            return (yield)
        if not self._plan.allows(item.nodeid, self._spent):
            _leave_out([item], {item.nodeid}, NO_TIME)
            return (yield)
        began = clock.monotonic()
        try:
            return (yield)
        finally:
            self._spent += clock.monotonic() - began

    def add(self, finding: Finding) -> None:
        """Take what a test has cost, for the choice and the estimate of the next session."""
        if finding.recording.stopped == "interrupted":
            return
        self._seconds[finding.test] = (
            self._seconds.get(finding.test, 0.0) + finding.recording.seconds
        )
        if finding.colour == "red":
            self._red.add(finding.test)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Keep the costs in pytest's cache, if there is one."""
        if not self._seconds or is_worker(self._config) or self._cache is None:
            return
        self._count_new()
        known = {
            test: [cost.seconds, cost.measured, cost.red]
            for test, cost in self._known_costs().items()
        }
        now = round(clock.wall_time())
        known |= {
            test: [round(seconds, 2), now, test in self._red]
            for test, seconds in self._seconds.items()
        }
        self._cache.set(_CACHE, known)

    def describe(self, left_out: Collection[str]) -> str:
        """Return a line on the tests for which there was no time."""
        turn = "the next session begins with the same ones, because pytest's cache is off"
        if self._cache is not None:
            never_judged = len(set(left_out) - self._known_costs().keys())
            turn = "those that have waited longest come first next time"
            if not never_judged:
                turn += "; earlier sessions have judged all of them"
            elif new := self._count_new():
                turn += f"; about {format_count(ceil(never_judged / new), 'more session')} until all were judged"
        judged = len(self._seconds)
        return f"{judged:,} of {judged + len(left_out):,} tests judged in {self._settings.session_time}: {turn}"

    def _count_new(self) -> int:
        """Count the newly judged tests once: when the costs are stored, none is new any more."""
        self._new = self._new or len(self._seconds.keys() - self._known_costs().keys())
        return self._new

    def forecast(self, tests: Collection[str]) -> Forecast:
        """Return how long these tests are expected to take."""
        return Forecast(tests, {test: one.seconds for test, one in self._known_costs().items()})

    def _known_costs(self) -> dict[str, Cost]:
        """Return what earlier sessions have kept; nothing if it is damaged."""
        found = self._cache.get(_CACHE, {}) if self._cache is not None else {}
        try:
            return {
                str(test): Cost(float(row[0]), float(row[1]), bool(row[2]))
                for test, row in found.items()
            }
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return {}


def is_asked(item: pytest.Item) -> bool:
    """Return whether a test is to be judged in this session."""
    if item.stash.get(keys.NOT_ASKED, ""):
        return False
    return keys.PLAN in item.stash or keys.SWEEP in item.stash or uses_fixture(item)


def waits(item: pytest.Item) -> bool:
    """Return whether a test runs as in a plain session now, and is judged in the second pass."""
    return keys.FIRST_RUN in item.stash and not item.stash[keys.FIRST_RUN].judging


def is_judged_now(item: pytest.Item) -> bool:
    """Return whether a test is judged in this run; in the first pass, an unmarked one is not."""
    return is_asked(item) and not waits(item)


def _expects_leak(item: pytest.Item) -> bool:
    """Return whether a test is marked to fail by its leak, which must then be found at its turn."""
    expected = [mark.kwargs.get("raises") for mark in item.iter_markers("xfail")]
    return any(LeakError in one if isinstance(one, tuple) else one is LeakError for one in expected)


def uses_fixture(item: pytest.Item) -> bool:
    """Return whether a test uses the fixture ``leakcheck``, and so may judge loops of its own."""
    return "leakcheck" in getattr(item, "fixturenames", ())


def selected_by(config: pytest.Config) -> str:
    """Return the argument that selects a part of the suite; empty if the session runs the whole."""
    flags = {
        "keyword": "-k",
        "markexpr": "-m",
        "lf": "--lf",
        "deselect": "--deselect",
        "ignore": "--ignore",
        "ignore_glob": "--ignore-glob",
        "stepwise": "--stepwise",
    }
    if used := [flag for name, flag in flags.items() if config.getoption(name, None)]:
        return used[0]
    return str(config.args[0]) if config.args_source is pytest.Config.ArgsSource.ARGS else ""


def find_debugger(config: pytest.Config) -> str:
    """Return why no test is measured now, as the summary states it; empty if tests may be.

    A debugger must not stop in every iteration.
    """
    flags = {"usepdb": "--pdb", "trace": "--trace", "setuponly": "--setup-only"}
    if flag := next(
        (flag for option, flag in flags.items() if config.getoption(option, False)), ""
    ):
        return f"run once with {flag}"
    # Other tools also set a trace function, such as coverage.py. An editor's debugger imports one
    # of these modules.
    kinds = type(getattr(sys.gettrace(), "__self__", None)).__mro__
    attached = {"pydevd", "debugpy"} & sys.modules.keys() or any(
        kind.__module__ == "bdb" for kind in kinds
    )
    monitoring = getattr(sys, "monitoring", None)
    if attached or (monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID)):
        return "run once under a debugger"
    return ""


def _leave_out(
    items: Collection[pytest.Item], names: Collection[str], reason: str
) -> list[pytest.Item]:
    """Let the items with these node ids run once; return the others."""
    for item in items:
        if item.nodeid in names:
            item.stash[keys.NOT_ASKED] = reason
            rebuild(item.stash, item.stash._storage.keys() - {keys.PLAN, keys.SWEEP})
    return [item for item in items if item.nodeid not in names]
