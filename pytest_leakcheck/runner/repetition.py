"""Measure and judge work that the caller repeats: take a `Plan`, return a `Recording` and verdicts.

The caller reports the end of each iteration; `Repetition` answers whether it wants another. The pytest protocol,
``steps()`` and `measure` all use it, so tests, loops and scripts are judged in the same way. After the warm-up,
`Measuring` reads the counters; after a red (failing) verdict, `CauseSearch` finds the cause. A block that runs once
shows no trend: `measure_block` compares each rise with the allowed level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, ClassVar, Final

from pytest_leakcheck.attribution.handles import find_fullest, group, survivors, take_identities
from pytest_leakcheck.attribution.tracing.traced_children import prepare_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge import conclude_finding
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.judge.growth import FIRST_LOOK, looks
from pytest_leakcheck.judge.judge_series import judge_known, judge_once
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
from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.finding import RED, Verdict
from pytest_leakcheck.model.recording import Fullest, Recording, Series, Stopped
from pytest_leakcheck.model.resources import DESCRIPTORS, HEAP, OBJECTS, RESIDENT, find_resource
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.bounded_caches import KnownCaches
from pytest_leakcheck.runner.environment import ForkGuard, describe_environment
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from pytest_leakcheck.runner.known_causes import KnownCauses
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.resource_judge import ResourceJudge, StartAgain, find_provenance
from pytest_leakcheck.runner.room import Used
from pytest_leakcheck.runner.sampler import Sampler

if TYPE_CHECKING:
    from pytest_leakcheck.runner.diagnosis import CauseSearch

# Share of ``max_time`` that the diagnosis of a red verdict may always take, even if the test has used up its time.
_DIAGNOSIS_SHARE: Final = 0.2


class Repetition:
    """One plan on its way through warm-up, measurement and diagnosis. Use it once: `begin`, `iteration_done` ..., `end`."""

    def __init__(
        self,
        plan: Plan,
        gauges: dict[str, Callable[[], int]] | None = None,
        left: Mapping[str, str] | None = None,
        *,
        causes: KnownCauses | None = None,
        has_run: bool = False,
    ) -> None:
        """Start the clock.

        The user's `gauges` are read after each iteration; more may be added until the start level is read. `left` is
        the earlier test that left a thread running, by the thread's number. `causes` are those of earlier tests; that of
        this one is added. If the work `has_run` in this process, that is the warm-up of a screen.
        """
        self._run = MeasurementRun(plan, gauges if gauges is not None else {}, InnocentGrowth(left or {}), causes)
        self._warmed_up = int(has_run and plan.screen)
        self._measuring: Measuring | None = None
        self._fork_guard = ForkGuard()

    def follow(self, gauges: Mapping[str, Callable[[], int]], budgets: tuple[Budget, ...]) -> None:
        """Add gauges and their budgets, after the first iteration."""
        run = self._run
        run.gauges.update(gauges)
        run.plan = replace(run.plan, budgets=(*budgets, *run.plan.budgets))
        # A start level that was read before has none of them, so this iteration was the warm-up.
        self._warmed_up = min(self._warmed_up, run.plan.effort.warmup - 1)

    def checkpoint(self, label: str) -> None:
        """End a phase of the test within the current iteration, and name it."""
        if self._run.red is None:
            self._run.phases.end(label)

    def begin(self) -> None:
        # A script has no earlier moment; pytest prepares them when the session begins.
        prepare_children()
        self._run.ceiling.impose()
        if self.is_warm or self._run.plan.effort.warmup == 1:
            self._measuring = self._open_instruments()

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is over."""
        return self._warmed_up == self._run.plan.effort.warmup

    def start(self) -> None:
        """Read the start level before the first iteration, if `begin` has found that the warm-up is over."""
        assert self._measuring is not None
        self._run.room.iteration_done()
        self._measuring.start()

    def iteration_done(self) -> bool:
        """Process the end of an iteration, once the test's own objects are gone; return whether another is wanted."""
        self._fork_guard.exit_if_forked()
        run = self._run
        # A ceiling is there to be reached.
        if not run.plan.ceiling.sizes and (used := run.room.iteration_done()) is not None:
            self._stop_for_room(used)
            return False
        if self._measuring is not None and self.is_warm:
            return self._measuring.iteration_done()
        self._warmed_up += 1
        run.time.iteration_done()
        run.progress.report_warm_up(self._warmed_up, run.plan.effort.warmup)
        if self._warmed_up == run.plan.effort.warmup - 1:
            # Open the instruments before the last warm-up iteration. The frozen objects and the garbage that this
            # iteration leaves behind are then part of the start level.
            self._measuring = self._open_instruments()
        if self._measuring is not None and self.is_warm:
            return self._measuring.start()
        return not run.time.out_of_time

    def _stop_for_room(self, used: Used) -> None:
        """Judge by the iterations so far, or end the search for a cause: there is no room for more."""
        run = self._run
        if self._measuring is not None:
            self._measuring.stop(f"there was no room for more iterations: {used}")
        if run.red is None:
            run.verdicts.clear()
            run.verdicts[used.resource] = conclude_finding.no_room_left(run.plan.budgets, used.resource, str(used))

    @property
    def searched(self) -> str:
        """The resource of the red verdict, whose cause is searched for; empty before there is one."""
        return self._run.red.resource if self._run.red is not None else ""

    def end(self, stopped: Stopped | None = None, error: BaseException | None = None) -> Result:
        """Release everything and return what was found; `stopped` is None if this object decided to stop.

        If the last iteration ended in an `error` because descriptors or memory ran out after growth, that is a leak.
        """
        run = self._run
        self._fork_guard.exit_if_forked(int(stopped is not None))
        run.ceiling.lift()
        explained = error is not None and run.judge_exhaustion(error)
        result = self._end(stopped)
        if error is None or not explained or run.red is None:
            return result
        # Imported only here: most tests do not fail.
        from pytest_leakcheck.runner.diagnosis import name_failed_line

        return replace(result, culprit=name_failed_line(run.red.resource, error))

    def _end(self, stopped: Stopped | None) -> Result:
        run, sampler, measuring = self._run, self._run.sampler, self._measuring
        plan = run.plan
        if sampler is None or measuring is None:
            verdicts = conclude_finding.without_ceiling(run.verdicts.values(), run.ceiling.missing)
            return Result(plan, self._recording(None, stopped or "time"), verdicts, {})
        n = sampler.samples.n
        if stopped is None and n == 0 and not run.verdicts:
            nothing = conclude_finding.no_time_left(
                plan.budgets, plan.effort, run.time.seconds, restarted=run.innocent.restarts > 0
            )
            run.verdicts |= {verdict.resource: verdict for verdict in nothing}
        measuring.end()
        if stopped is None:
            stopped = "time" if run.time.out_of_time else "iterations" if n >= plan.effort.most else "judged"
        verdicts = (*run.verdicts.values(), *conclude_finding.missing_verdicts(plan, sampler.instruments.missing))
        verdicts = conclude_finding.without_ceiling(verdicts, run.ceiling.missing)
        recording = replace(self._recording(sampler, stopped), fullest=measuring.fullest())
        result = Result(plan, recording, verdicts, measuring.held(), measuring.culprit)
        sampler.close()
        run.sampler = None
        return result

    def abandon(self) -> None:
        """Release everything after an error or an interrupt, without a result; a step that fails skips no other."""
        self._fork_guard.exit_if_forked(1)
        self._run.ceiling.lift()
        sampler, self._run.sampler = self._run.sampler, None
        if sampler is not None:
            with suppress(Exception):
                if self._measuring is not None:
                    self._measuring.end()
            with suppress(Exception):
                sampler.close()

    def _recording(self, sampler: Sampler | None, stopped: Stopped) -> Recording:
        run, device = self._run, sampler.instruments.device if sampler else None
        return Recording(
            test=run.plan.test,
            series=sampler.samples.all_series() if sampler else (),
            warmup=run.plan.effort.warmup,
            seconds=round(run.time.seconds, 6),
            collector="off" if sampler and not sampler.instruments.watch.enabled else "on",
            stopped=stopped,
            limits=run.limits if sampler else {},
            unavailable=sampler.instruments.reasons() if sampler else {},
            environment={**describe_environment(device.name if device else ""), **run.plan.process},
            phases=run.phases.take(),
        )

    def _open_instruments(self) -> Measuring:
        run = self._run
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
            sampler = run.sampler = Sampler(wanted, run.gauges, run.plan.effort.most + 2, allowed, walk_now=walk_now)
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
        return Measuring(run, sampler, caches)


