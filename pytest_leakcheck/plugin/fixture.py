"""Implement the fixture ``leakcheck`` with ``--leakcheck``: judge loops and blocks of a test."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_leakcheck.config.budget import Budget, Levels, read_levels
from pytest_leakcheck.config.plan import Plan, ceiling_of, effort_of, for_test
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude, left_early
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.inert import Leakcheck, check_steps
from pytest_leakcheck.plugin.item_reports import apply, report_findings
from pytest_leakcheck.plugin.undisturbed import unmeasured
from pytest_leakcheck.runner.repetition import Repetition, measure_block

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The fixture of a test that runs once; set until its body ends.
_FIXTURE: Final[pytest.StashKey[MeasuringFixture]] = pytest.StashKey()
UNUSED: Final = "with the fixture `leakcheck` but no steps() or budget()"


def make_leakcheck(node: pytest.Item, settings: Settings) -> Leakcheck:
    """Return the value of the fixture.

    It measures nothing with a debugger, or in a test that was to run in a subprocess.
    """
    if keys.SIZE in node.config.stash:
        from pytest_leakcheck.plugin.isolation.child_session import Sized

        return Sized(node.config)
    if node.stash[keys.UNMEASURED] or node.stash.get(keys.NOT_ASKED, ""):
        return Leakcheck()
    if keys.REPEATING in node.stash:
        return _RepeatedFixture(node)
    if keys.PLAN in node.stash:
        return Leakcheck()
    fixture = node.stash[_FIXTURE] = MeasuringFixture(node, for_test(settings, node.nodeid))
    return fixture


class _RepeatedFixture(Leakcheck):
    """The fixture in a test that is repeated as a whole; gauges are read at the end of the body."""

    def __init__(self, node: pytest.Item) -> None:
        self._iteration = node.stash[keys.REPEATING]

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        self._iteration.gauges.follow(name, read, level)

    def checkpoint(self, label: str) -> None:
        self._iteration.repetition.checkpoint(label)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """End the use of the fixture with the test's body; this module is registered as a plugin."""
    fixture = item.stash.get(_FIXTURE, None)
    if fixture is None:
        return (yield)
    del item.stash[_FIXTURE]
    try:
        result = yield
    except KeyboardInterrupt:
        fixture.interrupt()
        raise
    finally:
        fixture.close()
    fixture.finish()
    return result


