"""Turn the runs of an incident's arms into a `Page`: a chart per leak, with the fixed arm's curve beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.report.html.findings_page import (
    BY_COLLECTOR,
    curve_of,
    is_of_collector,
    limit_of,
    page_of_findings,
    verdict_line,
)
from pytest_leakcheck.report.html.view_model import Arm, Chart, Curve, Mark, Page, Tone
from pytest_leakcheck.repro.check_expectations import ArmResult, is_red

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_FIXED = "fixed"


def page_of_arms(incident: Incident, results: Sequence[ArmResult], diff: str) -> Page:
    """Make the whole page.

    Args:
        incident: What was run.
        results: What its arms came to, in their order.
        diff: Of the two files.
    """
    arms = tuple(_arm(incident, one) for one in results)
    partial = any(one.run.interrupted for one in results)
    return Page(incident.name, (incident.title,), arms, tuple(_charts(results)), diff or None, partial=partial)


def _arm(incident: Incident, result: ArmResult) -> Arm:
    run, checks = result.run, result.checks
    tests = page_of_findings(run.report, run.arm).arms if run.report else ()
    colour = "red" if is_red(incident, run.arm) else "green"
    name = f"{run.arm}: must come out {colour}; {result.right} of {len(checks)} as it must be"
    culprits = [arm.culprit for arm in tests if arm.culprit]
    verdicts = tuple(check.text.replace("\n", "; ") for check in checks)
    tone: Tone = "unsure"
    if result.is_as_it_must:
        tone = "bad" if colour == "red" else "good"
    return Arm(name, tone, verdicts, "\n\n".join(dict.fromkeys(culprits)))


def _charts(results: Sequence[ArmResult]) -> Iterator[Chart]:
    """Yield a chart per leak that was found; if no arm must leak, per resource that was judged."""
    fixed = next((one for one in results if one.run.arm == _FIXED), None)
    drawn: set[tuple[str, str]] = set()
    for result in results:
        for check in result.checks:
            found = check.found
            if found is None or (found["verdict"] == "ok" and len(results) > 1):
                continue
            key = (found["test"], found["resource"])
            if key not in drawn:
                drawn.add(key)
                yield from _chart(found, result, fixed if fixed is not result else None)


def _chart(found: Mapping[str, Any], result: ArmResult, fixed: ArmResult | None) -> Iterator[Chart]:
    resource = find_resource(found["resource"])
    released = is_of_collector(found)
    curves = [_curve(found, result, released=released)]
    if fixed is not None:
        # Variants of the leaky arm share one fixed arm.
        begins = f"{found['test'].partition('[')[0]}[{fixed.run.arm}"
        same = found["test"].replace(f"[{result.run.arm}", f"[{fixed.run.arm}")
        other = [one for one in fixed.run.findings if one["resource"] == found["resource"]]
        # Where a test of another name is the only one about it over sizes, it is that one.
        alone = other if found["points"] and len(other) == 1 and other[0]["points"] else []
        other = (
            [one for one in other if one["test"] == same]
            or [one for one in other if one["test"].startswith(begins)]
            or alone
        )
        curves += [_curve(one, fixed, released=released) for one in other[:1]]
    there = tuple(curve for curve in curves if curve is not None)
    if curves[0] is None:
        # It ended before there was anything to draw.
        return
    name = found["test"].partition("::")[2] or found["test"]
    axis = "size" if found["points"] else "iteration"
    said = Mark(float(found["iterations"]), f"{found['verdict'].replace('_', ' ')} is said")
    marks = (said,) if axis == "iteration" and found["verdict"] != "ok" else ()
    yield Chart(
        f"{found['resource']}: {name}{BY_COLLECTOR if released else ''}",
        resource.unit,
        axis,
        there,
        verdict_line(found),
        limit_of(found, result.recordings.get(found["test"])),
        marks,
    )


def _curve(found: Mapping[str, Any], result: ArmResult, *, released: bool) -> Curve | None:
    return curve_of(found, result.recordings.get(found["test"]), result.run.arm, released=released)