class Measuring:
    """Reads the counters after each iteration, and judges them at each look (iterations 10, 13, 17, ...).

    If `diagnoses` is on, it then searches for the cause of a red (failing) verdict.
    """

    diagnoses: ClassVar[bool] = True

    def __init__(self, run: MeasurementRun, sampler: Sampler, caches: KnownCaches | None) -> None:
        """Judge the test in full from the start if `caches`, which may explain growth in a screen, is None."""
        self._run = run
        self._sampler = sampler
        self._judge = ResourceJudge(run, sampler)
        self._caches = caches
        # The leak that was withdrawn because it did not recur.
        self._ended: Verdict | None = None
        self._recurred = False
        self._search: CauseSearch | None = None
        # The searches that came before a verdict, by resource; None where an innocent cause was found instead.
        self._early: dict[str, CauseSearch | None] = {}
        # The verdict on the growth whose cause is searched for early, if that turns out to be neither a pool nor a cache.
        self._if_unbounded: Verdict | None = None

    def start(self) -> bool:
        """Read the start level, discard earlier readings, and return whether an iteration is wanted."""
        run = self._run
        self._identities = take_identities()
        if self._caches is None:
            run.innocent.start(self._identities)
        self._looks = looks(run.plan.effort.most)
        self._next_look = AT_REST if self._caches is not None else next(self._looks)
        self._open_user_phases()
        wants_more = not run.time.out_of_time
        # In a screen, a few blocks that the cache of this thread hands out would hide a leak of memory.
        is_screen = self._caches is not None
        self._sampler.start(inf if is_screen else run.time.shortest, walks_frozen=not is_screen)
        run.phases.begin()
        return wants_more

    def _open_user_phases(self) -> None:
        # In a separate frame, so that temporary objects are gone when the start level is read.
        sampler = self._sampler
        judged = (budget.resource for budget in self._run.plan.budgets)
        names = [name for name in judged if find_resource(name).in_phases]
        self._run.phases.open({name: sampler.instruments.counter(name) for name in names if sampler.samples.has(name)})

    def iteration_done(self) -> bool:
        """Read all counters, and judge or continue the search; return whether another iteration is wanted."""
        if self._search is not None:
            wants_more = self._continue_search(self._search)
            # One iteration is enough to name what the collector releases.
            self._sampler.instruments.watch.name_released(False)
            return wants_more
        run, sampler = self._run, self._sampler
        # In time for the search for a cause, which also needs room.
        due = min(self._next_look, FIRST_LOOK) if run.room.short else self._next_look
        sampler.read(sampler.samples.n + 1 >= due)
        if self._caches is None:
            sampler.collect_earlier_garbage()
        run.phases.begin()
        run.time.iteration_done()
        reported = run.progress.report(sampler.samples, run.plan.budgets, run.verdicts)
        out_of_time = run.time.out_of_time
        if sampler.samples.n < due and not out_of_time:
            if reported:
                sampler.subtract_own_work()
            return True
        if self._caches is not None:
            if not out_of_time:
                return self._screen(self._caches)
            self._prepare_looks()
        if self._judge_all(final=out_of_time or self._is_enough()):
            if (early := self._judge.early) is not None and self._may_search_early(early):
                return self._search_early(early)
            sampler.subtract_own_work()
            return True
        return self._diagnose()

    def stop(self, why: str) -> None:
        """Judge with what was read so far, without a search; end one that has begun, for this reason."""
        run = self._run
        if self._search is not None:
            if run.red is None:
                self._judge_all(final=True)
            if run.red is not None:
                self._search.end(why)
        elif self._sampler.samples.n > 0:
            self._sampler.read(True)
            run.time.iteration_done()
            if self._caches is not None:
                self._prepare_looks()
            self._judge_all(final=True)

    @property
    def culprit(self) -> Culprit | None:
        """The cause of a red verdict, once the search for it has ended."""
        return self._search.culprit if self._search is not None and self._run.red is not None else None

    def held(self) -> Mapping[str, tuple[Held, ...]]:
        """List what is new and still exists, by resource; empty without a red verdict."""
        red = self._run.red
        if self._sampler.samples.n < 1 or red is None:
            return {}
        if self._search is not None:
            return self._search.held()
        from pytest_leakcheck.runner.diagnosis import survivors_of

        return survivors_of(self._sampler, red, self._identities, take_identities())

    def fullest(self) -> Fullest | None:
        """Return the child process that is first to reach its limit; None if that is not what is red."""
        red = self._run.red
        if red is None or red.resource != DESCRIPTORS or self._sampler.samples.n < 1 or not self._sampler.children:
            return None
        now = self._search.at_red if self._search is not None else take_identities()
        return find_fullest(self._identities, now)

    def end(self) -> None:
        """End the search, before the instruments are closed. No iteration follows, even if one was wanted."""
        if self._search is not None:
            self._search.end()
            if (red := self._run.red) is not None:
                if self._search.recalled:
                    self._run.verdicts[red.resource] = conclude_finding.recalled(red, self._search.recalled)
                self._run.causes.add(self._run.plan.test, red.outcome, self._search.culprit, self._search.each)
        if self._caches is None:
            self._run.innocent.owners.keep()

    def _is_enough(self) -> bool:
        # In a separate frame: a number that is alive when the harness's own work is read would be part of it.
        run = self._run
        seconds = inf if self._judge.retains_much() else run.time.measured_seconds
        return run.plan.effort.is_enough(self._sampler.samples.n, seconds)

    def _screen(self, caches: KnownCaches) -> bool:
        """Judge the test by its first iterations. If that is impossible, they are warm-up, and it is judged in full."""
        sampler, n = self._sampler, self._sampler.samples.n
        if n == AT_REST:
            self._note_verdicts(at_rest(self._judged(0)))
            self._next_look = AT_REST + MIDDLE
            return not self._run.verdicts
        if n == AT_REST + MIDDLE:
            self._next_look = AT_REST + ITERATIONS
            if caches.note():
                sampler.subtract_own_work()
            return True
        looks_again = self._judge_screen(caches)
        if self._run.verdicts:
            return False
        if looks_again:
            self._next_look = AT_REST + SECOND_LOOK
            caches.note()
            sampler.subtract_own_work()
            return True
        known = self._may_be_known()
        self._prepare_looks()
        # It would go only after the start level is read, as if the test had replaced objects.
        del caches
        if known is None:
            return self.start()
        self._searching_since, self._if_unbounded = clock.monotonic(), known
        return self._begin_search(known, self._run.time.deadline, among_known=True)

    def _may_be_known(self) -> Verdict | None:
        """Return the verdict on what the screen has seen grow if its cause is a known one, and note the others."""
        run, judged = self._run, self._judged(AT_REST)
        series = {one.resource: one for one, _budget in find_risen(judged)}
        known = [one for one in run.plan.budgets if one.resource in series and run.causes.knows(one.resource)]
        if not known or not self.diagnoses:
            return None
        first = self._judge.in_order(known)[0]
        verdict = judge_known(series[first.resource], first)
        if verdict is not None:
            self._note_verdicts(screen([(one, budget) for one, budget in judged if one.resource not in series]))
        return verdict

    def _judge_screen(self, caches: KnownCaches) -> bool:
        """Note the verdicts, or return whether a second look may give them; in a separate frame, as `_is_enough`."""
        judged = self._judged(AT_REST)
        held: Mapping[str, int] = {}
        verdicts = screen(judged)
        if not verdicts:
            held = caches.gains()
            verdicts = screen(judged, held)
        self._note_verdicts(verdicts)
        return not verdicts and deserve_second_look(find_risen(judged, held))

    def _judged(self, since: int) -> list[tuple[Series, Budget]]:
        budgets, samples = self._run.plan.budgets, self._sampler.samples
        return [(samples.series(one.resource).since(since), one) for one in budgets if samples.has(one.resource)]

    def _note_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            self._run.verdicts[verdict.resource] = qualify(verdict, find_provenance(self._sampler, verdict.resource))

    def _prepare_looks(self) -> None:
        """Record what may explain growth: to walk all objects for that would take half of the time of a screen."""
        self._caches = None
        watch = self._sampler.instruments.watch
        if watch.enabled:
            watch.thaw()
        self._run.innocent.watch()
        self._run.innocent.start(self._identities)
        if watch.enabled:
            watch.refreeze()
            self._sampler.frozen.note()

    def _judge_all(self, *, final: bool) -> bool:
        """Judge what has enough readings or has grown since its ``ok``; return whether to continue measuring."""
        run, sampler = self._run, self._sampler
        if sampler.samples.n >= self._next_look:
            self._next_look = next(self._looks, run.plan.effort.most)
        self._judge.early = None
        for budget in self._judge.in_order(run.plan.budgets):
            name = budget.resource
            earlier = run.verdicts.get(name)
            if not sampler.samples.has(name) or (earlier and not self._judge.doubts(budget, earlier)):
                continue
            run.verdicts.pop(name, None)
            decision = self._judge.decide(budget, final=final)
            if isinstance(decision, StartAgain):
                run.verdicts.clear()
                self._judge.early = None
                return self.start()
            if decision is None:
                continue
            if decision.outcome not in RED and run.plan.effort.iterations and not final:
                # If the user has set the number of iterations, an `ok` and its floor (the smallest leak that would have
                # shown) are based on all of them.
                continue
            if self._ended is not None and self._ended.resource == name:
                decision = conclude_finding.judged_again(decision, self._ended, recurred=self._recurred)
            run.verdicts[name] = decision
            if decision.outcome in RED:
                return False
        readable = (one.resource for one in run.plan.budgets if sampler.samples.has(one.resource))
        return not final and any(name not in run.verdicts for name in readable)

    def _diagnose(self) -> bool:
        """Begin the search for the cause of a red verdict, if there is one and the search is wanted."""
        run, red = self._run, self._run.red
        if red is None or not self.diagnoses:
            return False
        # A test that has used all of its time gets a little more.
        deadline = max(run.time.deadline, clock.monotonic() + _DIAGNOSIS_SHARE * run.plan.effort.max_time)
        search = self._early.get(red.resource)
        if search is None or not search.has_found:
            return self._begin_search(red, deadline)
        self._search = search
        search.confirm(red, self._identities, deadline)
        return self._continue_search(search)

    def _begin_search(self, growth: Verdict, deadline: float, *, among_known: bool = False) -> bool:
        # Imported only here: it is a third of the package, and most tests are green.
        from pytest_leakcheck.runner.diagnosis import CauseSearch

        run = self._run
        run.progress.report(self._sampler.samples, run.plan.budgets, run.verdicts, "naming")
        self._search = CauseSearch(run, self._sampler, growth, self._identities, deadline, among_known=among_known)
        return self._continue_search(self._search)

    def _may_search_early(self, growth: Verdict) -> bool:
        """Return whether to search for the cause of this growth now, although it may yet end by itself."""
        # The more of it there is, the longer it takes to list. A number of iterations that the user has set is not interrupted.
        run = self._run
        is_free = not run.plan.effort.iterations and not run.ceiling.in_force
        return self.diagnoses and is_free and growth.resource not in self._early

    def _search_early(self, growth: Verdict) -> bool:
        run, name = self._run, growth.resource
        self._searching_since, self._if_unbounded = clock.monotonic(), None
        if not growth.traits.ends_by_itself or run.causes.knows(name):
            # To wait whether those end takes as long as to wait whether they are a pool, unless the line tells that.
            (budget,) = (one for one in run.plan.budgets if one.resource == name)
            decision = self._judge.decide(budget, final=False, unbounded=True)
            if isinstance(decision, StartAgain):
                run.verdicts.clear()
                self._judge.carry_levels()
                return self.start()
            if decision is None or decision.outcome != "leak":
                self._early[name] = None
                self._set_aside()
                self._sampler.subtract_own_work()
                return True
            self._if_unbounded = decision
        return self._begin_search(growth, run.time.deadline)

    def _set_aside(self) -> None:
        self._run.time.set_aside(clock.monotonic() - self._searching_since)
        self._run.time.resume()

    def _measure_on(self, search: CauseSearch) -> bool:
        """After an early search, end with the verdict, or begin the series again and wait whether the growth goes on."""
        run = self._run
        early = self._if_unbounded
        if early is not None and (search.is_unbounded or search.is_listed(early)):
            run.verdicts[search.resource] = early
            search.end()
            return False
        self._search = None
        if not search.among_known:
            self._early[search.resource] = search
        self._set_aside()
        if run.time.out_of_time or run.room.short:
            self._judge_all(final=True)
            return self._diagnose()
        run.verdicts.clear()
        with run.innocent.noting_caches():
            search.collect_own()
        self._sampler.refreeze()
        self._judge.carry_levels()
        return self.start()

    def _continue_search(self, search: CauseSearch) -> bool:
        if search.iteration_done():
            return True
        if self._run.red is None:
            return self._measure_on(search)
        if self._may_withdraw() and (not search.recurred or self._is_doubtful(search)):
            self._recurred = search.recurred
            return self._withdraw()
        search.end()
        return False

    def _is_doubtful(self, search: CauseSearch) -> bool:
        """Return whether memory has grown for which neither line nor owner is known, and there is time to judge it again."""
        # The caches of a library settle late, and what fills them is seen nowhere.
        run = self._run
        has_time = run.time.seconds < run.plan.effort.max_time / 2 and not run.plan.effort.iterations
        return has_time and not search.has_found and find_resource(search.resource).exhausts == "memory"

    def _may_withdraw(self) -> bool:
        return self._ended is None and not self._run.ceiling.in_force

    def _withdraw(self) -> bool:
        """Judge again, once, in place of a leak that did not recur in the search: it has ended, or depends on time."""
        run = self._run
        self._search, self._ended = None, run.red
        self._early.clear()
        run.time.resume()
        if run.red is not None and run.time.out_of_time:
            run.verdicts[run.red.resource] = conclude_finding.did_not_recur(run.red)
            return False
        run.verdicts.clear()
        self._sampler.refreeze()
        return self.start()


