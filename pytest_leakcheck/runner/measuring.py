"""Measure a test: read the counters after each iteration, and judge them at each look (iterations 10, 13, 17, ...)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import ClassVar, Final

from pytest_leakcheck.attribution.live_handles import take_identities
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.judge.not_judged import did_not_recur, judged_again
from pytest_leakcheck.judge.screening import (
    ITERATIONS,
    MIDDLE,
    SECOND_LOOK,
    deserve_second_look,
    find_risen,
    screen,
)
from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import RED, Verdict
from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner.known_caches import KnownCaches
from pytest_leakcheck.runner.measurement_run import MeasurementRun, Phase
from pytest_leakcheck.runner.resource_judge import ResourceJudge, StartAgain
from pytest_leakcheck.runner.sampler import Sampler

# Share of ``max_time`` that the diagnosis of a red verdict may always take, even if the test has used up its time.
_DIAGNOSIS_SHARE: Final = 0.2


class Measuring:
    """The phase up to the last verdict; if `diagnoses` is on, the diagnosis of a red (failing) verdict follows."""

    diagnoses: ClassVar[bool] = True
    culprit: None = None

    def __init__(self, run: MeasurementRun, sampler: Sampler, caches: KnownCaches | None) -> None:
        """Judge the test in full from the start if `caches`, which may explain growth in a screen, is None."""
        self._run = run
        self._sampler = sampler
        self._judge = ResourceJudge(run, sampler)
        self._caches = caches
        # The leak that was withdrawn because it did not recur.
        self._ended: Verdict | None = None
        self.wants_more = True

    def start(self) -> Phase:
        """Read the start level, and discard earlier readings."""
        run = self._run
        self._identities = take_identities()
        if self._caches is None:
            run.innocent.start(self._identities)
        self._looks = looks(run.plan.effort.most)
        self._next_look = MIDDLE if self._caches is not None else next(self._looks)
        self._open_user_phases()
        self.wants_more = not run.clock.out_of_time
        self._sampler.start(run.clock.shortest)
        run.phases.begin()
        return self

    def _open_user_phases(self) -> None:
        # In a separate frame, so that temporary objects are gone when the start level is read.
        sampler = self._sampler
        judged = (budget.resource for budget in self._run.plan.budgets)
        names = [name for name in judged if find_resource(name).in_phases]
        self._run.phases.open({name: sampler.instruments.counter(name) for name in names if sampler.samples.has(name)})

    def iteration_done(self) -> Phase:
        run, sampler = self._run, self._sampler
        sampler.read(sampler.samples.n + 1 >= self._next_look)
        if self._caches is None:
            collect_earlier_garbage(sampler)
        run.phases.begin()
        run.clock.iteration_done()
        reported = run.progress.report(sampler.samples, run.plan.budgets, run.verdicts)
        out_of_time = run.clock.out_of_time
        if sampler.samples.n < self._next_look and not out_of_time:
            if reported:
                sampler.subtract_own_work()
            return self
        if self._caches is not None:
            if not out_of_time:
                return self._screen(self._caches)
            self._prepare_looks()
        if self._judge_all(final=out_of_time or self._is_enough()):
            sampler.subtract_own_work()
            return self
        return self._diagnose()

    def held(self) -> Mapping[str, tuple[Held, ...]]:
        red = self._run.red
        if self._sampler.samples.n < 1 or red is None:
            return {}
        from pytest_leakcheck.runner.after_red import survivors_of

        return survivors_of(self._sampler, red, self._identities, take_identities())

    def end(self) -> None:
        """Do nothing."""

    def _is_enough(self) -> bool:
        # In a separate frame: a number that is alive when the harness's own work is read would be part of it.
        run = self._run
        seconds = inf if self._judge.retains_much() else run.clock.seconds
        return run.plan.effort.is_enough(self._sampler.samples.n, seconds)

    def _screen(self, caches: KnownCaches) -> Phase:
        """Judge the test by its first iterations. If that is impossible, they are warm-up, and it is judged in full."""
        sampler = self._sampler
        if sampler.samples.n < ITERATIONS:
            self._next_look = ITERATIONS
            if caches.note():
                sampler.subtract_own_work()
            return self
        looks_again = self._judge_screen(caches)
        if self._run.verdicts:
            self.wants_more = False
            return self
        if looks_again:
            self._next_look = SECOND_LOOK
            caches.note()
            sampler.subtract_own_work()
            return self
        self._prepare_looks()
        return self.start()

    def _judge_screen(self, caches: KnownCaches) -> bool:
        """Note the verdicts, or return whether a second look may give them; in a separate frame, as `_is_enough`."""
        run, samples = self._run, self._sampler.samples
        judged = [(samples.series(one.resource), one) for one in run.plan.budgets if samples.has(one.resource)]
        held: Mapping[str, int] = {}
        verdicts = screen(judged)
        if not verdicts:
            held = caches.gains()
            verdicts = screen(judged, held)
        run.verdicts |= {verdict.resource: self._judge.confirm(verdict) for verdict in verdicts}
        return not verdicts and deserve_second_look(find_risen(judged, held))

    def _prepare_looks(self) -> None:
        """Record what may explain growth: to walk all objects for that would take half of the time of a screen."""
        self._caches = None
        watch = self._sampler.instruments.watch
        if watch.enabled:
            watch.thaw()
        self._run.innocent.watch(quiet_heap=self._run.quiet_heap)
        self._run.innocent.start(self._identities)
        if watch.enabled:
            watch.refreeze()
            self._sampler.replaced.note()

    def _judge_all(self, *, final: bool) -> bool:
        """Judge what has enough readings or has grown since its ``ok``; return whether to continue measuring."""
        run, sampler = self._run, self._sampler
        self._next_look = next(self._looks, run.plan.effort.most)
        for budget in self._judge.in_order(run.plan.budgets):
            name = budget.resource
            earlier = run.verdicts.get(name)
            if not sampler.samples.has(name) or (earlier and not self._judge.doubts(budget, earlier)):
                continue
            run.verdicts.pop(name, None)
            decision = self._judge.decide(budget, final=final)
            if isinstance(decision, StartAgain):
                run.verdicts.clear()
                self.start()
                return self.wants_more
            if decision is None:
                continue
            if decision.outcome not in RED and run.plan.effort.iterations and not final:
                # If the user has set the number of iterations, an `ok` and its floor (the smallest leak that would have
                # shown) are based on all of them.
                continue
            if self._ended is not None and self._ended.resource == name:
                decision = judged_again(decision, self._ended)
            run.verdicts[name] = decision
            if decision.outcome in RED:
                return False
        return not final and not self._all_judged()

    def _all_judged(self) -> bool:
        run = self._run
        return all(
            one.resource in run.verdicts or not self._sampler.samples.has(one.resource) for one in run.plan.budgets
        )

    def _diagnose(self) -> Phase:
        """Return the diagnosis of a red verdict; without one, or if it is not wanted, end and return this phase."""
        run, red = self._run, self._run.red
        if red is None or not self.diagnoses:
            self.wants_more = False
            return self
        # Imported only here: it is a third of the package, and most tests are green.
        from pytest_leakcheck.runner.after_red import Diagnosis

        run.progress.report(self._sampler.samples, run.plan.budgets, run.verdicts, "naming")
        # A test that has used all of its time gets a little more.
        deadline = max(run.clock.deadline, clock.monotonic() + _DIAGNOSIS_SHARE * run.plan.effort.max_time)
        return Diagnosis(run, self._sampler, red, self._identities, deadline, judge_again=self._judge_again).begin()

    def _judge_again(self) -> Phase | None:
        """Withdraw a leak that did not recur in the search: it has ended, or depends on time. Do so at most once."""
        run, red = self._run, self._run.red
        if red is None or self._ended is not None or run.ceiling.in_force:
            return None
        self._ended = red
        run.clock.resume()
        if run.clock.out_of_time:
            run.verdicts[red.resource] = did_not_recur(red)
            self.wants_more = False
            return self
        run.verdicts.clear()
        self._sampler.refreeze()
        return self.start()


def collect_earlier_garbage(sampler: Sampler) -> None:
    """Collect the garbage of earlier tests once a counter rises steadily, if that was not done before objects were frozen.

    Frozen garbage can explain only growth, so a test without growth is spared the walk over all objects. Call it after
    each row, because little that the test itself has turned into garbage since the start may be part of it.
    """
    watch = sampler.instruments.watch
    if watch.owes_walk and watch.enabled and sampler.samples.rises_steadily():
        watch.thaw()
        sampler.refreeze()
