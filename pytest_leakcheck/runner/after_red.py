"""Run the phase after a red verdict, which finds the cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_leakcheck.attribution.live_handles import (
    Identities,
    describe_target,
    group,
    group_files,
    survivors,
    take_identities,
)
from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.resources import RESIDENT, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.runner.diagnosis import CauseSearch
from pytest_leakcheck.runner.measurement_run import MeasurementRun, Phase
from pytest_leakcheck.runner.sampler import Sampler


class Diagnosis:
    """The phase that finds the cause of a red verdict; `culprit` is None until the search has ended."""

    def __init__(  # noqa: PLR0913 - the state of the phase before
        self,
        run: MeasurementRun,
        sampler: Sampler,
        red: Verdict,
        start: Identities,
        deadline: float,
        *,
        judge_again: Callable[[], Phase | None],
    ) -> None:
        """Prepare a search that begins no iteration after `deadline` (``clock.monotonic``).

        If a leak does not recur in it, `judge_again` discards the verdict and returns the phase that follows; None if
        the verdict stands.
        """
        self._judge_again = judge_again
        self._sampler, self.red, self._start = sampler, red, start
        self.culprit: Culprit | None = None
        self.wants_more = True
        # The search needs iterations that run to their end.
        run.ceiling.lift()
        if red.outcome == "unclosed" and red.traits.handles == "fds":
            # The collector has closed these descriptors already. Only the next iteration shows what they point to.
            sampler.instruments.watch.name_released(True)
        self._at_red = take_identities()
        folder = sampler.instruments.folders.get(red.resource)
        self._entries = group(folder.kinds()) if folder is not None else ()
        innocent = run.innocent.innocent_owners()
        self._search = CauseSearch(sampler, red, sampler.settling.seconds_per_iteration(), deadline, innocent)

    def begin(self) -> Phase:
        """Prepare the next iteration of the search, if it wants another."""
        self.wants_more = self._search.iteration_done()
        if self.wants_more:
            return self
        if self.red.outcome == "leak" and not self._search.recurred and (following := self._judge_again()) is not None:
            self._search.end(())
            return following
        self.end()
        return self

    def iteration_done(self) -> Phase:
        following = self.begin()
        # One iteration is enough to name what the collector releases.
        self._sampler.instruments.watch.name_released(False)
        return following

    def end(self) -> None:
        if self.culprit is None:
            self.culprit = self._search.end(self.held().get(self.red.resource, ()))

    def held(self) -> Mapping[str, tuple[Held, ...]]:
        """List the handles (descriptors, threads, files ...) that were new at the verdict, by resource.

        If the verdict is about memory or objects, list for it what was created during the search and still exists.
        """
        held = survivors_of(self._sampler, self.red, self._start, self._at_red)
        if found := self._search.kinds or self._entries:
            held[self.red.resource] = found
        return held


def survivors_of(sampler: Sampler, red: Verdict, start: Identities, now: Identities) -> dict[str, tuple[Held, ...]]:
    """List the handles that exist now and did not at the start, by resource."""
    # Libraries map memory too, so mappings are listed only if the verdict is about them.
    held = {
        name: kinds
        for name, kinds in survivors(start, now).items()
        if name == red.resource or (not find_resource(name).is_memory and sampler.samples.state(name) == "growing")
    }
    if red.resource == RESIDENT and (grown := sampler.samples.grown_children()):
        more = {pid: format_amount(by, red.traits.unit) for pid, by in sampler.samples.children().items()}
        held[red.resource] = tuple(
            Held(now.children.get(pid, "ended"), 1, f"child {pid}, +{more[pid]}") for pid in grown
        )
    if sampler.instruments.watch.released_names:
        held[red.resource] = group_files(map(describe_target, sampler.instruments.watch.released_names.elements()))
    return held
