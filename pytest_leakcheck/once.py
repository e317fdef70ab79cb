"""A block of code, before against after: levels only, since one run shows no trend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from pytest_leakcheck.attribution.identity import survivors, take_identities
from pytest_leakcheck.budget import Budget
from pytest_leakcheck.panel import Panel
from pytest_leakcheck.plan import Effort, Plan
from pytest_leakcheck.probes.limits import read_limits
from pytest_leakcheck.runner import Result, describe_environment, missing_verdicts
from pytest_leakcheck.series import Recording
from pytest_leakcheck.verdict import judge_once


@contextlib.contextmanager
def measure_block(
    name: str, budgets: tuple[Budget, ...], gauges: Mapping[str, Callable[[], int]]
) -> Iterator[Callable[[], Result]]:
    """Measure the body of a ``with`` statement.

    Args:
        name: Of the test.
        budgets: Each with a level.
        gauges: Counters of the user's own by name.

    Yields:
        A function that, after the body, gives the result. When the body raises, there is none to give.
    """
    plan = Plan(name, budgets, Effort(iterations=1, warmup=0))
    results: list[Result] = []
    panel = Panel((budget.resource for budget in budgets), gauges, capacity=3)
    try:
        # Whatever this function makes is made before the start is read.
        before = take_identities()
        finished = partial(results.__getitem__, 0)
        panel.start()
        yield finished
        panel.read()
        readable = [budget for budget in budgets if panel.has(budget.resource)]
        if any(panel.above_start(budget.resource) > (budget.level or 0) for budget in readable):
            panel.settle()
        verdicts = tuple(judge_once(panel.series(budget.resource), budget) for budget in readable)
        red = any(verdict.outcome != "ok" for verdict in verdicts)
        held = survivors(before, take_identities()) if red else {}
        recording = Recording(
            test=name,
            series=panel.all_series(),
            collector="on" if panel.watch.enabled else "off",
            limits=read_limits(),
            unavailable=panel.missing,
            environment=describe_environment(),
        )
        results.append(Result(plan, recording, (*verdicts, *missing_verdicts(plan, panel.missing)), held))
    finally:
        panel.close()
