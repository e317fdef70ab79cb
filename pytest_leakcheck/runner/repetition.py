"""Measure and judge work that the caller repeats: take a `Plan`, return a `Recording` and verdicts.

The caller reports the end of each iteration; `Repetition` answers whether it wants another, as its
phase decides (`runner.phases`). The pytest protocol, ``steps()`` and `measure` all use it, so
tests, loops and scripts are judged in the same way. A block that runs once shows no trend:
`measure_block` compares each rise with the allowed level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from pytest_leakcheck.attribution.handles import group, survivors, take_identities
from pytest_leakcheck.attribution.tracing.traced_children import prepare_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge import conclude_finding
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.judge.exhaustion import explain
from pytest_leakcheck.judge.judge_series import judge_once
from pytest_leakcheck.judge.provenance import qualify
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.environment import ForkGuard, describe_environment
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from pytest_leakcheck.runner.known_causes import KnownCauses
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.phases import Ended, LastWarmUp, Phase, WarmUp
from pytest_leakcheck.runner.resource_judge import find_provenance
from pytest_leakcheck.runner.room import Used
from pytest_leakcheck.runner.sampler import Sampler


class Repetition:
    """One plan on its way through the phases. Use it once: `begin`, `iteration_done` ..., `end`.

    Attributes:
        is_warm: Whether the work needs no warm-up; `start` then follows `begin`.
    """

    def __init__(
        self,
        plan: Plan,
        gauges: dict[str, Callable[[], int]] | None = None,
        left: Mapping[str, str] | None = None,
        *,
        causes: KnownCauses | None = None,
        has_run: bool = False,
    ) -> None:
        """Start the clock.

        The user's `gauges` are read after each iteration; more may be added until the start level
        is read. `left` is the earlier test that left a thread running, by the thread's number.
        `causes` are those of earlier tests; that of this one is added. If the work `has_run` in
        this process, that is the warm-up of a screen.
        """
        self._run = MeasurementRun(
            plan, gauges if gauges is not None else {}, InnocentGrowth(left or {}), causes
        )
        self.is_warm = has_run and plan.screen
        self._phase: Phase = WarmUp(self._run, int(self.is_warm))
        self._fork_guard = ForkGuard()

    def follow(self, gauges: Mapping[str, Callable[[], int]], budgets: tuple[Budget, ...]) -> None:
        """Add gauges and their budgets, after the first iteration."""
        run = self._run
        run.gauges.update(gauges)
        run.plan = replace(run.plan, budgets=(*budgets, *run.plan.budgets))
        # A start level that was read before has none of them, so this iteration was the warm-up.
        self._enter(self._phase.warm_up_again())

    def checkpoint(self, label: str) -> None:
        """End a phase of the test within the current iteration, and name it."""
        if self._run.verdicts.red is None:
            self._run.phases.end(label)

    def begin(self) -> None:
        # A script has no earlier moment; pytest prepares them when the session begins.
        prepare_children()
        self._run.ceiling.impose()
        self._enter(self._phase.begin())

    def start(self) -> None:
        """Read the start level before the first iteration of warm work."""
        assert isinstance(self._phase, LastWarmUp)
        self._run.room.iteration_done()
        self._enter(self._phase.following)

    def iteration_done(self) -> bool:
        """End an iteration once the test's objects are gone; return whether another is wanted."""
        self._fork_guard.exit_if_forked()
        run = self._run
        # A ceiling is there to be reached.
        if not run.plan.ceiling.sizes and (used := run.room.iteration_done()) is not None:
            self._stop_for_room(used)
            return False
        return self._enter(self._phase.iteration_done())

    def _enter(self, phase: Phase) -> bool:
        """Go through the phases that begin now; return whether the last one wants an iteration."""
        while phase is not self._phase:
            self._phase = phase
            phase = phase.begin()
        return not isinstance(phase, Ended)

    def _stop_for_room(self, used: Used) -> None:
        """Judge by the iterations so far, or end the search for a cause: no room is left."""
        run = self._run
        self._phase = self._phase.stop(f"there was no room for more iterations: {used}")
        if run.verdicts.red is None:
            run.verdicts.replace_all(
                conclude_finding.no_room_left(run.plan.budgets, used.resource, str(used))
            )

    @property
    def searched(self) -> str:
        """The resource of the red verdict whose cause is sought; empty before there is one."""
        red = self._run.verdicts.red
        return red.resource if red is not None else ""

    def end(self, stopped: Stopped | None = None, error: BaseException | None = None) -> Result:
        """Release everything and return what was found; `stopped` is None if this object stopped.

        If the last iteration ended in an `error` because descriptors or memory ran out after
        growth, that is a leak.
        """
        run = self._run
        self._fork_guard.exit_if_forked(int(stopped is not None))
        run.ceiling.lift()
        verdict = None
        if error is not None and run.verdicts.red is None:
            series = run.sampler.samples.all_series() if run.sampler is not None else ()
            verdict = explain(error, run.plan.budgets, series, run.ceiling.in_force)
        if error is None or verdict is None:
            return self._end(stopped)
        run.verdicts.give(verdict)
        result = self._end(stopped)
        # Imported only here: most tests do not fail.
        from pytest_leakcheck.runner.diagnosis import name_failed_line

        return replace(result, culprit=name_failed_line(verdict.resource, error))

    def _end(self, stopped: Stopped | None) -> Result:
        run, sampler, plan = self._run, self._run.sampler, self._run.plan
        if sampler is None:
            verdicts = run.verdicts.complete(plan, {}, run.ceiling.missing)
            return Result(plan, self._recording(None, stopped or "time"), verdicts, {})
        n = sampler.samples.n
        if stopped is None and n == 0 and not run.verdicts.given:
            restarted = run.innocent.restarts > 0
            run.verdicts.replace_all(
                *conclude_finding.no_time_left(
                    plan.budgets, plan.effort, run.time.seconds, restarted=restarted
                )
            )
        ended = self._phase.end()
        if stopped is None:
            stopped = (
                "time"
                if run.time.out_of_time
                else "iterations"
                if n >= plan.effort.most
                else "judged"
            )
        verdicts = run.verdicts.complete(plan, sampler.instruments.missing, run.ceiling.missing)
        recording = replace(self._recording(sampler, stopped), fullest=ended.fullest())
        result = Result(plan, recording, verdicts, ended.held(), ended.culprit)
        sampler.close()
        run.sampler = None
        return result

    def abandon(self) -> None:
        """Release everything after an error or interrupt; a step that fails skips no other."""
        self._fork_guard.exit_if_forked(1)
        self._run.ceiling.lift()
        sampler, self._run.sampler = self._run.sampler, None
        if sampler is not None:
            with suppress(Exception):
                self._phase.end()
            with suppress(Exception):
                sampler.close()

    def _recording(self, sampler: Sampler | None, stopped: Stopped) -> Recording:
        run, device = self._run, sampler.instruments.device if sampler else None
        return Recording(
            test=run.plan.test,
            series=sampler.samples.all_series() if sampler else (),
            warmup=run.plan.effort.warmup,
            seconds=round(run.time.seconds, 6),
            collector="off" if sampler and not sampler.instruments.watch.enabled else "on",
            stopped=stopped,
            limits=run.limits if sampler else {},
            unavailable=sampler.instruments.reasons() if sampler else {},
            environment={**describe_environment(device.name if device else ""), **run.plan.process},
            phases=run.phases.take(),
            corrections=sampler.samples.corrections() if sampler else (),
        )


