"""The fixture ``leakcheck``: judge inside a test, over the same runner. Without ``--leakcheck`` it does nothing, lightly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_leakcheck.config.budget import Budget, BudgetError, parse_level
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES
from pytest_leakcheck.plugin import SIZE

if TYPE_CHECKING:
    from pytest_leakcheck.judge.result import Result
    from pytest_leakcheck.plugin.repeat import Iteration
    from pytest_leakcheck.runner.repetition import Repetition

Level = int | str | None


class Leakcheck(Protocol):
    """What a test sees of it, measuring or not.

    Attributes:
        rank: Which rank of a world this is, from 0; 0 where there is none.
    """

    @property
    def rank(self) -> int: ...

    def steps(self, n: int | None = None, **levels: Level) -> Iterator[int]:
        """Judge a loop: ``for step in leakcheck.steps(fd=0, heap="1 MiB"): train(step)``.

        Args:
            n: So many steps after the warm-up; left out, as many as the verdict needs.
            levels: How far each resource may stand above the start; None bounds its growth only. Left out, all
                resources that are judged by default.

        Yields:
            The number of the step, from 0; warm-up included.

        Raises:
            LeakError: In place of the loop's end, when the verdict is red.
        """
        ...

    def budget(self, **levels: Level) -> contextlib.AbstractContextManager[None]:
        """Judge a block once, after against before: ``with leakcheck.budget(fd=0, heap="1 MiB"): run()``.

        Left out, descriptors, threads, child processes, shared memory and temporary files are held to 0.

        Raises:
            LeakError: At the block's end, when a level is exceeded or only the collector gave something back.
        """
        ...

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        """Follow a counter of your own: it must not keep growing.

        It is read after each step of a loop; in a test that is repeated as a whole, at the end of its body, so call it
        there in each iteration.
        In a test over an axis (``scaling_budget``) its highest reading counts, taken at each call and return; a number in
        place of a function is one reading.
        """
        ...

    def checkpoint(self, label: str) -> None:
        """A phase of the test ends here, and the report tells it apart from the next one.

        In a repeated test or loop by what it adds to the counters; in a test over an axis by its peaks.
        """
        ...


def make_leakcheck(node: pytest.Item, settings: Settings) -> Leakcheck:
    """The fixture's value: inert without ``--leakcheck``, and inside a test that is being repeated as a whole."""
    if not settings.active:
        return Inert()
    if SIZE in node.config.stash:
        from pytest_leakcheck.plugin.scaling.single_size import Sized

        return Sized(node.config)
    from pytest_leakcheck.plugin.repeat import PLAN, REPEATING

    if REPEATING in node.stash:
        return _Repeated(node.stash[REPEATING])
    return Inert() if PLAN in node.stash else _Measuring(node, settings)


def read_levels(levels: dict[str, Level]) -> tuple[Budget, ...]:
    """Budgets from ``fd=0, heap="1 MiB"``; from nothing, growth of all that is judged by default.

    Raises:
        BudgetError: An unknown resource or a level that cannot be read.
    """
    if not levels:
        return tuple(Budget(name, explicit=False) for name, resource in RESOURCES.items() if resource.default)
    for name, level in levels.items():
        if name not in RESOURCES:
            raise BudgetError(f"{name}={level!r}: no such resource; valid are {', '.join(RESOURCES)}")
    try:
        given = {name: None if level is None else parse_level(name, level) for name, level in levels.items()}
    except BudgetError as error:
        raise BudgetError(f"{', '.join(f'{k}={v!r}' for k, v in levels.items())}: {error}") from None
    return tuple(Budget(name, given[name]) for name in RESOURCES if name in given)


def _check_steps(n: int | None) -> None:
    if n is not None and n < 1:
        raise ValueError(f"leakcheck.steps({n!r}): not a number of steps of at least 1")


