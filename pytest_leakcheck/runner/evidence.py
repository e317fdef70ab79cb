"""Judge one resource of a running test, with the evidence that a suspicion requires.

A suspicion is the verdict that the readings alone would give. Evidence is gathered on suspicion only, cheapest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, TypeAlias

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.exhaustion import device_lost
from pytest_leakcheck.judge.growth import Growth, growth
from pytest_leakcheck.judge.judge_series import Context, Evidence, Examination, examine
from pytest_leakcheck.judge.not_judged import miscounted
from pytest_leakcheck.model.resources import exhausting, find_resource
from pytest_leakcheck.model.verdict import RED, Verdict
from pytest_leakcheck.runner.innocent_explanations import Explanation
from pytest_leakcheck.runner.makers_of_folder import entry_makers
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Wait:
    """No verdict yet: judge again after at most `iterations`, or at the next regular time if that is 0."""

    iterations: int = 0


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The series must start again: it grew by resources that ended late, by measuring, or by a cache now full."""


# While a test retains no more than this (in bytes, or in units of other counters), it may repeat a suspected leak until
# its minimum time has passed.
_MAX_WAITING_BYTES: Final = 64 << 20
_MAX_WAITING_COUNT: Final = 1_000_000

_MEMORY_BYTES: Final = tuple(name for name in exhausting("memory") if find_resource(name).unit == "bytes")

Decision: TypeAlias = Verdict | Wait | StartAgain


