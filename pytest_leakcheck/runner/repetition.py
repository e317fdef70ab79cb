"""Measure and judge work that the caller repeats: take a `Plan`, return a `Recording` and verdicts.

The caller reports the end of each iteration; `Repetition` answers whether it wants another. The pytest protocol,
``steps()`` and `measure` all use it, so tests, loops and scripts are judged in the same way. It passes through phases:
`WarmUp`, `Measuring`, and after a red (failing) verdict `Diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from pytest_leakcheck.attribution.tracing.traced_children import prepare_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.not_judged import missing_verdicts, no_time_left, without_ceiling
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.runner.bounded_caches import keep_owners
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.fork_guard import Origin
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from pytest_leakcheck.runner.measurement_run import MeasurementRun, Phase
from pytest_leakcheck.runner.sampler import Sampler
from pytest_leakcheck.runner.warm_up import WarmUp


class Repetition:
    """One plan on its way through the phases. Use it once: `begin`, `iteration_done` ..., `end`."""

    def __init__(
        self,
        plan: Plan,
        gauges: Mapping[str, Callable[[], int]] | None = None,
        left: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the first phase, and start the clock.

        The user's `gauges` are read after each iteration; more may be added until the start level is read. `left` is
        the earlier test that left a thread running, by the thread's number.
        """
        self._run = MeasurementRun(plan, gauges if gauges is not None else {}, InnocentGrowth(left or {}))
        # Keep this object to the end: one that is freed after the start level was read would hide a leak of its size.
        self._warm_up = WarmUp(self._run)
        self._phase: Phase = self._warm_up
        self._origin = Origin()

    def follow(self, gauges: Mapping[str, Callable[[], int]], budgets: tuple[Budget, ...]) -> None:
        """Add gauges and their budgets. Call it only before the start level is read."""
        run = self._run
        run.gauges = {**run.gauges, **gauges}
        run.plan = replace(run.plan, budgets=(*budgets, *run.plan.budgets))

    def checkpoint(self, label: str) -> None:
        """End a phase of the test within the current iteration, and name it."""
        if self._run.red is None:
            self._run.phases.end(label)

    def begin(self) -> None:
        # A script has no earlier moment; pytest prepares them when the session begins.
        prepare_children()
        self._run.ceiling.impose()
        self._warm_up.begin()

    def iteration_done(self) -> bool:
        """Process the end of an iteration, once the test's own objects are gone; return whether another is wanted."""
        self._origin.leave_elsewhere()
        self._phase = self._phase.iteration_done()
        return self._phase.wants_more

    @property
    def searched(self) -> str:
        """The resource of the red verdict, whose cause is searched for; empty before there is one."""
        return self._run.red.resource if self._run.red is not None else ""

    def end(self, stopped: Stopped | None = None, error: BaseException | None = None) -> Result:
        """Release everything and return what was found; `stopped` is None if this object decided to stop.

        If the last iteration ended in an `error` because descriptors or memory ran out after growth, that is a leak.
        """
        run = self._run
        self._origin.leave_elsewhere(int(stopped is not None))
        run.ceiling.lift()
        explained = error is not None and run.judge_exhaustion(error)
        result = self._end(stopped)
        if error is None or not explained or run.red is None:
            return result
        # Imported only here: most tests do not fail.
        from pytest_leakcheck.runner.failed_line import name_failed_line

        return replace(result, culprit=name_failed_line(run.red.resource, error))

    def _end(self, stopped: Stopped | None) -> Result:
        run, sampler = self._run, self._run.sampler
        if sampler is None:
            verdicts = without_ceiling(run.verdicts.values(), run.ceiling.missing)
            return Result(run.plan, self._recording(None, stopped or "time"), verdicts, {})
        if stopped is None and sampler.samples.n == 0:
            nothing = no_time_left(
                run.plan.budgets, run.plan.effort, run.clock.seconds, restarted=run.innocent.restarts > 0
            )
            run.verdicts |= {verdict.resource: verdict for verdict in nothing}
        self._phase.end()
        result = self._result(sampler, stopped or self._stopped(sampler))
        keep_owners()
        sampler.close()
        run.sampler = None
        return result

    def abandon(self) -> None:
        """Release everything after an error or an interrupt, without a result; a step that fails skips no other."""
        self._origin.leave_elsewhere(1)
        self._run.ceiling.lift()
        sampler, self._run.sampler = self._run.sampler, None
        if sampler is not None:
            with suppress(Exception):
                self._phase.end()
            with suppress(Exception):
                sampler.close()

    def _result(self, sampler: Sampler, stopped: Stopped) -> Result:
        plan = self._run.plan
        verdicts = (*self._run.verdicts.values(), *missing_verdicts(plan, sampler.instruments.missing))
        verdicts = without_ceiling(verdicts, self._run.ceiling.missing)
        return Result(plan, self._recording(sampler, stopped), verdicts, self._phase.held(), self._phase.culprit)

    def _stopped(self, sampler: Sampler) -> Stopped:
        if self._run.clock.out_of_time:
            return "time"
        return "iterations" if sampler.samples.n >= self._run.plan.effort.most else "judged"

    def _recording(self, sampler: Sampler | None, stopped: Stopped) -> Recording:
        run, device = self._run, sampler.instruments.device if sampler else None
        return Recording(
            test=run.plan.test,
            series=sampler.samples.all_series() if sampler else (),
            warmup=run.plan.effort.warmup,
            seconds=round(run.clock.seconds, 6),
            collector="off" if sampler and not sampler.instruments.watch.enabled else "on",
            stopped=stopped,
            limits=run.limits if sampler else {},
            unavailable=sampler.instruments.reasons() if sampler else {},
            environment={**describe_environment(device.name if device else ""), **run.plan.process},
            phases=run.phases.take(),
        )
