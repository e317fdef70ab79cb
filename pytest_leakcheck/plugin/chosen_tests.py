"""Tell which tests a session judges, and leave out others: other cases and samples, and those for which time is short."""

from __future__ import annotations

import sys
from collections.abc import Collection, Generator, Iterator
from math import inf
from typing import Any, Final

import pytest

from pytest_leakcheck.config.sampling import Cost, TimePlan, choose_case, parse_duration, parse_sample
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.config.time_left import Forecast
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.stash import NOT_ASKED, PLAN, SWEEP
from pytest_leakcheck.probes import clock

# Why a test is not judged, as the summary states it.
NO_TIME: Final = "session time"
# Where pytest's cache keeps what is known of earlier sessions.
_CACHE: Final = "leakcheck/costs"
STOPPED: Final = "a debugger stopped in it"


class Sampling:
    """The hooks that choose tests; not registered in a process that was started for one test."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config, self._settings = config, settings
        self._seconds = parse_duration(settings.session_time) if settings.session_time else 0.0
        self._spent = 0.0
        # Made once the items are known; None if the session has no limit.
        self._plan: TimePlan | None = None
        self._costs: dict[str, Cost] = {}

    def choose(self, items: Collection[pytest.Item], unmarked: Collection[str]) -> None:
        """Leave out items that this session does not judge; `unmarked` are the ids of those judged without a mark."""
        asked = [item for item in items if is_asked(item)]
        if self._settings.cases == "one":
            cases: dict[str, list[str]] = {}
            for item in asked:
                if item.nodeid in unmarked and hasattr(item, "callspec"):
                    cases.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
            others = {case for some in cases.values() for case in some} - {choose_case(some) for some in cases.values()}
            asked = _leave_out(asked, others, "other cases")
        if self._settings.sample:
            sample = parse_sample(self._settings.sample)
            others = {one.nodeid for one in asked if not sample.takes(one.nodeid)}
            asked = _leave_out(asked, others, "not in this sample")
        if self._seconds:
            names = [item.nodeid for item in asked]
            workers = int(getattr(self._config, "workerinput", {}).get("workercount", 1))
            self._plan = TimePlan(names, self._known_costs(), self._seconds, workers)
            _leave_out(asked, set(names) - self._plan.chosen, NO_TIME)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let an item run once if the time is spent."""
        if self._plan is None or not is_asked(item):
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
        earlier = self._costs.get(finding.test, Cost(0.0, 0.0, False))
        seconds, red = finding.recording.seconds + earlier.seconds, finding.colour == "red" or earlier.red
        self._costs[finding.test] = Cost(round(seconds, 2), round(clock.wall_time()), red)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Keep the costs in pytest's cache, if there is one."""
        if not self._costs or xdist.is_worker(self._config) or self._cache is None:
            return
        known = {**self._known_costs(), **self._costs}
        self._cache.set(_CACHE, {test: [one.seconds, one.measured, one.red] for test, one in known.items()})

    def lines(self, left_out: int) -> Iterator[str]:
        """Yield a line on the tests for which there was no time; `left_out` is their number."""
        if left_out:
            turn = "those that have waited longest come first next time"
            if self._cache is None:
                turn = "the next session begins with the same ones, because pytest's cache is off"
            judged = len(self._costs)
            yield f"{judged:,} of {judged + left_out:,} tests judged in {self._settings.session_time}: {turn}"

    def forecast(self, tests: Collection[str], *, known: bool = False) -> Forecast:
        """Return how long these tests are expected to take; if `known`, those that earlier sessions have measured.

        A controller of xdist does not know which tests of its workers are measured, least of all with a sample.
        """
        seconds = {test: one.seconds for test, one in self._known_costs().items()}
        if known:
            tests = [] if self._settings.sample else [test for test in tests if test in seconds]
        return Forecast(tests, seconds)

    @property
    def limit(self) -> float:
        """The seconds that the session may take; infinity without a limit."""
        return self._seconds or inf

    @property
    def _cache(self) -> Any:
        return getattr(self._config, "cache", None)

    def _known_costs(self) -> dict[str, Cost]:
        """Return what earlier sessions have kept; nothing if it is damaged."""
        found = self._cache.get(_CACHE, {}) if self._cache is not None else {}
        try:
            return {str(test): Cost(float(row[0]), float(row[1]), bool(row[2])) for test, row in found.items()}
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return {}


def is_asked(item: pytest.Item) -> bool:
    """Return whether a test is to be judged in this session: it has a plan or a sweep, or may judge loops of its own."""
    if item.stash.get(NOT_ASKED, ""):
        return False
    return PLAN in item.stash or SWEEP in item.stash or "leakcheck" in getattr(item, "fixturenames", ())


def selected_by(config: pytest.Config) -> str:
    """Return the argument that selects a part of the suite; empty if the session runs the whole."""
    flags = {"keyword": "-k", "markexpr": "-m", "lf": "--lf", "last_failed": "--lf", "deselect": "--deselect"}
    if used := [flag for name, flag in flags.items() if config.getoption(name, None)]:
        return used[0]
    return str(config.args[0]) if config.args_source is pytest.Config.ArgsSource.ARGS else ""


def find_debugger(config: pytest.Config) -> str:
    """Return why no test is measured now, as part of a sentence: it must not stop in every iteration. Empty if it may."""
    flags = {"usepdb": "--pdb", "trace": "--trace", "setuponly": "--setup-only"}
    if flag := next((flag for option, flag in flags.items() if config.getoption(option)), ""):
        return f"with {flag}, each test runs once"
    # Other tools also set a trace function, such as coverage.py. An editor's debugger imports one of these modules.
    kinds = type(getattr(sys.gettrace(), "__self__", None)).__mro__
    attached = {"pydevd", "debugpy"} & sys.modules.keys() or any(one.__module__ == "bdb" for one in kinds)
    monitoring = getattr(sys, "monitoring", None)
    if attached or (monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID)):
        return "a debugger is attached, so each test runs once"
    return ""


def _leave_out(items: Collection[pytest.Item], names: Collection[str], reason: str) -> list[pytest.Item]:
    """Let the items with these node ids run once; return the others."""
    for item in items:
        if item.nodeid in names:
            item.stash[NOT_ASKED] = reason
            keys: tuple[pytest.StashKey[Any], ...] = (PLAN, SWEEP)
            for key in keys:
                if key in item.stash:
                    del item.stash[key]
    return [item for item in items if item.nodeid not in names]