class EvidenceJudge:
    """The judge of the resources of one run."""

    def __init__(self, run: MeasurementRun, sampler: Sampler) -> None:
        self._run = run
        self._sampler = sampler
        # The level above the start that each resource had reached when a full cache made the series start again.
        self._carried: dict[str, int] = {}

    def decide(self, budget: Budget, *, final: bool) -> Decision:
        """Return the final verdict, or what must happen before there is one; `final`: no iteration will follow."""
        sampler, name = self._sampler, budget.resource
        device = sampler.instruments.device_for(name)
        if device is not None and device.lost:
            return device_lost(sampler.samples.series(name), budget, device.lost)
        self._run.explanations.set_others_aside(sampler, name)
        examination = examine(sampler.samples.series(name), budget, self._context(budget, final=final))
        suspicion = examination.verdict()
        if suspicion is None or (not final and self._may_end_by_itself(examination, suspicion)):
            return Wait()
        evidence: Evidence | Wait | StartAgain = Evidence()
        if suspicion.outcome in ("leak", "over_budget"):
            evidence = self._explain(examination, suspicion)
        elif suspicion.outcome == "inconclusive" and sampler.samples.above_start(name) > 0:
            explanation = self._explanation(name)
            if self._prepare_restart_if_full(suspicion, explanation):
                return StartAgain()
            evidence = _as_evidence(explanation)
        if not isinstance(evidence, Evidence):
            return evidence
        # The search for an explanation may have waited for resources that end by themselves, and corrected the last
        # reading.
        series = sampler.samples.series(name)
        if series != examination.series:
            examination = examine(series, budget, examination.context)
        verdict = examination.verdict(evidence)
        if verdict is None:
            return Wait()
        if why := sampler.instruments.miscounted(verdict):
            verdict = miscounted(verdict, why)
        return self._ask_second_source(examination, evidence, verdict) or Wait()

    def doubts(self, budget: Budget, verdict: Verdict) -> bool:
        """Return whether the readings since an ``ok`` raise a suspicion.

        Handles are judged after some 13 iterations, memory after 50 to 230. What grows later must not stay ``ok``.
        """
        if verdict.outcome != "ok":
            return False
        series = self._sampler.samples.series(budget.resource)
        suspicion = examine(series, budget, self._context(budget, final=False)).verdict()
        return suspicion is not None and suspicion.outcome in RED

    def retains_much(self) -> bool:
        """Return whether the test retains too much memory to continue only because its minimum time has not passed."""
        samples = self._sampler.samples
        return any(samples.has(name) and samples.above_start(name) > _MAX_WAITING_BYTES for name in _MEMORY_BYTES)

    def _may_end_by_itself(self, examination: Examination, suspicion: Verdict) -> bool:
        """Return whether more iterations, while cheap, may show that memory is a cache with hand-written eviction."""
        effort, clock = self._run.plan.effort, self._run.clock
        return (
            suspicion.outcome == "leak"
            and not (examination.resource.scarce or examination.is_fatal or effort.iterations)
            and clock.seconds < min(effort.min_time, effort.max_time)
            and suspicion.level <= (_MAX_WAITING_BYTES if examination.resource.unit == "bytes" else _MAX_WAITING_COUNT)
        )

    def _explain(self, examination: Examination, suspicion: Verdict) -> Evidence | Wait | StartAgain:
        """Explain growth; search caches before anything is frozen again, because frozen objects are not listed."""
        sampler, explanations = self._sampler, self._run.explanations
        name, final = suspicion.resource, examination.context.final
        evidence = Evidence()
        if not examination.budget.judges_all_growth:
            evidence = self._weigh_unshown(examination)
            if evidence.explained or not _is_growth(examination.verdict(replace(evidence, isolate=False))):
                return evidence
        explanation = self._explanation(name)
        if explanation.text:
            if self._prepare_restart_if_full(suspicion, explanation):
                return StartAgain()
            evidence = self._weigh_explanation(examination, explanation)
        if evidence.explained:
            return evidence
        if explanations.starts_again(sampler, name):
            return StartAgain()
        if not final and (more := explanations.confirm_in(sampler, name, suspicion.slope)):
            return Wait(more)
        return replace(evidence, background=explanations.background(sampler, name, suspicion.slope))

    def _explanation(self, name: str) -> Explanation:
        effort, clock, n = self._run.plan.effort, self._run.clock, self._sampler.samples.n
        cheap = (effort.min_time - clock.seconds) / max(1e-9, self._sampler.settling.seconds_per_iteration())
        most = max(effort.usual, min(effort.most, n + int(cheap)))
        return self._run.explanations.explain(self._sampler, name, most)

    def _weigh_explanation(self, examination: Examination, explanation: Explanation) -> Evidence:
        """Turn an explanation into evidence; if the rest of the growth continues, it needs its own explanation."""
        evidence = _as_evidence(explanation)
        if not isfinite(explanation.rate):
            return evidence
        in_part = Evidence(explained_rate=explanation.rate)
        rest = self._judge_rest(examination, in_part)
        if not _is_growth(rest):
            is_ok = rest is not None and rest.outcome == "ok"
            return evidence if is_ok else replace(evidence, filling_up_to=None)
        other = self._run.explanations.explain_otherwise(self._sampler, examination.budget.resource)
        if not isfinite(other.rate):
            return replace(_as_evidence(other), explained_rate=explanation.rate, filling_up_to=None)
        in_part = Evidence(explained_rate=explanation.rate + other.rate)
        return in_part if _is_growth(self._judge_rest(examination, in_part)) else _as_evidence(other)

    def _judge_rest(self, examination: Examination, in_part: Evidence) -> Verdict | None:
        series = self._sampler.samples.series(examination.budget.resource)
        return examine(series, examination.budget, examination.context).verdict(in_part)

    def _prepare_restart_if_full(self, suspicion: Verdict, explanation: Explanation) -> bool:
        """Return whether to start again because a cache has just become full; if so, record the levels reached."""
        run, sampler = self._run, self._sampler
        if suspicion.outcome == "over_budget" and suspicion.kind != "predicted":
            # A level that was exceeded does not fall when the cache is full.
            return False
        if not explanation.full or run.clock.out_of_time:
            return False
        if not run.explanations.restart_when_full():
            return False
        # The growth so far still counts when a level is judged.
        for one in run.plan.budgets:
            if sampler.samples.has(one.resource):
                self._carried[one.resource] = self._carried.get(one.resource, 0) + sampler.samples.above_start(
                    one.resource
                )
        return True

    def _ask_second_source(self, examination: Examination, evidence: Evidence, verdict: Verdict) -> Verdict | None:
        """Confirm or overrule a verdict by the makers of a folder's entries, or show the driver's count beside it."""
        sampler, name = self._sampler, verdict.resource
        if (device := sampler.instruments.device_for(name)) is not None:
            return verdict.adding(device.describe_growth())
        if name in sampler.instruments.folders:
            sampler.settling.set_aside_used(name)
            evidence = replace(evidence, makers=entry_makers(sampler.instruments.folders[name]))
        return examination.confirm(verdict, evidence)

    def _context(self, budget: Budget, *, final: bool) -> Context:
        run, sampler, name = self._run, self._sampler, budget.resource
        resource = find_resource(name)
        limit, effort = run.limits.get(name), run.plan.effort
        exact_flat, exact = False, resource.exact_counter
        if exact and budget.judges_all_growth and sampler.samples.has(exact):
            exact_flat = self._growth_of(exact).state == "flat"
        elsewhere = resource.of_tree and sampler.children > 0
        # With children, the counter covers the process tree, but the limit applies to each process.
        headroom = None if limit is None or elsewhere else max(0, limit - sampler.samples.level(name))
        return Context(
            final,
            effort.run_length,
            headroom,
            effort.usual,
            carried=self._carried.get(name, 0),
            exact_flat=exact_flat,
            elsewhere=elsewhere,
            quiet_heap=run.quiet_heap,
            slack=run.explanations.slack(name),
            # With the waits and collections of the harness, which take their share of the time.
            seconds=run.clock.seconds / max(1, sampler.samples.n) if run.clock.out_of_time else 0.0,
            effort=effort,
        )

    def _growth_of(self, name: str) -> Growth:
        return growth(self._sampler.samples.series(name).readings, find_resource(name).tolerance)

    def _weigh_unshown(self, examination: Examination) -> Evidence:
        """Turn what exact counters show of growing resident memory, and what malloc gives back, into evidence."""
        name, samples = examination.budget.resource, self._sampler.samples
        resident = self._sampler.instruments.resident
        if resident is not None:
            resident.trim()
        if 2 * self._sampler.came_down(name) >= samples.above_start(name):
            return Evidence(explained="malloc had kept memory that the test had freed")
        return Evidence(explained_rate=max(0.0, self._shown_by_exact_counters()), isolate=not self._run.plan.process)

    def _shown_by_exact_counters(self) -> float:
        exact = (name for name in _MEMORY_BYTES if not find_resource(name).resolution)
        return sum(self._growth_of(name).slope for name in exact if self._sampler.samples.has(name))


def _as_evidence(explanation: Explanation) -> Evidence:
    """Return evidence that explains all of the growth; none if the explanation is empty."""
    return Evidence(explanation.text, explanation.at_most, isolate=explanation.isolate)


def _is_growth(verdict: Verdict | None) -> bool:
    """Return whether the verdict reports growth that continues, and not a level that is too high."""
    return verdict is not None and (verdict.outcome == "leak" or verdict.kind == "predicted")
