"""Measure a test: read the counters after each iteration, and judge them at each look.

The looks are the iterations that `judge.growth.looks` yields (10, 13, 17, 22, ...).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import ClassVar, Final

from pytest_leakcheck.attribution.live_handles import take_identities
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.judge.result import RED
from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner.evidence import EvidenceJudge, StartAgain, Wait
from pytest_leakcheck.runner.measurement_run import MeasurementRun, Phase
from pytest_leakcheck.runner.sampler import Sampler

# Share of ``max_time`` that the diagnosis of a red verdict may always take, even if the test has used up its time.
_DIAGNOSIS_SHARE: Final = 0.2


class Measuring:
    """The phase between the start level and the last verdict. The diagnosis follows after a red (failing) verdict.

    Attributes:
        diagnoses: Whether to search for the cause of a red verdict. Off only if nothing but the verdict is wanted.
    """

    diagnoses: ClassVar[bool] = True
    culprit: None = None

    def __init__(self, run: MeasurementRun, sampler: Sampler) -> None:
        """Create the phase.

        Args:
            run: The state that all phases share.
            sampler: The instruments, open.
        """
        self._run = run
        self._sampler = sampler
        self._judge = EvidenceJudge(run, sampler)
        self.wants_more = True

    def start(self) -> Phase:
        """Read the start level, and discard earlier readings."""
        run = self._run
        self._identities = take_identities()
        run.explanations.start(self._identities)
        self._looks = looks(run.plan.effort.most)
        self._next_look = next(self._looks)
        self._open_user_phases()
        self.wants_more = not run.clock.out_of_time
        self._sampler.start()
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
        run.phases.begin()
        run.clock.iteration_done()
        reported = run.progress.report(sampler.samples, run.verdicts)
        out_of_time = run.clock.out_of_time
        if sampler.samples.n < self._next_look and not out_of_time:
            if reported:
                sampler.subtract_own_work()
            return self
        if self._judge_all(final=out_of_time or self._is_enough()):
            sampler.subtract_own_work()
            return self
        return self._diagnose()

    def failed(self, error: BaseException) -> Phase:
        self.wants_more = False
        if self._sampler.samples.n < 1:
            return self
        self._run.judge_exhaustion(self._sampler, error)
        return self._diagnose() if self._run.ceiling.may_go_on else self

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

    def _judge_all(self, *, final: bool) -> bool:
        """Judge the resources whose readings suffice already.

        Returns:
            Whether to continue measuring.
        """
        run, sampler = self._run, self._sampler
        self._next_look = next(self._looks, run.plan.effort.most)
        for budget in run.plan.budgets:
            name = budget.resource
            if name in run.verdicts or not sampler.samples.has(name):
                continue
            decision = self._judge.decide(budget, final=final)
            if isinstance(decision, StartAgain):
                run.verdicts.clear()
                self.start()
                return self.wants_more
            if isinstance(decision, Wait):
                if decision.iterations:
                    self._next_look = min(self._next_look, sampler.samples.n + decision.iterations)
                continue
            if decision.outcome not in RED and run.plan.effort.iterations and not final:
                # If the user has set the number of iterations, an `ok` and its floor (the smallest leak that would have
                # shown) are based on all of them.
                continue
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
        """Return the next phase: the diagnosis of a red verdict.

        If there is no red verdict, or its cause is not wanted, end this phase and return it.
        """
        run, red = self._run, self._run.red
        if red is None or not self.diagnoses:
            self.wants_more = False
            return self
        # Imported only here: it is a third of the package, and most tests are green.
        from pytest_leakcheck.runner.after_red import Diagnosis

        run.progress.report(self._sampler.samples, run.verdicts, "naming")
        # A test that has used all of its time gets a little more.
        deadline = max(run.clock.deadline, clock.monotonic() + _DIAGNOSIS_SHARE * run.plan.effort.max_time)
        return Diagnosis(run, self._sampler, red, self._identities, deadline).begin()
