"""The runs of an incident's arms as a `Page`: for each leak one chart, with the mended arm's curve beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_leakcheck.page.findings import (
    BY_COLLECTOR,
    curve_of,
    is_of_collector,
    page_of_findings,
    verdict_line,
)
from pytest_leakcheck.page.values import Arm, Chart, Curve, Mark, Page, Tone
from pytest_leakcheck.repro.arm import Run
from pytest_leakcheck.repro.outcome import Check, is_red
from pytest_leakcheck.resources import find_resource
from pytest_leakcheck.series import Recording

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

_MENDED = "fixed"


def page_of_runs(incident: Incident, runs: Sequence[Run], checks: Sequence[Sequence[Check]], diff: str) -> Page:
    """The whole page.

    Args:
        incident: What was run.
        runs: Its arms, in their order.
        checks: What each came to, in the same order.
        diff: Of the two files.
    """
    arms = tuple(_arm(incident, run, of_run) for run, of_run in zip(runs, checks, strict=True))
    partial = any(run.interrupted for run in runs)
    return Page(incident.name, (incident.title,), arms, tuple(_charts(runs, checks)), diff or None, partial=partial)


def _arm(incident: Incident, run: Run, checks: Sequence[Check]) -> Arm:
    tests = page_of_findings(run.report, run.arm).arms if run.report else ()
    right = sum(check.right for check in checks)
    colour = "red" if is_red(incident, run.arm) else "green"
    name = f"{run.arm}: must come out {colour}; {right} of {len(checks)} as it must be"
    culprits = [arm.culprit for arm in tests if arm.culprit]
    verdicts = tuple(check.text.replace("\n", "; ") for check in checks)
    tone: Tone = "unsure"
    if right == len(checks):
        tone = "bad" if colour == "red" else "good"
    return Arm(name, tone, verdicts, "\n\n".join(dict.fromkeys(culprits)))


def _charts(runs: Sequence[Run], checks: Sequence[Sequence[Check]]) -> Iterator[Chart]:
    """Of each leak that was found, and where no arm must leak, of what was judged."""
    mended = next((run for run in runs if run.arm == _MENDED), None)
    drawn: set[tuple[str, str]] = set()
    for run, of_run in zip(runs, checks, strict=True):
        for check in of_run:
            found = check.found
            if found is None or (found["verdict"] == "ok" and len(runs) > 1):
                continue
            key = (found["test"], found["resource"])
            if key not in drawn:
                drawn.add(key)
                yield from _chart(found, run, mended if mended is not run else None)


def _chart(found: Mapping[str, Any], run: Run, mended: Run | None) -> Iterator[Chart]:
    resource = find_resource(found["resource"])
    released = is_of_collector(found)
    curves = [_curve(found, run, released=released)]
    if mended is not None:
        # Variants of the leaky arm have one mended arm in common.
        begins = f"{found['test'].partition('[')[0]}[{mended.arm}"
        same = found["test"].replace(f"[{run.arm}", f"[{mended.arm}")
        other = [one for one in mended.findings if one["resource"] == found["resource"]]
        other = [one for one in other if one["test"] == same] or [
            one for one in other if one["test"].startswith(begins)
        ]
        curves += [_curve(one, mended, released=released) for one in other[:1]]
    there = tuple(curve for curve in curves if curve is not None)
    if curves[0] is None:
        # It ended before there was anything to draw.
        return
    name = found["test"].partition("::")[2] or found["test"]
    axis = "size" if found["points"] else "iteration"
    recording = _recording(found, run)
    limit = recording.limits.get(found["resource"]) if recording is not None and not found["points"] else None
    said = Mark(float(found["iterations"]), f"{found['verdict'].replace('_', ' ')} is said")
    marks = (said,) if axis == "iteration" and found["verdict"] != "ok" else ()
    # What is held has a limit; what was given back has none.
    limit = None if released else limit
    yield Chart(
        f"{found['resource']}: {name}{BY_COLLECTOR if released else ''}",
        resource.unit,
        axis,
        there,
        verdict_line(found),
        limit,
        marks,
    )


def _curve(found: Mapping[str, Any], run: Run, *, released: bool) -> Curve | None:
    return curve_of(found, _recording(found, run), run.arm, released=released)


def _recording(found: Mapping[str, Any], run: Run) -> Recording | None:
    recordings = run.report.get("recordings", ())
    return next((Recording.from_json(one) for one in recordings if one["test"] == found["test"]), None)