@contextmanager
def measure_block(
    name: str, budgets: tuple[Budget, ...], gauges: Mapping[str, Callable[[], int]]
) -> Iterator[Callable[[], Result]]:
    """Measure the body of a ``with`` statement, against budgets that each have a level.

    Yields a function that returns the result once the body has ended. If the body raises, there is no result.
    """
    plan = Plan(name, budgets, Effort(iterations=1))
    results: list[Result] = []
    sampler = Sampler((budget.resource for budget in budgets), gauges, capacity=3)
    try:
        # Everything that this function allocates must exist before the start level is read.
        before = take_identities()
        finished = partial(results.__getitem__, 0)
        sampler.start()
        yield finished
        sampler.read()
        readable = [budget for budget in budgets if sampler.samples.has(budget.resource)]
        over = [one.resource for one in readable if sampler.samples.above_start(one.resource) > (one.level or 0)]
        if over:
            sampler.settling.settle()
        for shared in sampler.instruments.folders.keys() & set(over):
            sampler.settling.correct_folder(shared, set_aside=True)
        verdicts = tuple(
            qualify(judge_once(sampler.samples.series(one.resource), one), find_provenance(sampler, one.resource))
            for one in readable
        )
        red = any(verdict.outcome != "ok" for verdict in verdicts)
        held = survivors(before, take_identities()) if red else {}
        held |= {name: group(folder.kinds()) for name, folder in sampler.instruments.folders.items() if red}
        recording = Recording(
            test=name,
            series=sampler.samples.all_series(),
            collector="on" if sampler.instruments.watch.enabled else "off",
            limits=read_limits(),
            unavailable=sampler.instruments.reasons(),
            environment=describe_environment(),
        )
        missing = conclude_finding.missing_verdicts(plan, sampler.instruments.missing)
        results.append(Result(plan, recording, (*verdicts, *missing), held))
    finally:
        sampler.close()
