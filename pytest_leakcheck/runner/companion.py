"""Find the line of a resource that grows together with the one of a verdict, whose own line is not resolved."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Final

from pytest_leakcheck.attribution.handle_kinds import things_of
from pytest_leakcheck.attribution.tracing.tracing_rounds import Made, Schedule, find_line, follow
from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.model.resources import RESOURCES, find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.runner.sampler import Sampler

# Two resources grow together if the amounts that they have grown by differ by at most this share.
_MAX_DIFFERENCE_RATIO: Final = 0.05


def follow_companion(made: Made, sampler: Sampler, verdict: Verdict, schedule: Schedule) -> Generator[None, None, Made]:
    """Find the line that creates another countable resource, which has grown by as much; without one, return `made`.

    For example, a thread that waits in ``accept`` reserves the number of a descriptor that no listing shows.
    """
    if made.path or made.process or verdict.outcome != "leak":
        return made
    for name in _growing_with(sampler, verdict.resource):
        things = things_of(name, sampler.instruments.counter(name))
        if things is not None:
            found = yield from follow(things, verdict.slope, schedule, unclosed=False)
            found = yield from find_line(found, things.count, verdict.slope, schedule)
            if found.path:
                # The handles that were found are not those of the verdict, whose owner is searched for.
                return replace(found, why=made.why, identities=frozenset(), companion=name)
    return made


def _growing_with(sampler: Sampler, resource: str) -> Iterator[str]:
    """Yield the countable resources of the process tree that have grown by as much as this one."""
    if not find_resource(resource).of_tree:
        return
    samples = sampler.samples
    total = samples.above_start(resource)
    for name, other in RESOURCES.items():
        if name == resource or not other.of_tree or not samples.has(name):
            continue
        difference = abs(samples.above_start(name) - total)
        grown = growth(samples.series(name).readings, other.tolerance)
        if grown.state == "growing" and difference <= _MAX_DIFFERENCE_RATIO * total:
            yield name
