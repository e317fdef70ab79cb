"""Define the interface of a phase of a repetition, and the state that all phases share."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from math import inf
from typing import Protocol

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.exhaustion import exhausted_by, first_line, over_ceiling, ran_out
from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.verdict import RED, Verdict
from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner.imposed_ceiling import ImposedCeiling
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from pytest_leakcheck.runner.progress import ProgressReports
from pytest_leakcheck.runner.sampler import Sampler
from pytest_leakcheck.runner.user_gauges import Phases


class Phase(Protocol):
    """One phase of a repetition. `iteration_done` returns the next phase, which may be the same.

    `culprit` is what is known of the cause of a red verdict; None until the diagnosis ends, or if no verdict is red.
    """

    @property
    def wants_more(self) -> bool: ...

    @property
    def culprit(self) -> Culprit | None: ...

    def iteration_done(self) -> Phase:
        """Process the end of an iteration."""

    def held(self) -> Mapping[str, tuple[Held, ...]]:
        """List what is new and still exists, by resource; empty without a red verdict."""

    def end(self) -> None:
        """End the phase. No further iteration follows, even if one was wanted."""


class Clock:
    """The time limit of a repetition, in seconds for all iterations together, and the time elapsed.

    Attributes:
        deadline: The time after which no further iteration may begin, by ``clock.monotonic``.
        out_of_time: Whether the next iteration would end after the deadline if it took as long as the last one.
        shortest: Duration of the shortest iteration in seconds; infinity if none has run.
    """

    def __init__(self, max_time: float) -> None:
        self._began = self._last_ended = clock.monotonic()
        self.deadline = self._began + max_time
        self.out_of_time = False
        self.shortest = inf
        # In an array, because an int object above 256 would be a block that the harness allocates.
        self._iterations = array("q", (0,))

    def iteration_done(self) -> None:
        now = clock.monotonic()
        seconds = now - self._last_ended
        self._iterations[0] += 1
        # The instruments are opened between two iterations, which counts as a part of the second one.
        self.shortest = min(self.shortest, seconds)
        self.out_of_time = now + seconds > self.deadline
        self._last_ended = now

    def resume(self) -> None:
        """Continue after work that was no iteration."""
        self._last_ended = clock.monotonic()
        self.out_of_time = self._last_ended >= self.deadline

    @property
    def seconds(self) -> float:
        """Seconds since the repetition began."""
        return clock.monotonic() - self._began

    @property
    def seconds_each(self) -> float:
        """Seconds per iteration, those of the warm-up and of series that were begun again included."""
        return self.seconds / max(1, self._iterations[0])


class MeasurementRun:
    """The state that the phases of one repetition share.

    Attributes:
        gauges: The reading functions of the user's own counters; the caller may add some until the start level is read.
        sampler: The instruments; None before they are opened.
        limits: The level at which the process would die, by resource, in the unit of the resource.
        quiet_heap: Whether the allocator counts a block as free as soon as it is freed.
    """

    def __init__(self, plan: Plan, gauges: Mapping[str, Callable[[], int]], innocent: InnocentGrowth) -> None:
        """Start the clock."""
        self.plan = plan
        self.gauges = gauges
        self.phases = Phases()
        self.clock = Clock(plan.effort.max_time)
        self.innocent = innocent
        self.progress = ProgressReports(plan.effort.most)
        self.ceiling = ImposedCeiling(plan.ceiling)
        self.verdicts: dict[str, Verdict] = {}
        self.sampler: Sampler | None = None
        self.limits: dict[str, int] = {}
        self.quiet_heap = False

    @property
    def red(self) -> Verdict | None:
        """The red verdict, after which no other resource is judged; None if there is none."""
        return next((verdict for verdict in self.verdicts.values() if verdict.outcome in RED), None)

    def judge_exhaustion(self, error: BaseException) -> bool:
        """Judge the first resource that ran out and so caused this error; return whether a red verdict explains it.

        The resource leaks if it grew until then; else the test itself needs more of it than its ceiling allows.
        """
        if self.red is not None:
            return False
        gone, said = exhausted_by(error), first_line(error)
        samples = self.sampler.samples if self.sampler is not None else None
        for budget in self.plan.budgets:
            if budget.resource in gone and samples is not None and samples.n and samples.has(budget.resource):
                verdict = ran_out(samples.series(budget.resource), budget, said)
                if verdict is not None:
                    self.verdicts[budget.resource] = verdict
                    return True
        for name, size in self.ceiling.in_force.items():
            if name in gone:
                series = samples.series(name) if samples is not None and samples.has(name) else None
                self.verdicts[name] = over_ceiling(name, size, series, said)
                return True
        return False