class Inert:
    """Nothing is measured: loops run one step, and what is followed is forgotten."""

    @property
    def rank(self) -> int:
        return 0

    def steps(self, n: int | None = None, **levels: Level) -> Iterator[int]:
        read_levels(levels)
        _check_steps(n)
        yield from range(1 if n is None else n)

    def budget(self, **levels: Level) -> contextlib.AbstractContextManager[None]:
        read_levels(levels)
        return contextlib.nullcontext()

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        """Nothing is followed."""

    def checkpoint(self, label: str) -> None:
        """Nothing is measured."""


class _Repeated(Inert):
    """In a test that is repeated as a whole: its loops run one step, its gauges are read at the end of each iteration."""

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        self._iteration.gauges.follow(name, read, level)

    def checkpoint(self, label: str) -> None:
        self._iteration.repetition.checkpoint(label)


class _Measuring:
    rank = 0

    def __init__(self, node: pytest.Item, settings: Settings) -> None:
        self._node = node
        self._settings = settings
        self._gauges: dict[str, Callable[[], int]] = {}
        self._gauge_levels: dict[str, int | None] = {}
        self._looping = False
        self._repetition: Repetition | None = None

    def steps(self, n: int | None = None, **levels: Level) -> Iterator[int]:
        from pytest_leakcheck.config.markers import ceiling_of, effort_of
        from pytest_leakcheck.config.plan import Plan
        from pytest_leakcheck.plugin.repeat import PROCESS
        from pytest_leakcheck.runner.repetition import Repetition

        effort = effort_of(self._settings)
        _check_steps(n)
        if n is not None:
            effort = replace(effort, iterations=n)
        budgets = (*self._gauge_budgets(), *read_levels(levels))
        process = self._node.config.stash.get(PROCESS, {})
        ceiling = ceiling_of(self._node.iter_markers(), self._settings)
        plan = Plan(self._node.nodeid, budgets, effort, process, ceiling)
        repetition = self._repetition = Repetition(plan, self._gauges)
        step, wanted = 0, True
        repetition.begin()
        self._looping = True
        try:
            while wanted:
                yield step
                step += 1
                wanted = repetition.iteration_done()
        except BaseException:
            # The loop was left by `break`, or a gauge raised: no verdict, and nothing left behind.
            repetition.end("interrupted")
            raise
        finally:
            self._looping, self._repetition = False, None
        self._report(repetition.end())

    @contextlib.contextmanager
    def budget(self, **levels: Level) -> Iterator[None]:
        from pytest_leakcheck.runner.measured_block import measure_block

        of_block = (name for name, resource in RESOURCES.items() if resource.of_block)
        wanted = read_levels(levels) if levels else tuple(map(Budget, of_block))
        budgets = tuple(replace(budget, level=budget.level or 0) for budget in (*self._gauge_budgets(), *wanted))
        with measure_block(self._node.nodeid, budgets, self._gauges) as finished:
            yield
        self._report(finished())

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        if self._looping and name not in self._gauges:
            raise RuntimeError(
                f"leakcheck.gauge({name!r}) inside the loop is new: call it once before leakcheck.steps()"
            )
        self._gauges[name] = read if callable(read) else partial(int, read)
        self._gauge_levels[name] = level

    def checkpoint(self, label: str) -> None:
        if self._repetition is not None:
            self._repetition.checkpoint(label)

    def _gauge_budgets(self) -> tuple[Budget, ...]:
        return tuple(Budget(GAUGE_PREFIX + name, level) for name, level in self._gauge_levels.items())

    def _report(self, result: Result) -> None:
        from pytest_leakcheck.judge.conclude import conclude
        from pytest_leakcheck.plugin.errors import LeakError
        from pytest_leakcheck.plugin.repeat import FINDINGS
        from pytest_leakcheck.plugin.session import glyphs_of
        from pytest_leakcheck.report.finding_text import block

        finding = conclude(result, self._settings.fail_on, self._settings.missing, self._settings.blame)
        self._node.stash.setdefault(FINDINGS, []).append(finding)
        if finding.colour == "red":
            raise LeakError(block(finding, glyphs_of(self._node.config)))
        if finding.missing:
            # As a test that carries a budget is skipped: it must not pass on what was not read.
            pytest.skip(finding.missing)
