"""A `Plan` in, a `Recording` and verdicts out, while somebody else repeats the work.

`Repetition` is told when an iteration has ended and says whether it wants another. The pytest protocol, ``steps()`` and
`measure` all drive the same object, so a test, a loop and a script are judged alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.attribution.live_handles import take_identities
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.exhaustion import device_lost, first_line, ran_out
from pytest_leakcheck.judge.growth import growth, looks
from pytest_leakcheck.judge.judge_series import Context, judge
from pytest_leakcheck.judge.result import RED, Result, missing_verdicts, nothing_judged
from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.recording import Recording, Stopped
from pytest_leakcheck.model.resources import RESOURCES, find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.native_heap import is_quiet
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.resource_limits import read_limits
from pytest_leakcheck.runner.ceiling_run import Headroom
from pytest_leakcheck.runner.device_check import attest
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.fork_guard import Origin
from pytest_leakcheck.runner.innocent_explanations import Suspicion
from pytest_leakcheck.runner.progress import Telling
from pytest_leakcheck.runner.sampler import Panel
from pytest_leakcheck.runner.shared_folder_check import account_for_makers
from pytest_leakcheck.runner.user_gauges import Phases

if TYPE_CHECKING:
    from pytest_leakcheck.runner.after_red import Sequel

# Of all the time of a test, so much more to name the culprit.
_GRACE: Final = 0.1


class Repetition:
    """Reads, judges and decides when to stop, for one plan. Use once: `begin`, `iteration_done` ..., `end`."""

    def __init__(
        self,
        plan: Plan,
        gauges: Mapping[str, Callable[[], int]] | None = None,
        left: Mapping[str, str] | None = None,
        *,
        drives_on: bool = False,
    ) -> None:
        """
        Args:
            plan: What to judge and how hard to try.
            gauges: Counters of the user's own, read after each iteration; may be added to until the start is read.
            left: Which earlier test left a thread running, by the thread's number.
            drives_on: Under a ceiling, go on after a leak until it fails; whoever repeats must then call `failed`.
        """
        self._plan = plan
        self._gauges = gauges if gauges is not None else {}
        self._phases = Phases()
        self._ran = 0
        self._began = self._last_ended = time.perf_counter()
        self._deadline = self._began + plan.effort.max_time
        self._verdicts: dict[str, Verdict] = {}
        self._suspicion = Suspicion(left or {})
        self._next_look = 0
        self._sequel: Sequel | None = None
        self._telling = Telling(plan.effort.most)
        self._headroom = Headroom(plan.ceiling, drives_on=drives_on)
        self._out_of_time = False
        self._carried: dict[str, int] = {}
        self._panel: Panel | None = None
        self._origin = Origin()

    def follow(self, gauges: Mapping[str, Callable[[], int]], budgets: tuple[Budget, ...]) -> None:
        """More gauges, with what they are held to; only before the start is read."""
        self._gauges = {**self._gauges, **gauges}
        self._plan = replace(self._plan, budgets=(*budgets, *self._plan.budgets))

    def checkpoint(self, label: str) -> None:
        """A phase of the iteration under way ends here."""
        if self._sequel is None:
            self._phases.end(label)

    def begin(self) -> None:
        """Before the first iteration."""
        self._headroom.begin()
        if self._plan.effort.warmup <= 1:
            self._watch()
        if self._plan.effort.warmup == 0:
            self._start()

    def iteration_done(self) -> bool:
        """After each iteration, when the test's own objects are gone. Returns whether another is wanted."""
        self._origin.leave_elsewhere()
        panel = self._panel
        self._headroom.next_iteration()
        if self._sequel is not None:
            return self._sequel.iteration_done()
        if panel is None or panel.n < 0:
            return self._warm_up()
        panel.read(panel.n + 1 >= self._next_look)
        self._phases.begin()
        now = time.perf_counter()
        # The next iteration will take about as long as this one did.
        self._out_of_time = 2 * now - self._last_ended > self._deadline
        self._last_ended = now
        told = self._telling.tell(panel, self._verdicts)
        if panel.n < self._next_look and not self._out_of_time:
            if told:
                panel.subtract_own_work()
            return True
        if not self._look(panel, final=self._out_of_time or panel.n >= self._plan.effort.most):
            return self._look_into(panel)
        panel.subtract_own_work()
        return True

    def failed(self, error: BaseException) -> bool:
        """After an iteration that failed, in place of `iteration_done`: whether another is wanted all the same.

        So it is where it failed under a ceiling, which is lifted now, and what led there is still to be named.
        """
        self._origin.leave_elsewhere(1)
        panel = self._panel
        if not self._headroom.is_reached(error) or panel is None or panel.n < 1:
            return False
        if self._sequel is None:
            self._judge_exhaustion(panel, error)
        if not self._headroom.may_go_on:
            return False
        return self._sequel.iteration_done() if self._sequel is not None else self._look_into(panel)

    @property
    def group(self) -> Path | None:
        """The cgroup that the test runs in, where one was made for it."""
        return self._headroom.group

    def so_far(self) -> Result | None:
        """What is known once the culprit is, where the test is run on into its ceiling: it may not survive that."""
        if self._sequel is None or self._panel is None or not self._sequel.drives_on:
            return None
        return self._result(self._panel, self._stopped(self._panel))

    def end(self, stopped: Stopped | None = None, error: BaseException | None = None) -> Result:
        """After the last iteration: give everything back and say what was found.

        Args:
            stopped: Why no further iteration runs, where that was not this object's own doing.
            error: What the last iteration failed with. Running out of descriptors or memory after growth is a leak.
        """
        self._origin.leave_elsewhere(int(stopped is not None))
        panel = self._panel
        self._headroom.end()
        if panel is None:
            return self._headroom.account_for(Result(self._plan, self._recording(None, stopped or "time"), (), {}))
        if error is not None and panel.n > 0 and self._red is None:
            self._judge_exhaustion(panel, error)
        if stopped is None and panel.n == 0:
            nothing = nothing_judged(self._plan, restarted=self._suspicion.restarts > 0)
            self._verdicts |= {verdict.resource: verdict for verdict in nothing}
        if self._sequel is not None:
            self._sequel.end()
        result = self._result(panel, stopped or self._stopped(panel))
        panel.close()
        self._panel = None
        return self._headroom.account_for(result)

    def _result(self, panel: Panel, stopped: Stopped) -> Result:
        verdicts = (*self._verdicts.values(), *missing_verdicts(self._plan, panel.missing))
        culprit = self._sequel.culprit if self._sequel else None
        return Result(self._plan, self._recording(panel, stopped), verdicts, self._held(panel), culprit)

    def _warm_up(self) -> bool:
        self._ran += 1
        now = time.perf_counter()
        self._out_of_time = 2 * now - self._last_ended > self._deadline
        self._last_ended = now
        if self._ran == self._plan.effort.warmup - 1:
            self._watch()
        if self._ran >= self._plan.effort.warmup:
            self._start()
        return not self._out_of_time

    def _watch(self) -> None:
        """Before the last warm-up iteration: what that one leaves frozen and dead is then part of the start."""
        self._limits = read_limits()
        self._quiet_heap = is_quiet()
        self._suspicion.watch(quiet_heap=self._quiet_heap)
        witnesses = (name for name, resource in RESOURCES.items() if resource.witness)
        wanted = {*witnesses, *(budget.resource for budget in self._plan.budgets)}
        # Those that the instruments keep open lie above a ceiling.
        with room_for_descriptors():
            self._panel = Panel(wanted, self._gauges, self._plan.effort.most + 2)
        device = self._panel.device
        if device is not None and device.capacity:
            self._limits[device.resource] = device.capacity
        self._headroom.limit_device(device)
        self._limits |= self._headroom.limits()

    def _start(self) -> None:
        assert self._panel is not None
        self._identities = take_identities()
        self._suspicion.start(self._identities)
        self._looks = looks(self._plan.effort.most)
        self._next_look = next(self._looks)
        self._open_phases(self._panel)
        self._panel.start()
        self._phases.begin()

    def _open_phases(self, panel: Panel) -> None:
        # In a frame of its own: what is made on the way is gone when the start is read.
        judged = (budget.resource for budget in self._plan.budgets)
        names = [name for name in judged if find_resource(name).in_phases]
        self._phases.open({name: panel.counter(name) for name in names if panel.has(name)})

    def _look(self, panel: Panel, *, final: bool) -> bool:
        self._next_look = next(self._looks, self._plan.effort.most)
        for budget in self._plan.budgets:
            name = budget.resource
            if name in self._verdicts or not panel.has(name):
                continue
            verdict = self._judge(panel, budget, final=final)
            if panel.n == 0:
                return not self._out_of_time
            if verdict is None or (verdict.outcome not in RED and self._plan.effort.iterations and not final):
                # Where the effort is given, all of it goes into an `ok` and its floor.
                continue
            self._verdicts[name] = verdict
            if verdict.outcome in RED:
                return False
        return not final and not self._all_judged(panel)

    def _judge(self, panel: Panel, budget: Budget, *, final: bool) -> Verdict | None:
        """The verdict on one resource, after innocent explanations and second witnesses; None where it is too early."""
        name = budget.resource
        device = panel.device_for(name)
        if device is not None and device.lost:
            return device_lost(panel.series(name), budget, device.lost)
        self._suspicion.set_others_aside(panel, name)
        context = self._context(panel, name, final)
        verdict = judge(panel.series(name), budget, context)
        if verdict is not None and verdict.outcome in ("leak", "over_budget"):
            # Before anything is frozen again: what was made since the start would be out of sight.
            explained = self._explained(panel, budget, context, verdict)
            if explained is None:
                return None
            if not explained.explained and self._suspicion.begins_anew(panel, name):
                self._begin_again()
                return None
            if not explained.explained and not final and self._confirms_later(panel, verdict):
                return None
            background = "" if explained.explained else self._suspicion.background(panel, name, verdict.slope)
            verdict = judge(panel.series(name), budget, replace(explained, background=background))
        elif verdict is not None and verdict.outcome == "inconclusive" and panel.above_start(name) > 0:
            context = replace(context, explained=self._suspicion.explain(panel, name).text)
            verdict = judge(panel.series(name), budget, context)
        return self._witnessed(panel, budget, verdict, final=final) if verdict is not None else None

    def _witnessed(self, panel: Panel, budget: Budget, verdict: Verdict, *, final: bool) -> Verdict | None:
        """The verdict with what a second source knows: who made an entry, what the driver of a device counts."""
        name = budget.resource
        if name in panel.folders:
            panel.set_aside_used(name)
            return account_for_makers(verdict, budget, panel.folders[name], final=final)
        device = panel.device_for(name)
        return attest(verdict, device, final=final) if device is not None else verdict

    def _explained(self, panel: Panel, budget: Budget, context: Context, verdict: Verdict) -> Context | None:
        """What else is known of growth: an innocent explanation of all of it or of a part. None where the series begins again."""
        name = budget.resource
        explanation = self._suspicion.explain(panel, name)
        if not explanation.text:
            return context
        if isfinite(explanation.rate):
            in_part = replace(context, explained_rate=explanation.rate)
            rest = judge(panel.series(name), budget, in_part)
            if _is_growth(rest):
                return replace(in_part, explained=self._suspicion.explain_otherwise(panel, name))
        if _is_growth(verdict) and explanation.full and not self._out_of_time and self._suspicion.restart_when_full():
            # What stands above the start by now still counts for a level.
            for one in self._plan.budgets:
                if panel.has(one.resource):
                    self._carried[one.resource] = self._carried.get(one.resource, 0) + panel.above_start(one.resource)
            self._begin_again()
            return None
        return replace(context, explained=explanation.text)

    def _begin_again(self) -> None:
        self._verdicts.clear()
        self._start()

    def _confirms_later(self, panel: Panel, verdict: Verdict) -> bool:
        more = self._suspicion.confirm_in(panel, verdict.resource, verdict.slope)
        self._next_look = min(self._next_look, panel.n + more) if more else self._next_look
        return more > 0

    def _all_judged(self, panel: Panel) -> bool:
        return all(b.resource in self._verdicts or not panel.has(b.resource) for b in self._plan.budgets)

    def _look_into(self, panel: Panel) -> bool:
        """Whether a few iterations more are wanted, to name the culprit of a red."""
        red = self._red
        if red is None:
            return False
        # Loaded only here: it is a third of the package, and most tests are green.
        from pytest_leakcheck.runner.after_red import Sequel, Until

        self._telling.tell(panel, self._verdicts, "naming")
        # A test that has taken all of its time gets a little more.
        named = max(self._deadline, time.perf_counter() + _GRACE * self._plan.effort.max_time)
        until, bounded = Until(named, self._deadline), self._suspicion.bounded_owners()
        self._sequel = Sequel(panel, red, self._identities, self._headroom, until, bounded=bounded)
        return self._sequel.begin()

    def _context(self, panel: Panel, name: str, final: bool) -> Context:
        limit, effort, resource = self._limits.get(name), self._plan.effort, find_resource(name)
        exact_flat, exact = False, resource.exact_counter
        if exact and panel.has(exact):
            exact_flat = growth(panel.series(exact).readings, find_resource(exact).tolerance).state == "flat"
        elsewhere = resource.of_tree and panel.children > 0
        # With children the counter is the whole tree's, and the limit that of each process alone.
        headroom = None if limit is None or elsewhere else max(0, limit - panel.level(name))
        return Context(
            final,
            effort.run_length,
            headroom,
            effort.most,
            exact_flat=exact_flat,
            elsewhere=elsewhere,
            quiet_heap=self._quiet_heap,
            slack=self._suspicion.slack(name),
            carried=self._carried.get(name, 0),
        )

    def _judge_exhaustion(self, panel: Panel, error: BaseException) -> None:
        gone = self._headroom.grown_towards(error)
        for budget in self._plan.budgets:
            if budget.resource in gone and panel.has(budget.resource):
                verdict = ran_out(panel.series(budget.resource), budget, first_line(error))
                if verdict is not None:
                    self._verdicts[budget.resource] = verdict
                    return

    def _held(self, panel: Panel) -> Mapping[str, tuple[Held, ...]]:
        if self._sequel is not None:
            return self._sequel.held()
        red = self._red
        if panel.n < 1 or red is None:
            return {}
        from pytest_leakcheck.runner.after_red import survivors_of

        return survivors_of(panel, red, self._identities, take_identities())

    @property
    def _red(self) -> Verdict | None:
        """The one that ended the judging: after it nothing else is judged."""
        return next((verdict for verdict in self._verdicts.values() if verdict.outcome in RED), None)

    def _stopped(self, panel: Panel) -> Stopped:
        if self._out_of_time:
            return "time"
        return "iterations" if panel.n >= self._plan.effort.most else "judged"

    def _recording(self, panel: Panel | None, stopped: Stopped) -> Recording:
        device = panel.device if panel else None
        return Recording(
            test=self._plan.test,
            series=panel.all_series() if panel else (),
            warmup=self._plan.effort.warmup,
            seconds=round(time.perf_counter() - self._began, 6),
            collector="off" if panel and not panel.watch.enabled else "on",
            stopped=stopped,
            limits=self._limits if panel else {},
            unavailable=panel.reasons() if panel else {},
            environment={**describe_environment(device.name if device else ""), **self._plan.process},
            phases=self._phases.take(),
        )


def _is_growth(verdict: Verdict | None) -> bool:
    """Whether it says that the resource grows on, and not that it stands too high."""
    return verdict is not None and (verdict.outcome == "leak" or verdict.kind == "predicted")
