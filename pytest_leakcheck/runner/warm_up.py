"""Run the warm-up iterations before the start level is read, and open the instruments that read the counters."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.resources import HEAP, OBJECTS, RESIDENT
from pytest_leakcheck.probes.native_heap import is_quiet
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.known_caches import KnownCaches
from pytest_leakcheck.runner.measurement_run import MeasurementRun, Phase
from pytest_leakcheck.runner.measuring import Measuring
from pytest_leakcheck.runner.sampler import Sampler


class WarmUp:
    """The first phase of a repetition; `Measuring` follows."""

    culprit: None = None

    def __init__(self, run: MeasurementRun) -> None:
        self._run = run
        self._iterations = 0
        self._measuring: Measuring | None = None
        self.wants_more = True

    def begin(self) -> None:
        """Open the instruments if there is one warm-up iteration."""
        if self._run.plan.effort.warmup == 1:
            self._measuring = self._open_instruments()

    def iteration_done(self) -> Phase:
        run = self._run
        self._iterations += 1
        run.clock.iteration_done()
        run.progress.report_warm_up(self._iterations, run.plan.effort.warmup)
        if self._iterations == run.plan.effort.warmup - 1:
            # Open the instruments before the last warm-up iteration. The frozen objects and the garbage that this
            # iteration leaves behind are then part of the start level.
            self._measuring = self._open_instruments()
        if self._iterations >= run.plan.effort.warmup:
            assert self._measuring is not None
            return self._measuring.start()
        self.wants_more = not run.clock.out_of_time
        return self

    def held(self) -> Mapping[str, tuple[Held, ...]]:
        return {}

    def end(self) -> None:
        """Do nothing."""

    def _open_instruments(self) -> Measuring:
        run = self._run
        run.limits = read_limits()
        run.quiet_heap = is_quiet()
        caches = KnownCaches() if run.plan.screen else None
        if caches is None:
            run.innocent.watch(quiet_heap=run.quiet_heap)
        # These are read in every repetition, to report them next to a failing verdict ("also growing").
        wanted = {HEAP, OBJECTS, *(budget.resource for budget in run.plan.budgets)}
        allowed = {budget.resource: budget.per_iteration for budget in run.plan.budgets}
        # A ceiling applies to the garbage of earlier tests, too.
        walk_now = bool(run.plan.ceiling.sizes)
        # The instruments can be opened even if few descriptors are left.
        with room_for_descriptors():
            sampler = run.sampler = Sampler(wanted, run.gauges, run.plan.effort.most + 2, allowed, walk_now=walk_now)
        sampler.settling.deadline = run.clock.deadline
        named = {budget.resource for budget in run.plan.budgets if budget.explicit}
        if sampler.instruments.resident is not None:
            sampler.instruments.resident.named = RESIDENT in named
        for folder in sampler.instruments.folders.values():
            folder.named = folder.resource in named
        device = sampler.instruments.device
        if device is not None and device.capacity:
            run.limits[device.resource] = device.capacity
        run.ceiling.impose_on(device)
        run.limits |= run.ceiling.in_force
        return Measuring(run, sampler, caches)
