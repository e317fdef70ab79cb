"""Measure a block of code by its levels before and after; one run shows no trend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from pytest_leakcheck.attribution.live_handles import group, survivors, take_identities
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.judge_series import judge_once
from pytest_leakcheck.judge.result import Result, missing_verdicts
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.sampler import Panel
from pytest_leakcheck.runner.shared_folder_check import account_for_makers

# Seconds of rest in which entries that other processes add to a shared folder are seen.
_REST_SECONDS: Final = 0.1


@contextlib.contextmanager
def measure_block(
    name: str, budgets: tuple[Budget, ...], gauges: Mapping[str, Callable[[], int]]
) -> Iterator[Callable[[], Result]]:
    """Measure the body of a ``with`` statement.

    Args:
        name: The name of the test.
        budgets: The budgets, each with a level.
        gauges: The user's own counters, by name.

    Yields:
        A function that returns the result once the body has ended. If the body raises, there is no result.
    """
    plan = Plan(name, budgets, Effort(iterations=1, warmup=0))
    results: list[Result] = []
    panel = Panel((budget.resource for budget in budgets), gauges, capacity=3)
    try:
        # Everything that this function allocates must exist before the start level is read.
        before = take_identities()
        finished = partial(results.__getitem__, 0)
        panel.start()
        yield finished
        panel.read()
        readable = [budget for budget in budgets if panel.has(budget.resource)]
        over = [budget.resource for budget in readable if panel.above_start(budget.resource) > (budget.level or 0)]
        if over:
            panel.settle()
        for shared in panel.folders.keys() & set(over):
            # Entries that arrive during the rest are not the block's.
            panel.rest(_REST_SECONDS, shared)
        verdicts = tuple(_judge(panel, budget) for budget in readable)
        red = any(verdict.outcome != "ok" for verdict in verdicts)
        held = survivors(before, take_identities()) if red else {}
        held |= {shared: group(panel.folders[shared].kinds()) for shared in panel.folders if red}
        recording = Recording(
            test=name,
            series=panel.all_series(),
            collector="on" if panel.watch.enabled else "off",
            limits=read_limits(),
            unavailable=panel.reasons(),
            environment=describe_environment(),
        )
        results.append(Result(plan, recording, (*verdicts, *missing_verdicts(plan, panel.missing)), held))
    finally:
        panel.close()


def _judge(panel: Panel, budget: Budget) -> Verdict:
    verdict, folder = judge_once(panel.series(budget.resource), budget), panel.folders.get(budget.resource)
    return verdict if folder is None else account_for_makers(verdict, budget, folder, final=True) or verdict
