"""Convert the results of an incident's arms to a `Page`.

An arm is one variant of the incident's code. There is a chart for each checked finding that is not ``ok``, which also
shows the curve of the fixed arm if that has a matching finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.html.findings_page import (
    BY_COLLECTOR,
    axis_of,
    curve_of,
    is_of_collector,
    limit_of,
    page_of_document,
    verdict_line,
)
from pytest_leakcheck.report.html.view_model import Arm, Chart, Mark, Page, Tone
from pytest_leakcheck.repro.check_expectations import ArmResult, is_red

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_FIXED_ARM = "fixed"


def page_of_arms(incident: Incident, results: Sequence[ArmResult], diff: str) -> Page:
    """Return the page of an incident.

    Args:
        incident: The incident that was run.
        results: The results of its arms, in the order of the page.
        diff: A unified diff of the leaky and the fixed file; empty if there is none.
    """
    arms = tuple(_build_arm(incident, one) for one in results)
    partial = any(one.run.interrupted for one in results)
    return Page(incident.name, (incident.title,), arms, tuple(_build_charts(results)), diff or None, partial=partial)


def _build_arm(incident: Incident, result: ArmResult) -> Arm:
    run, checks = result.run, result.checks
    tests = page_of_document(run.report, run.arm).arms if run.report else ()
    colour = "red" if is_red(incident, run.arm) else "green"
    name = f"{run.arm}: expected {colour}; {result.right} of {len(checks)} as expected"
    culprits = [arm.culprit for arm in tests if arm.culprit]
    verdicts = tuple(check.text.replace("\n", "; ") for check in checks)
    tone: Tone = "unsure"
    if result.is_as_it_must:
        tone = "bad" if colour == "red" else "good"
    return Arm(name, tone, verdicts, "\n\n".join(dict.fromkeys(culprits)))


def _build_charts(results: Sequence[ArmResult]) -> Iterator[Chart]:
    """Yield a chart for each checked finding that is not ``ok``.

    If only one arm was run, its ``ok`` findings are charted as well.
    """
    fixed = next((one for one in results if one.run.arm == _FIXED_ARM), None)
    drawn: set[tuple[str, str]] = set()
    for result in results:
        for check in result.checks:
            if check.found is None:
                continue
            finding, verdict = check.found
            key = (finding.test, verdict.resource)
            if key not in drawn and (verdict.outcome != "ok" or len(results) == 1):
                drawn.add(key)
                yield from _build_chart(finding, verdict, result, fixed if fixed is not result else None)


def _build_chart(finding: Finding, verdict: Verdict, result: ArmResult, fixed: ArmResult | None) -> Iterator[Chart]:
    resource, axis = find_resource(verdict.resource), axis_of(finding)
    released = is_of_collector(verdict)
    curves = [curve_of(finding, verdict, result.run.arm, released=released)]
    if fixed is not None:
        # Take the curve of the fixed arm's test with the same function and the same parameters. If there is none, take
        # that of a test with the same function and other parameters, because several variants of the leaky arm can
        # share one fixed arm. If there is none either, take that of the only test in the fixed arm that judges this
        # resource, provided that both tests run over sizes.
        begins = f"{finding.test.partition('[')[0]}[{fixed.run.arm}"
        same = finding.test.replace(f"[{result.run.arm}", f"[{fixed.run.arm}")
        other = [one for one in fixed.run.verdicts if one[1].resource == verdict.resource]
        alone = other if axis == "size" and len(other) == 1 and axis_of(other[0][0]) == axis else []
        other = (
            [one for one in other if one[0].test == same]
            or [one for one in other if one[0].test.startswith(begins)]
            or alone
        )
        curves += [curve_of(*one, fixed.run.arm, released=released) for one in other[:1]]
    there = tuple(curve for curve in curves if curve is not None)
    if curves[0] is None:
        # The test ended before it had enough readings for a curve.
        return
    name = finding.test.partition("::")[2] or finding.test
    verdict_mark = Mark(float(verdict.iterations), f"verdict {verdict.outcome.replace('_', ' ')}")
    yield Chart(
        f"{verdict.resource}: {name}{BY_COLLECTOR if released else ''}",
        resource.unit,
        axis,
        there,
        verdict_line(finding, verdict),
        limit_of(finding, verdict),
        (verdict_mark,) if axis == "iteration" and verdict.outcome != "ok" else (),
    )
