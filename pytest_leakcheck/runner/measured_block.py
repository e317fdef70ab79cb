"""Measure a block of code that runs once: it shows no trend, so each rise is compared with the allowed level."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from pytest_leakcheck.attribution.live_handles import group, survivors, take_identities
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.conclude_finding import Result, miscounted, missing_verdicts, origin_unknown
from pytest_leakcheck.judge.judge_series import judge_once
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import RESIDENT
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.resource_judge import describe_children
from pytest_leakcheck.runner.sampler import Sampler


@contextlib.contextmanager
def measure_block(
    name: str, budgets: tuple[Budget, ...], gauges: Mapping[str, Callable[[], int]]
) -> Iterator[Callable[[], Result]]:
    """Measure the body of a ``with`` statement, against budgets that each have a level.

    Yields a function that returns the result once the body has ended. If the body raises, there is no result.
    """
    plan = Plan(name, budgets, Effort(iterations=1))
    results: list[Result] = []
    sampler = Sampler((budget.resource for budget in budgets), gauges, capacity=3)
    try:
        # Everything that this function allocates must exist before the start level is read.
        before = take_identities()
        finished = partial(results.__getitem__, 0)
        sampler.start()
        yield finished
        sampler.read()
        readable = [budget for budget in budgets if sampler.samples.has(budget.resource)]
        over = [
            budget.resource for budget in readable if sampler.samples.above_start(budget.resource) > (budget.level or 0)
        ]
        if over:
            sampler.settling.settle()
        for shared in sampler.instruments.folders.keys() & set(over):
            sampler.settling.correct_folder(shared, set_aside=True)
        verdicts = tuple(_judge(sampler, budget) for budget in readable)
        red = any(verdict.outcome != "ok" for verdict in verdicts)
        held = survivors(before, take_identities()) if red else {}
        held |= {
            shared: group(sampler.instruments.folders[shared].kinds()) for shared in sampler.instruments.folders if red
        }
        recording = Recording(
            test=name,
            series=sampler.samples.all_series(),
            collector="on" if sampler.instruments.watch.enabled else "off",
            limits=read_limits(),
            unavailable=sampler.instruments.reasons(),
            environment=describe_environment(),
        )
        results.append(Result(plan, recording, (*verdicts, *missing_verdicts(plan, sampler.instruments.missing)), held))
    finally:
        sampler.close()


def _judge(sampler: Sampler, budget: Budget) -> Verdict:
    verdict = judge_once(sampler.samples.series(budget.resource), budget)
    if budget.resource == RESIDENT and sampler.children:
        return describe_children(verdict, sampler.samples)
    folder = sampler.instruments.folders.get(budget.resource)
    if folder is not None and (aside := folder.aside):
        verdict = origin_unknown(verdict, aside, folder.path)
    why = sampler.instruments.miscounted(verdict)
    return miscounted(verdict, why) if why else verdict
