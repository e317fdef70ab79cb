"""A test under a ceiling: it is run on until it fails for want of what it leaks, and the failure is told as what it is."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.attribution.live_handles import live_children
from pytest_leakcheck.config.ceiling import Ceiling
from pytest_leakcheck.judge.exhaustion import causes, exhausted_by, first_line
from pytest_leakcheck.judge.result import RED, Result
from pytest_leakcheck.model.resources import exhausting, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.runner.imposed_ceiling import Imposed

if TYPE_CHECKING:
    from pytest_leakcheck.model.culprit import Culprit, Site

_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
# With fewer left than this a worker can do nothing any more.
_NEAR: Final = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """How the test failed.

    Attributes:
        resource: Whose ceiling it was.
        iteration: The number of the iteration, warm-up counted in.
        said: The error, in a line.
        site: The line of the program that failed; None where that is not known.
        in_child: A child ran out, and did not say so itself. Its limit is not lifted, so the test cannot go on.
    """

    resource: str
    iteration: int
    said: str
    site: Site | None
    in_child: bool = False


class Headroom:
    """The ceiling of one test, from before its first iteration to the end.

    Attributes:
        failure: How the test failed under it; None as long as it has not.
        group: The folder of the cgroup that was made for it; None for none.
    """

    def __init__(self, ceiling: Ceiling, *, drives_on: bool) -> None:
        """
        Args:
            ceiling: The limits.
            drives_on: Whoever repeats the test can tell of an iteration that failed.
        """
        self._ceiling = ceiling
        self._drives_on = drives_on
        self._imposed = Imposed(ceiling)
        self._iterations = 0
        self.failure: Failure | None = None

    @property
    def group(self) -> Path | None:
        return self._imposed.group

    def begin(self) -> None:
        """Before the first iteration."""
        self._imposed.impose()

    def next_iteration(self) -> None:
        """One has ended."""
        self._iterations += 1

    def limit_device(self, device: Vram | None) -> None:
        """When the devices are known."""
        self._imposed.impose_on(device)

    def limits(self) -> dict[str, int]:
        """Where the process ends now."""
        return dict(self._ceiling.sizes) if self.failure is None else {}

    def drives_on(self, red: Verdict | None) -> bool:
        """Whether to go on after a red verdict has been looked into: the failure that it leads to is still to come."""
        if red is None or red.outcome != "leak" or not self._drives_on:
            # What the collector gives back does not come to that while it runs.
            return False
        return self.failure is None and self._ceiling_of(red.resource) is not None

    def suspend(self) -> None:
        """While it is looked into what grows, whole iterations are wanted."""
        self._imposed.lift()

    def resume(self) -> None:
        """From here on the failure may come; unless it has."""
        if self.failure is None:
            self._imposed.resume()

    def is_reached(self, error: BaseException) -> bool:
        """Whether an iteration failed for want of what is limited; then the ceiling is lifted, so that it can be looked into."""
        if self.failure is not None:
            return False
        gone, said, child = exhausted_by(error), first_line(error), ""
        reached = next((name for name in self._ceiling.sizes if not set(gone).isdisjoint(_towards(name))), None)
        of_each = next((name for name in self._ceiling.sizes if find_resource(name).exhausts == "descriptors"), None)
        if reached is None and of_each is not None and (child := _child_at_limit(self._ceiling.sizes[of_each])):
            # What a parent sees of that may be anything: its connection to the worker breaks off.
            reached, said = of_each, f"{said}, while {child}"
        if reached is None:
            return False
        self.failure = Failure(reached, self._iterations + 1, said, failed_at(error), in_child=bool(child))
        self._imposed.lift()
        return True

    @property
    def may_go_on(self) -> bool:
        """Whether the test may be run again after the failure."""
        return self.failure is None or not self.failure.in_child

    def grown_towards(self, error: BaseException) -> tuple[str, ...]:
        """The resources of which one may have run out, by what failed."""
        if self.failure is not None and self.failure.in_child:
            return _towards(self.failure.resource)
        return exhausted_by(error)

    def end(self) -> None:
        """Lift it in any case."""
        self._imposed.lift()

    def account_for(self, result: Result) -> Result:
        """Say in each verdict what became of the ceiling that its resource grows towards."""
        verdicts = tuple(self._with_end(verdict, result) for verdict in result.verdicts)
        if self.failure is not None and not any(self._is_the_cause(verdict) for verdict in verdicts):
            verdicts = (self._without_growth(result), *verdicts)
        missing = self._imposed.missing
        # Without its ceiling a test has not shown what it was run for.
        verdicts = tuple(one for one in verdicts if one.resource not in missing or one.outcome in RED)
        verdicts += tuple(Verdict(name, "unavailable", reason=why) for name, why in missing.items())
        return replace(result, verdicts=verdicts, culprit=self._with_line(result.culprit, verdicts))

    def _with_end(self, verdict: Verdict, result: Result) -> Verdict:
        name = self._ceiling_of(verdict.resource)
        if name is None:
            return verdict
        limit, failure = self._shown(name), self.failure
        if failure is not None and failure.resource == name and verdict.outcome in RED:
            end = f"iteration {failure.iteration} failed under the ceiling of {limit}: {failure.said}"
        elif verdict.outcome == "leak":
            end = f"the ceiling of {limit} was not reached in {self._iterations} iterations"
        elif verdict.outcome == "ok" and verdict.resource == name:
            series = result.recording.find(verdict.resource)
            highest = max(series.readings) if series else 0
            unit = find_resource(verdict.resource).unit
            end = f"at most {format_amount(highest, unit)} after an iteration, under a ceiling of {limit}"
        else:
            return verdict
        return verdict.adding(end)

    def _is_the_cause(self, verdict: Verdict) -> bool:
        failure = self.failure
        return failure is not None and verdict.outcome in RED and verdict.resource in _towards(failure.resource)

    def _without_growth(self, result: Result) -> Verdict:
        assert self.failure is not None
        name, at = self.failure.resource, self.failure.iteration
        limit, series = self._shown(name), result.recording.find(name)
        # So far above the start it must have stood, when it failed.
        above = self._ceiling.sizes[name] - (series.readings[0] if series else 0)
        reason = f"iteration {at} failed under the ceiling of {limit}, before growth was seen: {self.failure.said}"
        advice = "it needs more than that by itself: raise the ceiling"
        kind = series.kind if series else "measured"
        return Verdict(name, "over_budget", level=above, iterations=at, reason=reason, advice=advice, kind=kind)

    def _with_line(self, culprit: Culprit | None, verdicts: tuple[Verdict, ...]) -> Culprit | None:
        failure = self.failure
        if failure is None or failure.site is None:
            return culprit
        from pytest_leakcheck.model.culprit import Culprit

        cause = next(verdict.resource for verdict in verdicts if self._is_the_cause(verdict))
        if culprit is None or culprit.resource != cause:
            culprit = Culprit(cause)
        unresolved = dict(culprit.unresolved)
        if culprit.where is None:
            # It failed for good, or elsewhere: the line that failed is what is known.
            unresolved.pop("site", None)
            unresolved["owner"] = "the test did not go on after it had failed"
        return replace(culprit, ran_out=failure.site, unresolved=unresolved)

    def _ceiling_of(self, resource: str) -> str | None:
        """The one that a resource grows towards."""
        return next((name for name in self._ceiling.sizes if resource in _towards(name)), None)

    def _shown(self, name: str) -> str:
        resource, size = find_resource(name), self._ceiling.sizes[name]
        return f"{size:,} {resource.plural}" if resource.unit == "count" else format_amount(size, resource.unit)


def _towards(ceiling: str) -> tuple[str, ...]:
    """List the resources that grow towards the ceiling of one."""
    return exhausting(find_resource(ceiling).exhausts)


def _child_at_limit(size: int) -> str:
    """Describe a child that has as many descriptors as it may have; empty where there is none."""
    if not sys.platform.startswith("linux"):
        return ""
    for pid, command in live_children().items():
        with contextlib.suppress(OSError):
            held = Path(f"/proc/{pid}/fd").stat().st_size
            if held >= size - _NEAR:
                return f"child {command} had {held} descriptors open"
    return ""


def failed_at(error: BaseException) -> Site | None:
    """The innermost line of the program's own that it failed in; of what a worker sent in words, that of the worker."""
    from pytest_leakcheck.attribution.call_paths import is_harness, is_own
    from pytest_leakcheck.attribution.object_inspection import name_of
    from pytest_leakcheck.model.culprit import Site

    # A worker's traceback is text by now: File "/a/b.py", line 12, in function.
    told = [Site(file, int(line), function) for file, line, function in _FRAME.findall(str(error))]
    raised: list[Site] = []
    for cause in causes(error):
        trace = cause.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            raised.append(Site(code.co_filename, trace.tb_lineno, name_of(code)))
            trace = trace.tb_next
    for path in (told, raised):
        # What was compiled from Python may have a path of its makers' own.
        own = [one for one in path if Path(one.file).is_absolute() and is_own(one.file) and not is_harness(one.file)]
        if own:
            return own[-1]
    return None
