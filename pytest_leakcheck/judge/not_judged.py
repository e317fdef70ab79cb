"""Create the verdicts (``unavailable`` or ``inconclusive``) on resources that could not be judged, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.resources import DESCRIPTORS, GAUGE_PREFIX, RESOURCES, find_resource
from pytest_leakcheck.model.scaling_points import Scaled
from pytest_leakcheck.model.units import format_amount, format_count, format_rate
from pytest_leakcheck.model.verdict import RED, Verdict


def unavailable(resource: str, why: str, *, peak: bool = False) -> Verdict:
    """Report that a resource cannot be read here; `peak`: the verdict is about the peak of one run."""
    return Verdict(resource, "unavailable", reason=why, peak=peak)


def missing_verdicts(plan: Plan, missing: Mapping[str, Exception]) -> tuple[Verdict, ...]:
    """Return an ``unavailable`` verdict for each explicit budget whose resource raised an error when it was opened."""
    return tuple(
        unavailable(budget.resource, str(missing[budget.resource]))
        for budget in plan.budgets
        if budget.resource in missing and budget.explicit
    )


def without_ceiling(verdicts: Iterable[Verdict], missing: Mapping[str, str]) -> tuple[Verdict, ...]:
    """Make ``unavailable`` what was to be judged under a limit that cannot be set, for this reason; red ones stand."""
    others = (one for one in verdicts if one.resource not in missing or one.outcome in RED)
    return *others, *(unavailable(name, why) for name, why in missing.items())


def no_time_left(budgets: Iterable[Budget], effort: Effort, seconds: float, *, restarted: bool) -> tuple[Verdict, ...]:
    """Return an ``inconclusive`` verdict for each budget: no iteration followed after the start level was read."""
    reason = "no time was left after warm-up"
    if restarted:
        reason = "the series was restarted (late release, frozen garbage or full cache); no time was left after that"
    advice = _advise_more_time(effort, seconds)
    return tuple(
        Verdict(budget.resource, "inconclusive", reason=reason, advice=advice, explicit=budget.explicit)
        for budget in budgets
    )


def stopped_early(plan: Plan, seconds: float, *, start_read: bool) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that was stopped before its first verdict."""
    names = [budget.resource for budget in plan.budgets] or [*RESOURCES]
    missed = "a verdict" if start_read else "the first reading"
    reason = f"stopped after {seconds:.1f} s, before {missed}"
    return Verdict(names[0], "inconclusive", reason=reason, advice=_advise_more_time(plan.effort, seconds))


def does_not_repeat(plan: Plan, iteration: int, ended_with: str) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that passed at first and later failed, but not by a leak."""
    first = plan.budgets[0]
    return Verdict(
        first.resource,
        "inconclusive",
        iterations=iteration - 1,
        reason=f"not repeatable: iteration {iteration} ended with {ended_with}",
        advice="make the test clean up after itself",
        explicit=first.explicit,
    )


def did_not_recur(verdict: Verdict) -> Verdict:
    """Return the ``inconclusive`` verdict in place of a leak that did not recur while its cause was searched for."""
    reason = f"{verdict.reason}, but it did not recur while traced: it depends on time, or has ended"
    return replace(
        verdict, outcome="inconclusive", reason=reason, advice="more time would decide it: --leakcheck-max-time"
    )


def judged_again(verdict: Verdict, withdrawn: Verdict) -> Verdict:
    """Add the leak that was withdrawn, because it did not recur, to the verdict on the series that followed."""
    if verdict.outcome == "ok":
        return verdict.adding(f"grew at first, and stopped after {withdrawn.iterations} iterations")
    return did_not_recur(withdrawn) if verdict.outcome == "inconclusive" else verdict


def measurement_failed(resource: str, reason: str, *, explicit: bool) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that an error of the plugin kept from being measured."""
    advice = "if the test does not replace or close what the plugin uses, please report this"
    return Verdict(resource, "inconclusive", reason=reason, advice=advice, explicit=explicit)


def miscounted(verdict: Verdict, reason: str) -> Verdict:
    """Return the ``inconclusive`` verdict on objects or descriptors if the test changes which ones are counted."""
    advice = "call it in a fixture of wider scope, or bound memory: heap_budget()"
    if verdict.resource == DESCRIPTORS:
        advice = "close or copy only descriptors that the test has opened"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=advice, floor=None)


def not_counted(verdict: Verdict, what: str) -> Verdict:
    """Return the verdict if something may hold a part of the resource, and does not count: an ``ok`` excludes nothing."""
    return replace(verdict, floor=None).adding(what) if what and verdict.outcome == "ok" else verdict


