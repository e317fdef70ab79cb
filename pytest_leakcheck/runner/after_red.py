"""What follows a red verdict: a few iterations that name the culprit, and under a ceiling those that lead to the failure."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pytest_leakcheck.attribution.live_handles import Identities, describe_target, group, survivors, take_identities
from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.runner.ceiling_run import Headroom
from pytest_leakcheck.runner.diagnosis import Investigation
from pytest_leakcheck.runner.sampler import Panel


@dataclass(frozen=True, slots=True)
class Until:
    """When no further iteration may begin, by ``time.perf_counter``."""

    named: float
    failed: float


class Sequel:
    """Made with the verdict; `begin`, then `iteration_done` after each iteration as long as it wants another, then `end`.

    Attributes:
        culprit: What is known of the cause; None until that is settled.
    """

    def __init__(  # noqa: PLR0913 - what is known, one by one
        self,
        panel: Panel,
        red: Verdict,
        start: Identities,
        headroom: Headroom,
        until: Until,
        *,
        bounded: frozenset[int] = frozenset(),
    ) -> None:
        """
        Args:
            panel: The instruments.
            red: What was said.
            start: Which descriptors, threads, children and tasks there were.
            headroom: Lifted while causes are sought.
            until: The time that is left.
            bounded: Identities of caches with a bound, which do not explain the verdict.
        """
        self._panel, self._red, self._start, self._headroom, self._until = panel, red, start, headroom, until
        self.culprit: Culprit | None = None
        if red.outcome == "unclosed" and find_resource(red.resource).handles == "fds":
            # What the collector gives back is gone by then: only in the next iterations can be seen what it is.
            panel.watch.name_released(True)
        headroom.suspend()
        self._at_red = take_identities()
        self._investigation = Investigation(panel, red, panel.seconds_per_iteration(), until.named, bounded)

    def begin(self) -> bool:
        """Whether an iteration is wanted at all."""
        if self.culprit is None:
            if self._investigation.iteration_done():
                return True
            self.end()
            self._headroom.resume()
        return self.drives_on and time.perf_counter() < self._until.failed

    def iteration_done(self) -> bool:
        """Whether another iteration is wanted."""
        more = self.begin()
        # What one iteration had the collector release is enough to be named.
        self._panel.watch.name_released(False)
        return more

    @property
    def drives_on(self) -> bool:
        """Whether the cause is known, and the failure that it leads to is still to come."""
        return self.culprit is not None and self._headroom.drives_on(self._red)

    def end(self) -> None:
        """No more iterations for the cause: say what was found."""
        if self.culprit is None:
            self.culprit = self._investigation.end(self.held().get(self._red.resource, ()))

    def held(self) -> dict[str, tuple[Held, ...]]:
        """What had come by the time of the verdict, by resource; of memory and objects, what came since and is still there."""
        held = survivors_of(self._panel, self._red, self._start, self._at_red)
        if self._investigation.kinds:
            held[self._red.resource] = self._investigation.kinds
        return held


def survivors_of(panel: Panel, red: Verdict, start: Identities, now: Identities) -> dict[str, tuple[Held, ...]]:
    """What is new, by resource.

    Args:
        panel: Knows the entries of folders, and what the collector has given back.
        red: What it is asked for.
        start: What there was at first.
        now: What there is.
    """
    # Libraries map memory too, and entries of a folder are others' as well: named only where they are the finding.
    held = {
        name: kinds
        for name, kinds in survivors(start, now).items()
        if name == red.resource or not find_resource(name).is_memory
    }
    if red.resource in panel.folders:
        held[red.resource] = group(panel.folders[red.resource].kinds())
    if panel.watch.released_names:
        held[red.resource] = group(describe_target(name) for name in panel.watch.released_names.elements())
    return held
