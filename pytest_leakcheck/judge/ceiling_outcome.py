"""Add the outcome of a test's ceiling (`config.ceiling`) to its verdicts and to what is known of the cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_leakcheck.judge.not_judged import unavailable
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.culprit import Culprit, Site
from pytest_leakcheck.model.resources import exhausting, find_resource
from pytest_leakcheck.model.units import format_amount, format_count
from pytest_leakcheck.model.verdict import RED, Verdict


@dataclass(frozen=True, slots=True)
class Failure:
    """How the test failed under its ceiling; `iteration` counts the warm-up as well, and `site` is None if unknown.

    `in_child`: a child process reached the limit, but the error in the test does not show this. The child's limit is
    not lifted, so the test cannot continue.
    """

    resource: str
    iteration: int
    said: str
    site: Site | None
    in_child: bool = False


@dataclass(frozen=True, slots=True)
class CeilingOutcome:
    """What happened under a ceiling: the limits, each in the unit of its resource, and why one is `missing`."""

    sizes: Mapping[str, int]
    iterations: int
    failure: Failure | None
    missing: Mapping[str, str]


def account_for_ceiling(result: Result, ceiling: CeilingOutcome) -> Result:
    """Add the outcome of the ceiling to the verdicts.

    A failure that no red (failing) verdict explains becomes a verdict of its own. A resource whose limit could not be
    imposed is ``unavailable``, because the purpose of the test was to run under that limit.
    """
    if not ceiling.sizes:
        return result
    verdicts = tuple(_add_outcome(verdict, result, ceiling) for verdict in result.verdicts)
    if ceiling.failure is not None and not any(_explains_failure(verdict, ceiling.failure) for verdict in verdicts):
        verdicts = (_judge_without_growth(result, ceiling, ceiling.failure), *verdicts)
    verdicts = tuple(one for one in verdicts if one.resource not in ceiling.missing or one.outcome in RED)
    verdicts += tuple(unavailable(name, why) for name, why in ceiling.missing.items())
    return replace(result, verdicts=verdicts, culprit=_add_failed_line(result.culprit, verdicts, ceiling.failure))


def towards(ceiling: str) -> tuple[str, ...]:
    """List the resources whose growth uses up the ceiling of one resource."""
    return exhausting(find_resource(ceiling).exhausts)


def ceiling_of(sizes: Mapping[str, int], resource: str) -> str | None:
    """Return the name of the ceiling that growth of a resource uses up; None if there is none."""
    return next((name for name in sizes if resource in towards(name)), None)


def _add_outcome(verdict: Verdict, result: Result, ceiling: CeilingOutcome) -> Verdict:
    name = ceiling_of(ceiling.sizes, verdict.resource)
    if name is None:
        return verdict
    limit, failure = _format_limit(name, ceiling.sizes[name]), ceiling.failure
    if failure is not None and failure.resource == name and verdict.outcome in RED:
        end = f"iteration {failure.iteration} failed under the ceiling of {limit}: {failure.said}"
    elif verdict.outcome == "leak":
        end = f"the ceiling of {limit} was not reached in {format_count(ceiling.iterations, 'iteration')}"
    elif verdict.outcome == "ok" and verdict.resource == name:
        series = result.recording.find(verdict.resource)
        highest = max(series.readings) if series else 0
        unit = find_resource(verdict.resource).unit
        end = f"highest level after an iteration: {format_amount(highest, unit)}, under a ceiling of {limit}"
    else:
        return verdict
    return verdict.adding(end)


def _explains_failure(verdict: Verdict, failure: Failure) -> bool:
    return verdict.outcome in RED and verdict.resource in towards(failure.resource)


def _judge_without_growth(result: Result, ceiling: CeilingOutcome, failure: Failure) -> Verdict:
    name, at = failure.resource, failure.iteration
    limit, series = _format_limit(name, ceiling.sizes[name]), result.recording.find(name)
    # The level above the start at which the test must have failed.
    above = ceiling.sizes[name] - (series.readings[0] if series else 0)
    reason = f"iteration {at} failed under the ceiling of {limit}, before growth was detected: {failure.said}"
    advice = "the test itself needs more than that: raise the ceiling"
    kind = series.kind if series else "measured"
    return Verdict(name, "over_budget", level=above, iterations=at, reason=reason, advice=advice, kind=kind)


def _add_failed_line(culprit: Culprit | None, verdicts: tuple[Verdict, ...], failure: Failure | None) -> Culprit | None:
    if failure is None or failure.site is None:
        return culprit
    cause = next(verdict.resource for verdict in verdicts if _explains_failure(verdict, failure))
    if culprit is None or culprit.resource != cause:
        culprit = Culprit(cause)
    unresolved = dict(culprit.unresolved)
    if culprit.where is None:
        # The cause was not searched for, or only that of another resource: only the line that failed is known.
        unresolved.pop("site", None)
        unresolved["owner"] = "the test did not continue after the failure"
    return replace(culprit, ran_out=failure.site, unresolved=unresolved)


def _format_limit(name: str, size: int) -> str:
    resource = find_resource(name)
    return f"{size:,} {resource.plural}" if resource.unit == "count" else format_amount(size, resource.unit)