class MeasuringFixture(Leakcheck):
    """The fixture in a test that runs once; it judges each loop and block."""

    def __init__(self, node: pytest.Item, settings: Settings) -> None:
        self._node, self._settings = node, settings
        self._gauges: dict[str, Callable[[], int]] = {}
        self._gauge_levels: dict[str, int | None] = {}
        # Of the loop that is running.
        self._repetition: Repetition | None = None
        self._used = False
        # Weak references: a loop that the test leaves ends at once, so that another one may begin.
        self._loops: list[weakref.ref[Generator[int, None, None]]] = []
        self._not_begun: list[tuple[Budget, ...]] = []
        # What loops have found that were left before their end, and in which step.
        self._left: list[tuple[Result, int]] = []

    def steps(self, n: int | None = None, **levels: Unpack[Levels]) -> Iterator[int]:
        # The report on wrong use ends with the user's own line.
        __tracebackhide__ = True
        check_steps(n)
        self._used = True
        budgets = read_levels(levels)
        loop = self._judged_steps(n, budgets)
        self._loops.append(weakref.ref(loop))
        self._not_begun.append(budgets)
        return loop

    def _judged_steps(
        self, n: int | None, levels: tuple[Budget, ...]
    ) -> Generator[int, None, None]:
        self._not_begun.remove(levels)
        effort = (
            effort_of(self._settings)
            if n is None
            else replace(effort_of(self._settings), iterations=n)
        )
        budgets = (*self._gauge_budgets(), *levels)
        process = self._node.config.stash.get(keys.PROCESS, {})
        ceiling = ceiling_of(self._node.iter_markers(), self._settings)
        plan = Plan(self._node.nodeid, budgets, effort, process, ceiling)
        repetition = self._repetition = Repetition(plan, self._gauges)
        step, wanted = 0, True
        switch = _allow_blocking()
        try:
            repetition.begin()
            while wanted:
                _forbid_blocking(switch)
                yield step
                if self._node.stash[keys.UNMEASURED]:
                    repetition.end("interrupted")
                    return
                step += 1
                switch = _allow_blocking()
                wanted = repetition.iteration_done()
            result = repetition.end()
        except (GeneratorExit, KeyboardInterrupt):
            switch = _allow_blocking()
            self._left.append((repetition.end("interrupted"), step))
            raise
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            repetition.abandon()
            result = unmeasured(plan, error, of_test=False)
            _forbid_blocking(switch)
            yield from range(step, n or 0)
        except BaseException:
            repetition.abandon()
            raise
        finally:
            _forbid_blocking(switch)
            self._repetition = None
        self._report(result)

    def budget(self, **levels: Unpack[Levels]) -> contextlib.AbstractContextManager[None]:
        __tracebackhide__ = True
        self._used = True
        # Of Ray, a block has what levels name: workers may come and go while it runs once.
        of_block = [
            Budget(name)
            for name, resource in RESOURCES.items()
            if resource.scope != "this process" and not resource.of_cluster
        ]
        return self._judged_block(read_levels(levels) if levels else of_block)

    @contextlib.contextmanager
    def _judged_block(self, wanted: Iterable[Budget]) -> Iterator[None]:
        budgets = tuple(
            replace(budget, level=budget.level or 0) for budget in (*self._gauge_budgets(), *wanted)
        )
        block = measure_block(self._node.nodeid, budgets, self._gauges)
        switch = _allow_blocking()
        try:
            with block as finished:
                _forbid_blocking(switch)
                try:
                    yield
                finally:
                    switch = _allow_blocking()
        finally:
            _forbid_blocking(switch)
        if not self._node.stash[keys.UNMEASURED]:
            self._report(finished())

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        if self._repetition is not None and name not in self._gauges:
            wrong = "was first called inside the loop: call it once before leakcheck.steps()"
            raise RuntimeError(f"leakcheck.gauge({name!r}) {wrong}")
        self._gauges[name] = read if callable(read) else partial(int, read)
        self._gauge_levels[name] = level

    def checkpoint(self, label: str) -> None:
        if self._repetition is not None:
            self._repetition.checkpoint(label)

    def close(self) -> None:
        """End the loops that the test has suspended, so that later tests can be measured."""
        for reference in self._loops:
            if (loop := reference()) is not None:
                loop.close()

    def interrupt(self) -> None:
        """Report what was found until Ctrl-C ended the test, whose reports are not logged."""
        self.close()
        findings: list[Finding] = self._node.stash.get(keys.FINDINGS, [])
        report_findings(self._node, findings, [result for result, _step in self._left])

    def finish(self) -> None:
        """After the body, report the loops that were left, and whether anything was measured."""
        for result, step in self._left:
            self._report(left_early(result, step))
        for budgets in self._not_begun:
            nothing = Recording(self._node.nodeid, (), stopped="interrupted")
            self._report(
                left_early(Result(Plan(self._node.nodeid, budgets), nothing, (), {}), None)
            )
        if not self._used:
            self._node.stash[keys.UNMEASURED] = UNUSED

    def _gauge_budgets(self) -> tuple[Budget, ...]:
        return tuple(
            Budget(GAUGE_PREFIX + name, level) for name, level in self._gauge_levels.items()
        )

    def _report(self, result: Result) -> None:
        finding = conclude(result, Policy.of(self._settings, self._node.config.stash[keys.KNOWN]))
        self._node.stash.setdefault(keys.FINDINGS, []).append(finding)
        apply(finding, self._node, self._settings)


def _allow_blocking() -> Any:
    """Begin work that reads files; return the switch for `_forbid_blocking`, or None."""
    # blockbuster refuses calls that block an event loop, and has no public switch. A context
    # manager would be counted.
    blockbuster = sys.modules.get("blockbuster.blockbuster")
    switch: Any = getattr(blockbuster, "_skip", None)
    if getattr(switch, "value", None) is not False:
        return None
    switch.value = True
    return switch


def _forbid_blocking(switch: Any) -> None:
    if switch is not None:
        switch.value = False
