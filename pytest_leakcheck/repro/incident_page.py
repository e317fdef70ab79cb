"""Convert the results of an incident's arms to a `Page`.

The page tells the story of the leaky arms, a card for each checked finding that is not ``ok``, then what the fix
changes, and then the fixed arm. The chart of a card also shows the curve of a matching finding of the fixed arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource, known
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.html.finding_card import Rendering, card_of_finding
from pytest_leakcheck.report.html.finding_charts import (
    BY_COLLECTOR,
    axis_of,
    curve_of,
    is_of_collector,
    limit_of,
    verdict_line,
)
from pytest_leakcheck.report.html.view_model import Card, Cell, Chart, Entry, Mark, Page, Section, Tone
from pytest_leakcheck.repro.check_expectations import ArmResult, is_red

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_FIXED_ARM = "fixed"


def page_of_arms(incident: Incident, results: Sequence[ArmResult], diff: str) -> Page:
    """Return the page of an incident; `diff` is that of the leaky and the fixed file, empty if there is none."""
    fixed = next((one for one in results if one.run.arm == _FIXED_ARM), None)
    sections = [_build_section(incident, one, fixed) for one in results if one is not fixed]
    if diff:
        sections.append(Section("What the fix changes", diff=diff))
    if fixed is not None:
        sections.append(_build_section(incident, fixed, None))
    return Page(
        incident.name,
        tuple(_count(incident, one) for one in results),
        (incident.title,),
        sections=tuple(sections),
        partial=any(one.run.interrupted for one in results),
    )


def _count(incident: Incident, result: ArmResult) -> Cell:
    tone: Tone = "bad" if is_red(incident, result.run.arm) else "good"
    checks = f"{result.right} of {len(result.checks)} verdicts"
    if not result.is_as_it_must:
        return Cell(f"{result.run.arm}: {checks} as expected", "unsure")
    return Cell(f"{result.run.arm}: {'red' if tone == 'bad' else 'green'} as expected ({checks})", tone)


def _build_section(incident: Incident, result: ArmResult, fixed: ArmResult | None) -> Section:
    """Build the section of an arm: a card for each finding of interest, and each verdict that was not expected."""
    arm, report = result.run.arm, result.run.report
    title = "What the fixed run looks like" if arm == _FIXED_ARM else f"What leaks in the {arm} arm"
    wrong = tuple(Entry(one.text.replace("\n", "; "), tone="unsure") for one in result.checks if not one.right)
    with known(report.resources if report is not None else {}):
        cards = tuple(_build_cards(incident, result, fixed))
    return Section(title, "" if cards else "Nothing was measured.", cards, entries=wrong)


def _build_cards(incident: Incident, result: ArmResult, fixed: ArmResult | None) -> Iterator[Card]:
    """Yield a card for each finding with checked verdicts: those not ``ok``, or the first if the arm has no leak."""
    rendering = Rendering.of(result.run.report.session if result.run.report is not None else None)
    command = f"pytest-leakcheck repro {incident.name} --arm {result.run.arm}"
    found: dict[int, tuple[Finding, dict[str, Verdict]]] = {}
    for finding, verdict in (check.found for check in result.checks if check.found is not None):
        _finding, verdicts = found.setdefault(id(finding), (finding, {}))
        if verdict.outcome != "ok" or not (verdicts or is_red(incident, result.run.arm)):
            verdicts[verdict.resource] = verdict
    for finding, verdicts in found.values():
        charts = (_build_chart(finding, verdict, result, fixed) for verdict in verdicts.values())
        if verdicts:
            yield card_of_finding(finding, rendering, tuple(filter(None, charts)), command)


def _build_chart(finding: Finding, verdict: Verdict, result: ArmResult, fixed: ArmResult | None) -> Chart | None:
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
        return None
    name = finding.test.partition("::")[2] or finding.test
    verdict_mark = Mark(float(verdict.iterations), f"verdict {verdict.outcome.replace('_', ' ')}")
    return Chart(
        f"{verdict.resource}: {name}{BY_COLLECTOR if released else ''}",
        resource.unit,
        axis,
        there,
        verdict_line(finding, verdict),
        limit_of(finding, verdict),
        (verdict_mark,) if axis == "iteration" and verdict.outcome != "ok" else (),
    )
