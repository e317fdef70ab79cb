"""Implement the fixture ``leakcheck``, which judges loops and blocks of a test.

It uses the same runner as repeated tests. Without ``--leakcheck`` it does nothing and imports little.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_leakcheck.config.budget import Budget, Level, read_levels
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES
from pytest_leakcheck.plugin.inert_fixture import Inert, Leakcheck, check_steps
from pytest_leakcheck.plugin.stash import SIZE

if TYPE_CHECKING:
    from pytest_leakcheck.judge.result import Result
    from pytest_leakcheck.plugin.stash import Iteration
    from pytest_leakcheck.runner.repetition import Repetition


def make_leakcheck(node: pytest.Item, settings: Settings) -> Leakcheck:
    """Return the value of the fixture.

    It measures nothing without ``--leakcheck``, and nothing in the last run of a repeated test, which is logged. Inside
    the iterations of such a test, and in a process that runs a test once for its peaks, it measures only gauges and
    checkpoints.
    """
    if not settings.active:
        return Inert()
    if SIZE in node.config.stash:
        from pytest_leakcheck.plugin.isolation.metered_run import Sized

        return Sized(node.config)
    from pytest_leakcheck.plugin.stash import PLAN, REPEATING

    if REPEATING in node.stash:
        return _RepeatedFixture(node.stash[REPEATING])
    return Inert() if PLAN in node.stash else _MeasuringFixture(node, settings)


class _RepeatedFixture(Inert):
    """The fixture in a test that is repeated as a whole.

    Loops run `n` steps, by default one. Gauges are read at the end of the test's body in each iteration.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        self._iteration.gauges.follow(name, read, level)

    def checkpoint(self, label: str) -> None:
        self._iteration.repetition.checkpoint(label)


class _MeasuringFixture:
    """The fixture in a test that runs once; it judges each loop and block."""

    rank = 0

    def __init__(self, node: pytest.Item, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._gauges: dict[str, Callable[[], int]] = {}
        self._gauge_levels: dict[str, int | None] = {}
        self._looping = False
        self._repetition: Repetition | None = None

    def steps(self, n: int | None = None, **levels: Level) -> Iterator[int]:
        # The report on wrong use ends with the user's own line.
        __tracebackhide__ = True
        check_steps(n)
        return self._judged_steps(n, read_levels(levels))

    def _judged_steps(self, n: int | None, levels: tuple[Budget, ...]) -> Iterator[int]:
        from pytest_leakcheck.config.markers import ceiling_of, effort_of
        from pytest_leakcheck.config.plan import Plan
        from pytest_leakcheck.plugin.harness_errors import unmeasured
        from pytest_leakcheck.plugin.stash import PROCESS
        from pytest_leakcheck.runner.repetition import Repetition

        effort = effort_of(self._settings)
        if n is not None:
            effort = replace(effort, iterations=n)
        budgets = (*self._gauge_budgets(), *levels)
        process = self._node.config.stash.get(PROCESS, {})
        ceiling = ceiling_of(self._node.iter_markers(), self._settings)
        plan = Plan(self._node.nodeid, budgets, effort, process, ceiling)
        repetition = self._repetition = Repetition(plan, self._gauges)
        step, wanted = 0, True
        self._looping = True
        try:
            repetition.begin()
            while wanted:
                with repetition.ceiling:
                    yield step
                step += 1
                wanted = repetition.iteration_done()
            result = repetition.end()
        except Exception as error:  # noqa: BLE001 - errors of others are raised again
            repetition.abandon()
            result = unmeasured(plan, error, of_test=False)
            yield from range(step, n or 0)
        except BaseException:
            # The loop ended early, for example with `break`. Release the instruments, and give no verdict.
            repetition.abandon()
            raise
        finally:
            self._looping, self._repetition = False, None
        self._report(result)

    def budget(self, **levels: Level) -> contextlib.AbstractContextManager[None]:
        __tracebackhide__ = True
        of_block = (name for name, resource in RESOURCES.items() if resource.of_block)
        return self._judged_block(read_levels(levels) if levels else tuple(map(Budget, of_block)))

    @contextlib.contextmanager
    def _judged_block(self, wanted: tuple[Budget, ...]) -> Iterator[None]:
        from pytest_leakcheck.runner.measured_block import measure_block

        budgets = tuple(replace(budget, level=budget.level or 0) for budget in (*self._gauge_budgets(), *wanted))
        with measure_block(self._node.nodeid, budgets, self._gauges) as finished:
            yield
        self._report(finished())

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        if self._looping and name not in self._gauges:
            raise RuntimeError(
                f"leakcheck.gauge({name!r}) was first called inside the loop: call it once before leakcheck.steps()"
            )
        self._gauges[name] = read if callable(read) else partial(int, read)
        self._gauge_levels[name] = level

    def checkpoint(self, label: str) -> None:
        if self._repetition is not None:
            self._repetition.checkpoint(label)

    def _gauge_budgets(self) -> tuple[Budget, ...]:
        return tuple(Budget(GAUGE_PREFIX + name, level) for name, level in self._gauge_levels.items())

    def _report(self, result: Result) -> None:
        from pytest_leakcheck.judge.conclude_finding import conclude
        from pytest_leakcheck.plugin.errors import LeakError
        from pytest_leakcheck.plugin.stash import FINDINGS
        from pytest_leakcheck.plugin.terminal_encoding import report_text

        finding = conclude(result, self._settings.fail_on, self._settings.missing, self._settings.blame)
        self._node.stash.setdefault(FINDINGS, []).append(finding)
        if finding.colour == "red":
            raise LeakError(report_text(finding, self._node.config))
        if finding.missing:
            # Skip the test, as with a budget marker. A test must not pass if a resource that it names was not read.
            pytest.skip(finding.missing)
