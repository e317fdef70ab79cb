"""The phases of a repetition: what each does after an iteration, and which phase follows.

`WarmUp` and `LastWarmUp` precede the start level. `Screen` judges a test by a few iterations,
`Measure` in full, and `Fill` repeats it until a thread of the background keeps up. `EarlySearch`
looks for the cause of growth that is not judged yet, `Search` for that of a red (failing) verdict.
`Ended` and `Judged` want no iteration.

A phase that another one follows is released before that begins, because what it holds would be part
of the start level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_leakcheck.attribution.handles import Identities, find_fullest, take_identities
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge import conclude_finding
from pytest_leakcheck.judge.growth import FIRST_LOOK, looks
from pytest_leakcheck.judge.judge_series import judge_known
from pytest_leakcheck.judge.provenance import qualify
from pytest_leakcheck.judge.screening import (
    AT_REST,
    ITERATIONS,
    MIDDLE,
    SECOND_LOOK,
    at_rest,
    deserve_second_look,
    find_risen,
    screen,
)
from pytest_leakcheck.model.culprit import Culprit, Remainder
from pytest_leakcheck.model.finding import RED, Verdict
from pytest_leakcheck.model.recording import Fullest, Series
from pytest_leakcheck.model.resources import DESCRIPTORS, HEAP, OBJECTS, RESIDENT, find_resource
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.ray_counters import SHARED_WITH_RAY, find_core_worker
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.bounded_caches import KnownCaches
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.resource_judge import ResourceJudge, StartAgain, find_provenance
from pytest_leakcheck.runner.sampler import Sampler

if TYPE_CHECKING:
    from pytest_leakcheck.runner.diagnosis import CauseSearch

# Share of ``max_time`` that the search for a cause may always take, even if the test has used up
# its time.
_SEARCH_SHARE: Final = 0.2


class Phase:
    """What a repetition does at present.

    This is no abstract base class: those keep weak references to each class that `isinstance`
    compares with them.

    Attributes:
        follows: The phases that may follow, by name.
    """

    follows: ClassVar[tuple[str, ...]]

    def begin(self) -> Phase:
        """Prepare the first iteration; return the phase that it belongs to."""
        return self

    def iteration_done(self) -> Phase:
        """Process the end of an iteration; return the phase that the next one belongs to."""
        raise NotImplementedError

    def warm_up_again(self) -> Phase:
        """Return the phase in which the iteration that has begun is part of the warm-up."""
        return self

    def stop(self, why: str) -> Ended:
        """Judge what was read so far, without a search; end one that has begun, for this reason."""
        del why
        return self.end()

    def end(self) -> Ended:
        """Return the last phase, with what is known by now."""
        raise NotImplementedError


class Ended(Phase):
    """No iteration follows, and nothing was measured.

    Attributes:
        culprit: The cause of a red verdict, if it was searched for.
    """

    follows = ()
    culprit: Culprit | None = None

    def iteration_done(self) -> Phase:
        return self

    def end(self) -> Ended:
        return self

    def held(self) -> Mapping[str, tuple[Remainder, ...]]:
        """List what is new and still exists, by resource; empty without a red verdict."""
        return {}

    def fullest(self) -> Fullest | None:
        """Return the child that first reaches its limit; None if that is not what is red."""
        return None


class Judged(Ended):
    """No iteration follows, and the verdicts are those of the run."""

    def __init__(self, trial: Trial, search: CauseSearch | None = None) -> None:
        """Take the search for the cause, if one had begun."""
        self._trial, self._search, red = trial, search, trial.run.verdicts.red
        self.culprit = search.culprit if search is not None and red is not None else None

    def held(self) -> Mapping[str, tuple[Remainder, ...]]:
        sampler, red = self._trial.sampler, self._trial.run.verdicts.red
        if sampler.samples.n < 1 or red is None:
            return {}
        if self._search is not None:
            return self._search.held()
        from pytest_leakcheck.runner.diagnosis import survivors_of

        return survivors_of(sampler, red, self._trial.identities, take_identities())

    def fullest(self) -> Fullest | None:
        sampler, red = self._trial.sampler, self._trial.run.verdicts.red
        if (
            red is None
            or red.resource != DESCRIPTORS
            or sampler.samples.n < 1
            or not sampler.children
        ):
            return None
        now = self._search.at_red if self._search is not None else take_identities()
        return find_fullest(self._trial.identities, now)


class WarmUp(Phase):
    """The iterations before the last one of the warm-up."""

    follows = ("LastWarmUp", "Ended")

    def __init__(self, run: MeasurementRun, done: int) -> None:
        """Begin after this many iterations."""
        self._run, self._done = run, done

    def begin(self) -> Phase:
        return self._open_if_due()

    def iteration_done(self) -> Phase:
        self._done += 1
        self._run.warm_up_done(self._done)
        return self.end() if self._run.time.out_of_time else self._open_if_due()

    def _open_if_due(self) -> Phase:
        # The frozen objects and the garbage that the last iteration leaves behind are part of the
        # start level if the instruments are open by then.
        left = self._run.plan.effort.warmup - self._done
        return self if left > 1 else LastWarmUp(self._run, _open_instruments(self._run))

    def end(self) -> Ended:
        return Ended()


class LastWarmUp(Phase):
    """The last iteration of the warm-up, with open instruments."""

    follows = ("Screen", "Measure", "Judged")

    def __init__(self, run: MeasurementRun, following: Phase) -> None:
        """Take the phase that begins with the start level."""
        self._run, self.following = run, following

    def iteration_done(self) -> Phase:
        self._run.warm_up_done(self._run.plan.effort.warmup)
        return self.following

    def end(self) -> Ended:
        return self.following.end()


class Trial:
    """What the phases share once the instruments are open.

    Attributes:
        diagnoses: Whether causes are searched for.
        identities: The handles that existed at the start level.
        searched: By resource, the search that came before a verdict; None where an innocent cause
            was found instead.
    """

    diagnoses: ClassVar[bool] = True

    def __init__(self, run: MeasurementRun, sampler: Sampler) -> None:
        """Take instruments that are open."""
        self.run, self.sampler = run, sampler
        self.judge = ResourceJudge(run, sampler)
        self.identities: Identities
        self.searched: dict[str, CauseSearch | None] = {}

    def start(self, *, is_screen: bool = False) -> None:
        """Read the start level, and discard earlier readings."""
        run = self.run
        run.verdicts.take_all_back()
        if find_core_worker() is not None:
            # What Ray allocates here cannot be told from what the test does.
            budgets = run.plan.budgets
            own = [one for one in budgets if one.explicit or one.resource not in SHARED_WITH_RAY]
            # If nothing else is judged, the user has chosen that.
            run.plan = replace(run.plan, budgets=tuple(own) or budgets)
        self.identities = take_identities()
        if not is_screen:
            run.innocent.start(self.identities)
        self._open_user_phases()
        # In a screen, a few blocks that the cache of this thread hands out would hide a leak of
        # memory.
        self.sampler.start(inf if is_screen else run.time.shortest, walks_frozen=not is_screen)
        run.phases.begin()

    def _open_user_phases(self) -> None:
        # In a separate frame, so that temporary objects are gone when the start level is read.
        sampler = self.sampler
        judged = (budget.resource for budget in self.run.plan.budgets)
        names = [name for name in judged if find_resource(name).in_phases]
        self.run.phases.open(
            {name: sampler.instruments.counter(name) for name in names if sampler.samples.has(name)}
        )

    def read_row(self, look: int, *, is_screen: bool = False) -> bool:
        """Read all counters, and return whether to judge them: at row `look` or out of time."""
        run, sampler = self.run, self.sampler
        # In time for the search for a cause, which also needs room.
        due = min(look, FIRST_LOOK) if run.room.short else look
        sampler.read(sampler.samples.n + 1 >= due)
        if not is_screen:
            sampler.collect_earlier_garbage()
        reported = self.count_iteration()
        if sampler.samples.n >= due or run.time.out_of_time:
            return True
        if reported:
            sampler.subtract_own_work()
        return False

    def count_iteration(self) -> bool:
        """Begin an iteration for clocks and user phases; return whether progress was reported."""
        run = self.run
        run.phases.begin()
        run.time.iteration_done()
        return run.progress.report(self.sampler.samples, run.plan.budgets, run.verdicts.given)

    def search(self, growth: Verdict, deadline: float, *, among_known: bool = False) -> CauseSearch:
        """Prepare a search for the cause of growth; see `CauseSearch`."""
        # Imported only here: it is a third of the package, and most tests are green.
        from pytest_leakcheck.runner.diagnosis import CauseSearch

        run = self.run
        run.progress.report(self.sampler.samples, run.plan.budgets, run.verdicts.given, "naming")
        return CauseSearch(
            run, self.sampler, growth, self.identities, deadline, among_known=among_known
        )

    def note_pruned(self, search: CauseSearch, *, has_bound: bool = False) -> bool:
        """Note memory in a container that the program prunes; return whether it may fill further.

        With `has_bound`, only if it is known with how many entries that ends.
        """
        pruned = search.pruned
        if (
            pruned is None
            or not find_resource(search.resource).is_memory
            or (has_bound and not pruned.eviction.bound)
        ):
            return False
        return self.run.innocent.owners.add_pruned(pruned)

    def set_aside(self, since: float) -> None:
        """Do not count the time since then (``clock.monotonic``) as one in which growth may end."""
        self.run.time.set_aside(clock.monotonic() - since)
        self.run.time.resume()

    def conclude(self, search: CauseSearch | None = None, why: str = "") -> Judged:
        """Note for later tests what was found, and return the last phase.

        `why` says why nothing more was found.
        """
        run, red = self.run, self.run.verdicts.red
        if search is not None:
            search.end(why)
            if red is not None:
                if search.recalled:
                    run.verdicts.give(conclude_finding.recalled(red, search.recalled))
                run.causes.add(run.plan.test, red.outcome, search.culprit, search.each)
        run.innocent.owners.keep()
        return Judged(self, search)


class Screen(Phase):
    """Judges a test by its first iterations, or takes them as warm-up for a full judgement."""

    follows = ("LastWarmUp", "Measure", "EarlySearch", "Judged")

    def __init__(self, trial: Trial, caches: KnownCaches) -> None:
        """Take the caches that may explain growth."""
        self._trial = trial
        self._caches = caches
        self._next_look = AT_REST

    def begin(self) -> Phase:
        self._next_look = AT_REST
        self._trial.start(is_screen=True)
        return self.end() if self._trial.run.time.out_of_time else self

    def warm_up_again(self) -> Phase:
        return LastWarmUp(self._trial.run, self)

    def iteration_done(self) -> Phase:
        if not self._trial.read_row(self._next_look, is_screen=True):
            return self
        if self._trial.run.time.out_of_time:
            self._leave()
            return Measure(self._trial, is_last=True)
        return self._look()

    def stop(self, why: str) -> Ended:
        if self._trial.sampler.samples.n < 1:
            return self.end()
        self._leave()
        return Measure(self._trial).stop(why)

    def end(self) -> Ended:
        return Judged(self._trial)

    def _look(self) -> Phase:
        trial = self._trial
        sampler, n = trial.sampler, trial.sampler.samples.n
        if n == AT_REST:
            self._give(at_rest(self._judged(0)))
            self._next_look = AT_REST + MIDDLE
            return self.end() if trial.run.verdicts.given else self
        if n == AT_REST + MIDDLE:
            self._next_look = AT_REST + ITERATIONS
            if self._caches.note():
                sampler.subtract_own_work()
            return self
        looks_again = self._judge()
        if trial.run.verdicts.given:
            return self.end()
        if looks_again:
            self._next_look = AT_REST + SECOND_LOOK
            self._caches.note()
            sampler.subtract_own_work()
            return self
        known = self._judge_as_known()
        self._leave()
        return (
            Measure(trial)
            if known is None
            else EarlySearch(trial, known, known, clock.monotonic(), among_known=True)
        )

    def _leave(self) -> None:
        # If they went after the next freeze, it would be as if the test had replaced objects.
        del self._caches
        self._watch_innocent_growth()

    def _watch_innocent_growth(self) -> None:
        """Record what may explain growth.

        To walk all objects for that would take half of the time of a screen.
        """
        run, sampler = self._trial.run, self._trial.sampler
        watch = sampler.instruments.watch
        if watch.enabled:
            watch.thaw()
        run.innocent.watch()
        run.innocent.start(self._trial.identities)
        if watch.enabled:
            watch.refreeze()
            sampler.frozen.note()

    def _give(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            provenance = find_provenance(self._trial.sampler, verdict.resource)
            self._trial.run.verdicts.give(qualify(verdict, provenance))

    def _judge(self) -> bool:
        """Give the verdicts, or return whether a second look may give them."""
        # In a separate frame, as `_is_enough`.
        judged = self._judged(AT_REST)
        held: Mapping[str, int] = {}
        verdicts = screen(judged)
        if not verdicts:
            held = self._caches.gains()
            verdicts = screen(judged, held)
        self._give(verdicts)
        return not verdicts and deserve_second_look(find_risen(judged, held))

    def _judge_as_known(self) -> Verdict | None:
        """Return the verdict on what has grown if its cause is a known one, and give the others."""
        trial, run, judged = self._trial, self._trial.run, self._judged(AT_REST)
        series = {one.resource: one for one, _budget in find_risen(judged)}
        known = [
            budget
            for budget in run.plan.budgets
            if budget.resource in series and run.causes.knows(budget.resource)
        ]
        if not known or not trial.diagnoses:
            return None
        first = trial.judge.in_order(known)[0]
        verdict = judge_known(series[first.resource], first)
        if verdict is None:
            return None
        # One that is not that of the test is doubted once it is judged in full.
        qualified = qualify(verdict, find_provenance(trial.sampler, verdict.resource))
        if qualified.outcome != verdict.outcome:
            return None
        self._give(screen([(one, budget) for one, budget in judged if one.resource not in series]))
        return qualified

    def _judged(self, since: int) -> list[tuple[Series, Budget]]:
        budgets, samples = self._trial.run.plan.budgets, self._trial.sampler.samples
        return [
            (samples.series(budget.resource).since(since), budget)
            for budget in budgets
            if samples.has(budget.resource)
        ]


class Fill(Phase):
    """Repeats the test, without rows, until a thread that releases handles late keeps up."""

    follows = ("Measure", "Judged")

    def __init__(self, trial: Trial) -> None:
        """Begin the series of readings again."""
        self._trial = trial

    def begin(self) -> Phase:
        self._trial.start()
        return self.end() if self._trial.run.time.out_of_time else self

    def iteration_done(self) -> Phase:
        trial = self._trial
        trial.sampler.fill()
        trial.count_iteration()
        if trial.run.time.out_of_time:
            return Measure(trial, is_last=True)
        return Measure(trial) if trial.sampler.settling.has_filled() else self

    def end(self) -> Ended:
        return self._trial.conclude()


class Measure(Phase):
    """Reads the counters after each iteration; judges them at each look (after 10, 13, 17, ...)."""

    follows = ("Measure", "Fill", "EarlySearch", "Search", "Judged")

    def __init__(self, trial: Trial, *, is_last: bool = False) -> None:
        """Begin the series of readings again or, at the last look, judge what was read so far."""
        self._trial = trial
        self._is_last = is_last
        self._looks = looks(trial.run.plan.effort.most)
        self._next_look = next(self._looks)

    def begin(self) -> Phase:
        if self._is_last:
            return self._look(final=True)
        self._trial.start()
        return self.end() if self._trial.run.time.out_of_time else self

    def iteration_done(self) -> Phase:
        if not self._trial.read_row(self._next_look):
            return self
        return self._look(final=self._trial.run.time.out_of_time or self._is_enough())

    def stop(self, why: str) -> Ended:
        del why
        if self._trial.sampler.samples.n > 0:
            self._trial.sampler.read(True)
            self._trial.run.time.iteration_done()
            self.judge_last()
        return self.end()

    def end(self) -> Ended:
        return self._trial.conclude()

    def judge_last(self) -> None:
        """Judge what was read so far, without a search."""
        if isinstance(self._judge_all(final=True), StartAgain):
            self._trial.start()

    def _is_enough(self) -> bool:
        # In a separate frame: a number that is alive when the harness's own work is read would be
        # part of it.
        run, samples = self._trial.run, self._trial.sampler.samples
        if samples.retains_much():
            return run.plan.effort.is_enough(samples.n, inf)
        return (
            run.plan.effort.is_enough(samples.n, run.time.measured_seconds)
            and not self._can_decide_cache()
        )

    def _can_decide_cache(self) -> bool:
        """Return whether there is time to see whether what may be a cache has a bound."""
        run, n = self._trial.run, self._trial.sampler.samples.n
        gained, left = run.innocent.owners.count_undecided()
        more = left * n / max(1, gained)
        ends = clock.monotonic() + more * self._trial.sampler.settling.seconds_per_iteration()
        return left > 0 and n + more < run.plan.effort.most and ends < run.time.deadline

    def _look(self, *, final: bool) -> Phase:
        goes_on = self._judge_all(final=final)
        if isinstance(goes_on, StartAgain):
            return self._again()
        if not goes_on:
            return self._search()
        following: Phase = self
        if (early := self._trial.judge.early) is not None and self._may_search_early(early):
            following = self._search_early(early)
        if following is self:
            self._trial.sampler.subtract_own_work()
        return following

    def _again(self) -> Phase:
        return (
            Fill(self._trial) if self._trial.sampler.settling.is_filling else Measure(self._trial)
        )

    def _judge_all(self, *, final: bool) -> bool | StartAgain:
        """Judge what has enough readings or has grown since its ``ok``; return whether to go on."""
        trial, run, samples = self._trial, self._trial.run, self._trial.sampler.samples
        if samples.n >= self._next_look:
            self._next_look = next(self._looks, run.plan.effort.most)
        trial.judge.early = None
        for budget in trial.judge.in_order(run.plan.budgets):
            name = budget.resource
            earlier = run.verdicts.given.get(name)
            if not samples.has(name) or (earlier and not trial.judge.doubts(budget, earlier)):
                continue
            run.verdicts.take_back(name)
            decision = trial.judge.decide(budget, final=final)
            if isinstance(decision, StartAgain):
                trial.judge.early = None
                return decision
            if decision is None:
                continue
            if decision.outcome not in RED and run.plan.effort.iterations and not final:
                # If the user has set the number of iterations, an `ok` and its floor (the smallest
                # leak that would have shown) are based on all of them.
                continue
            if run.verdicts.give(decision).outcome in RED and not self._is_open():
                return False
        return not final and self._is_open()

    def _is_open(self) -> bool:
        """Return whether a verdict is missing; beside a red one, one that the user asked for.

        Only a red one that fails no test takes no verdict away from an explicit budget.
        """
        run, samples, red = (
            self._trial.run,
            self._trial.sampler.samples,
            self._trial.run.verdicts.red,
        )
        if red is not None and not red.tolerated:
            return False
        missing = (one for one in run.plan.budgets if one.resource not in run.verdicts.given)
        return any(samples.has(one.resource) and (one.explicit or red is None) for one in missing)

    def _search(self) -> Phase:
        """Begin the search for the cause of a red verdict, if there is one and it is wanted."""
        trial, run, red = self._trial, self._trial.run, self._trial.run.verdicts.red
        if red is None or not trial.diagnoses:
            return self.end()
        # A test that has used all of its time gets a little more.
        deadline = max(
            run.time.deadline, clock.monotonic() + _SEARCH_SHARE * run.plan.effort.max_time
        )
        search = trial.searched.get(red.resource)
        if search is None or not search.has_found:
            search = trial.search(red, deadline)
        else:
            search.confirm(red, trial.identities, deadline)
        return Search(trial, search)

    def _may_search_early(self, growth: Verdict) -> bool:
        """Return whether to search for the cause of growth now, though it may yet end by itself."""
        # The more of it there is, the longer it takes to list. A number of iterations that the user
        # has set is not interrupted.
        trial, run = self._trial, self._trial.run
        is_free = not run.plan.effort.iterations and not run.ceiling.in_force
        return trial.diagnoses and is_free and growth.resource not in trial.searched

    def _search_early(self, growth: Verdict) -> Phase:
        trial, run, name = self._trial, self._trial.run, growth.resource
        since, unbounded = clock.monotonic(), None
        if not growth.traits.ends_by_itself or run.causes.knows(name):
            # To wait whether those end takes as long as to wait whether they are a pool, unless the
            # line tells that.
            (budget,) = (one for one in run.plan.budgets if one.resource == name)
            decision = trial.judge.decide(budget, final=False, unbounded=True)
            if isinstance(decision, StartAgain):
                return self._again()
            if decision is None or not decision.is_growth:
                trial.searched[name] = None
                trial.set_aside(since)
                return self
            unbounded = decision
        return EarlySearch(trial, growth, unbounded, since)


class Search(Phase):
    """Searches for the cause of a red verdict, which may be withdrawn once."""

    follows = ("Measure", "Judged")

    def __init__(self, trial: Trial, search: CauseSearch) -> None:
        """Take a search that is prepared."""
        self._trial, self._cause = trial, search

    def begin(self) -> Phase:
        return self._go_on()

    def iteration_done(self) -> Phase:
        following = self._go_on()
        # One iteration is enough to name what the collector releases.
        self._trial.sampler.instruments.watch.name_released(False)
        return following

    def stop(self, why: str) -> Ended:
        return self._trial.conclude(self._cause, why)

    def end(self) -> Ended:
        return self._trial.conclude(self._cause)

    def _go_on(self) -> Phase:
        return self if self._cause.iteration_done() else self._follow()

    def _follow(self) -> Phase:
        """Return the phase that follows the end of the search."""
        run, cause = self._trial.run, self._cause
        if run.ceiling.in_force:
            return self.end()
        if self._trial.note_pruned(cause, has_bound=True):
            run.time.resume()
            return self._wait()
        doubted = run.verdicts.can_withdraw and (not cause.recurred or self._is_doubtful())
        return self._withdraw() if doubted else self.end()

    def _wait(self) -> Phase:
        """Begin the series again to see if growth goes on; without time, judge what was read."""
        trial, run = self._trial, self._trial.run
        run.verdicts.take_all_back()
        if run.time.out_of_time or run.room.short:
            return Measure(trial, is_last=True)
        with run.innocent.noting_caches():
            self._cause.collect_own()
        trial.sampler.refreeze()
        trial.judge.carry_levels()
        return Measure(trial)

    def _is_doubtful(self) -> bool:
        """Return whether memory of unknown line and owner grows, with time to judge again."""
        # The caches of a library settle late, and what fills them is seen nowhere.
        run, cause, red = self._trial.run, self._cause, self._trial.run.verdicts.red
        has_time = (
            run.time.seconds < run.plan.effort.max_time / 2 and not run.plan.effort.iterations
        )
        grows = red is not None and red.is_growth and red.traits.exhausts == "memory"
        return has_time and grows and not cause.has_found

    def _withdraw(self) -> Phase:
        """Judge again once: a leak that did not recur in the search ended, or depends on time.

        One that is doubtful stands unless it is shown to have ended.
        """
        trial, run, red = self._trial, self._trial.run, self._trial.run.verdicts.red
        assert red is not None
        instead = red if self._cause.recurred else conclude_finding.did_not_recur(red)
        trial.searched.clear()
        run.time.resume()
        if run.time.out_of_time:
            run.verdicts.give(instead)
            return trial.conclude()
        run.verdicts.withdraw(instead)
        trial.judge.carry_levels()
        trial.sampler.refreeze()
        return Measure(trial)


class EarlySearch(Search):
    """Searches for the cause of growth that may yet end; an unbounded cause makes it a leak."""

    def __init__(
        self,
        trial: Trial,
        growth: Verdict,
        unbounded: Verdict | None,
        since: float,
        *,
        among_known: bool = False,
    ) -> None:
        """Begin a search, whose time does not count from `since` on.

        `unbounded` is the verdict if the growth turns out to be neither a pool nor a cache; None if
        that is not yet known.
        """
        super().__init__(
            trial, trial.search(growth, trial.run.time.deadline, among_known=among_known)
        )
        self._unbounded, self._since = unbounded, since

    def stop(self, why: str) -> Ended:
        Measure(self._trial).judge_last()
        return super().stop(why)

    def _follow(self) -> Phase:
        """End with the verdict, or begin the series again to see whether the growth goes on."""
        trial, run, cause = self._trial, self._trial.run, self._cause
        unbounded = self._unbounded
        if unbounded is not None and (cause.is_unbounded or cause.is_listed(unbounded)):
            run.verdicts.give(unbounded)
            return self.end()
        if not cause.among_known:
            trial.searched[cause.resource] = cause
        trial.set_aside(self._since)
        trial.note_pruned(cause)
        return self._wait()


def _open_instruments(run: MeasurementRun) -> Screen | Measure:
    """Open the instruments, and return the phase that begins with the start level."""
    run.limits = read_limits()
    caches = KnownCaches() if run.plan.screen else None
    if caches is None:
        run.innocent.watch()
    # These are read in every repetition, to report them next to a failing verdict ("also growing").
    wanted = {HEAP, OBJECTS, *(budget.resource for budget in run.plan.budgets)}
    allowed = {budget.resource: budget.per_iteration for budget in run.plan.budgets}
    # A ceiling applies to the garbage of earlier tests, too.
    walk_now = bool(run.plan.ceiling.sizes)
    # The instruments can be opened even if few descriptors are left.
    with room_for_descriptors():
        sampler = run.sampler = Sampler(
            wanted, run.gauges, run.plan.effort.most + 2, allowed, walk_now=walk_now
        )
    sampler.settling.deadline = run.time.deadline
    named = {budget.resource for budget in run.plan.budgets if budget.explicit}
    if sampler.instruments.resident is not None:
        sampler.instruments.resident.named = RESIDENT in named
    for folder in sampler.instruments.folders.values():
        folder.named = folder.resource in named
    device = sampler.instruments.device
    if device is not None and device.capacity:
        run.limits[device.resource] = device.capacity
    run.ceiling.impose_on(device)
    run.limits |= run.ceiling.in_force
    trial = Trial(run, sampler)
    return Measure(trial) if caches is None else Screen(trial, caches)