@contextmanager
def measure_block(
    name: str, budgets: tuple[Budget, ...], gauges: Mapping[str, Callable[[], int]]
) -> Iterator[Callable[[], Result]]:
    """Measure the body of a ``with`` statement, against budgets that each have a level.

    Yields a function that returns the result once the body has ended. If the body raises, there is
    no result.
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
        verdicts = _judge_block(sampler, budgets)
        red = any(verdict.outcome != "ok" for verdict in verdicts)
        held = survivors(before, take_identities()) if red else {}
        held |= {
            name: group(folder.kinds())
            for name, folder in sampler.instruments.folders.items()
            if red
        }
        recording = Recording(
            test=name,
            series=sampler.samples.all_series(),
            collector="on" if sampler.instruments.watch.enabled else "off",
            limits=read_limits(),
            unavailable=sampler.instruments.reasons(),
            environment=describe_environment(),
            corrections=sampler.samples.corrections(),
        )
        missing = conclude_finding.missing_verdicts(plan, sampler.instruments.missing)
        results.append(Result(plan, recording, (*verdicts, *missing), held))
    finally:
        sampler.close()


def _judge_block(sampler: Sampler, budgets: Iterable[Budget]) -> tuple[Verdict, ...]:
    samples = sampler.samples
    readable = [budget for budget in budgets if samples.has(budget.resource)]
    over = {
        budget.resource
        for budget in readable
        if samples.above_start(budget.resource) > (budget.level or 0)
    }
    if over:
        sampler.settling.settle()
    for shared in sampler.instruments.folders.keys() & over:
        sampler.settling.correct_folder(shared, set_aside=True)
    return tuple(
        qualify(
            judge_once(samples.series(budget.resource), budget),
            find_provenance(sampler, budget.resource),
        )
        for budget in readable
    )