def origin_unknown(verdict: Verdict, entries: int, path: str) -> Verdict:
    """Return the verdict on a folder with this many entries of unknown origin: ``inconclusive`` if it was ``ok``."""
    if verdict.outcome != "ok":
        return verdict
    came = "1 entry" if entries == 1 else f"{entries} entries"
    how = "-n0, and no other session at the same time"
    if verdict.traits.handles == "files":
        how = "a private TMPDIR, or --leakcheck-isolate"
    return replace(
        verdict,
        outcome="inconclusive",
        reason=f"{came} of unknown origin in {path}: no audit event and no process that uses them shows who created them",
        advice=f"if the test creates them in C, it leaks them; else run it where no other process writes there: {how}",
        floor=None,
    )


def left_early(result: Result, step: int | None) -> Result:
    """Return the result of a loop that was left in this step, or never begun: ``inconclusive``, unless red already."""
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    first = result.plan.budgets[0]
    verdict = Verdict(
        first.resource,
        "inconclusive",
        reason="the loop was never begun" if step is None else f"left in step {step}, by break, return or an exception",
        advice="let the loop run to its end: it ends as soon as the verdict is known",
        explicit=first.explicit,
    )
    return replace(result, verdicts=(verdict,))


def interrupted(result: Result) -> Result:
    """Return the result of a test that Ctrl-C ended, with what its counters have done so far as ``inconclusive``.

    Verdicts given before stay; after a red one, no other resource is judged. The others never fail the test.
    """
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    given = {verdict.resource for verdict in result.verdicts}
    open_ = [_so_far(budget, result) for budget in result.plan.budgets if budget.resource not in given]
    open_.sort(key=lambda one: -one.slope / max(one.traits.tolerance, 1.0))
    if open_:
        count = open_[0].iterations
        when = f"after {format_count(count, 'iteration')}" if count else "before the first reading"
        grown = [one for one in open_ if one.slope > one.traits.tolerance]
        rates = [f"{one.resource} {format_rate(one.slope, one.traits.unit)}" for one in grown]
        growth = f"so far {', '.join(rates)}" if rates else "no growth so far" if count else ""
        reason = "; ".join(filter(None, (f"interrupted {when}, not judged", growth)))
        open_ = [replace(one, reason=reason) for one in open_]
    return replace(result, verdicts=(*result.verdicts, *open_))


def _so_far(budget: Budget, result: Result) -> Verdict:
    series = result.recording.find(budget.resource)
    count = series.iterations if series is not None else 0
    level = series.readings[-1] - series.readings[0] if series is not None and count else 0
    return Verdict(
        budget.resource,
        "inconclusive",
        slope=level / max(1, count),
        level=level,
        iterations=max(0, count),
        explicit=budget.explicit,
        tolerated=True,
    )


def sizes_interrupted(resources: Iterable[str], scaled: Scaled, size: int, sizes: int) -> list[Verdict]:
    """Return an ``inconclusive`` verdict for each resource of a test that Ctrl-C ended at one size of its axis."""
    names = tuple(resources)
    peaks = []
    for point in scaled.points:
        read = [name for name in names if not point.why_not(name)]
        amounts = (format_amount(point.peak(name, "total"), find_resource(name).unit) for name in read)
        texts = (f"{name.removeprefix(GAUGE_PREFIX)} {amount}" for name, amount in zip(read, amounts, strict=True))
        peaks.append(f"{scaled.axis}={point.size}: {', '.join(texts)}")
    reason = (
        f"interrupted at {scaled.axis}={size}, after {len(scaled.points)} of {format_count(sizes, 'size')}, not judged"
    )
    if peaks:
        reason += f"; peaks so far: {'; '.join(peaks)}"
    return [Verdict(name, "inconclusive", reason=reason, explicit=True, tolerated=True) for name in names]


def process_interrupted(plan: Plan, iteration: int) -> Verdict:
    """Return the ``inconclusive`` verdict on a test that Ctrl-C ended in a separate process; its readings are lost."""
    where = f"in iteration {iteration}" if iteration else "before the first iteration"
    first = plan.budgets[0]
    return Verdict(
        first.resource,
        "inconclusive",
        iterations=max(0, iteration - 1),
        reason=f"interrupted {where} in a separate process, whose readings are lost; not judged",
        explicit=first.explicit,
        tolerated=True,
    )


def process_lost(resource: str, iterations: int, reason: str, advice: str) -> Verdict:
    """Return an ``inconclusive`` verdict for a test whose process ended before it reported a verdict."""
    return Verdict(resource, "inconclusive", iterations=iterations, reason=reason, advice=advice)


def _advise_more_time(effort: Effort, seconds: float) -> str:
    return f"allow about ten times as long: {effort.advise_time(10 * seconds)}"
