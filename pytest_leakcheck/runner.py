"""A `Plan` in, a `Recording` and verdicts out, while somebody else repeats the work.

`Repetition` is told when an iteration has ended and says whether it wants another. The pytest protocol, ``steps()`` and
`measure` all drive the same object, so a test, a loop and a script are judged alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.attest import attest
from pytest_leakcheck.attribution.identity import Held, Identities, describe_target, group, survivors, take_identities
from pytest_leakcheck.budget import Budget
from pytest_leakcheck.exhaustion import device_lost, exhausted_by, first_line, ran_out
from pytest_leakcheck.gauges import Phases
from pytest_leakcheck.panel import CHEAP, Panel
from pytest_leakcheck.plan import Plan
from pytest_leakcheck.probes.heap import is_quiet
from pytest_leakcheck.probes.limits import read_limits
from pytest_leakcheck.ratchet import growth, looks
from pytest_leakcheck.resources import find_resource
from pytest_leakcheck.result import RED, Result, describe_environment, missing_verdicts
from pytest_leakcheck.series import Recording, Stopped
from pytest_leakcheck.suspicion import Suspicion
from pytest_leakcheck.verdict import Context, Verdict, judge

if TYPE_CHECKING:
    from pytest_leakcheck.investigation import Investigation

# Read in every repetition, judged or not: cheap, and worth a line beside a red ("seen, not judged").
_WITNESSES: Final = ("object", "heap")
# Of all the time of a test, so much more to name the culprit.
_GRACE: Final = 0.1


class Repetition:
    """Reads, judges and decides when to stop, for one plan. Use once: `begin`, `iteration_done` ..., `end`."""

    def __init__(
        self,
        plan: Plan,
        gauges: Mapping[str, Callable[[], int]] | None = None,
        left: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            plan: What to judge and how hard to try.
            gauges: Counters of the user's own, read after each iteration; may be added to until the start is read.
            left: Which earlier test left a thread running, by the thread's number.
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
        self._investigation: Investigation | None = None
        self._identities_at_red: Identities | None = None
        self._out_of_time = False
        self._panel: Panel | None = None

    def follow(self, gauges: Mapping[str, Callable[[], int]], budgets: tuple[Budget, ...]) -> None:
        """More gauges, with what they are held to; only before the start is read."""
        self._gauges = {**self._gauges, **gauges}
        self._plan = replace(self._plan, budgets=(*budgets, *self._plan.budgets))

    def checkpoint(self, label: str) -> None:
        """A phase of the iteration under way ends here."""
        if self._investigation is None:
            self._phases.end(label)

    def begin(self) -> None:
        """Before the first iteration."""
        if self._plan.effort.warmup <= 1:
            self._watch()
        if self._plan.effort.warmup == 0:
            self._start()

    def iteration_done(self) -> bool:
        """After each iteration, when the test's own objects are gone. Returns whether another is wanted."""
        panel = self._panel
        if self._investigation is not None and panel is not None:
            more = self._investigation.iteration_done()
            # One iteration's are enough to be named.
            panel.watch.name_released(False)
            return more
        if panel is None or panel.n < 0:
            return self._warm_up()
        panel.read(panel.n + 1 >= self._next_look)
        self._phases.begin()
        now = time.perf_counter()
        # The next iteration will take about as long as this one did.
        self._out_of_time = 2 * now - self._last_ended > self._deadline
        self._last_ended = now
        if panel.n < self._next_look and not self._out_of_time:
            return True
        if not self._look(panel, final=self._out_of_time or panel.n >= self._plan.effort.most):
            return self._investigate(panel)
        panel.subtract_own_work()
        return True

    def end(self, stopped: Stopped | None = None, error: BaseException | None = None) -> Result:
        """After the last iteration: give everything back and say what was found.

        Args:
            stopped: Why no further iteration runs, where that was not this object's own doing.
            error: What the last iteration failed with. Running out of descriptors or memory after growth is a leak.
        """
        panel = self._panel
        if panel is None:
            return Result(self._plan, self._recording(None, stopped or "time"), (), {})
        if error is not None and panel.n > 0:
            self._judge_exhaustion(panel, error)
        if stopped is None and panel.n == 0:
            self._judge_nothing()
        held = self._held(panel)
        red = self._red
        culprit = self._investigation.end(held.get(red.resource, ())) if self._investigation and red else None
        recording = self._recording(panel, stopped or self._stopped(panel))
        panel.close()
        self._panel = None
        verdicts = (*self._verdicts.values(), *missing_verdicts(self._plan, panel.missing))
        return Result(self._plan, recording, verdicts, held, culprit)

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
        wanted = {*_WITNESSES, *(budget.resource for budget in self._plan.budgets)}
        self._panel = Panel(wanted, self._gauges, self._plan.effort.most + 2)
        device = self._panel.device
        if device is not None and device.capacity:
            self._limits["vram"] = device.capacity

    def _start(self) -> None:
        assert self._panel is not None
        self._identities = take_identities()
        self._looks = looks(self._plan.effort.most)
        self._next_look = next(self._looks)
        self._open_phases(self._panel)
        self._panel.start()
        self._phases.begin()

    def _open_phases(self, panel: Panel) -> None:
        # In a frame of its own: what is made on the way is gone when the start is read.
        names = [budget.resource for budget in self._plan.budgets if budget.resource in CHEAP]
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
        device = panel.device if name == "vram" else None
        if device is not None and device.lost:
            return device_lost(panel.series(name), budget, device.lost)
        self._suspicion.set_others_aside(panel, name)
        context = self._context(panel, name, final)
        verdict = judge(panel.series(name), budget, context)
        if verdict is not None and verdict.outcome in ("leak", "over_budget"):
            # Before anything is frozen again: what was made since the start would be out of sight.
            explained = self._suspicion.explain(panel, name)
            if not explained and self._suspicion.begins_anew(panel, name):
                self._verdicts.clear()
                self._start()
                return None
            if not explained and not final and self._confirms_later(panel, verdict):
                return None
            background = "" if explained else self._suspicion.background(panel, name, verdict.slope)
            verdict = judge(panel.series(name), budget, replace(context, explained=explained, background=background))
        elif verdict is not None and verdict.outcome == "inconclusive" and panel.above_start(name) > 0:
            explained = self._suspicion.explain(panel, name)
            verdict = judge(panel.series(name), budget, replace(context, explained=explained))
        return attest(verdict, device, final=final) if verdict is not None and device is not None else verdict

    def _confirms_later(self, panel: Panel, verdict: Verdict) -> bool:
        more = self._suspicion.confirm_in(panel, verdict.resource, verdict.slope)
        self._next_look = min(self._next_look, panel.n + more) if more else self._next_look
        return more > 0

    def _all_judged(self, panel: Panel) -> bool:
        return all(b.resource in self._verdicts or not panel.has(b.resource) for b in self._plan.budgets)

    def _investigate(self, panel: Panel) -> bool:
        """Whether a few iterations more are wanted, to name the culprit of a red."""
        red = self._red
        if red is None:
            return False
        if red.outcome == "unclosed" and red.resource == "fd":
            # What the collector gives back is gone by then: only in the next iterations can be seen what it is.
            panel.watch.name_released(True)
        # Loaded only here: it is a third of the package, and most tests are green.
        from pytest_leakcheck.investigation import Investigation

        self._identities_at_red = take_identities()
        plain = panel.seconds_per_iteration()
        # A test that has taken all of its time gets a little more.
        deadline = max(self._deadline, time.perf_counter() + _GRACE * self._plan.effort.max_time)
        self._investigation = Investigation(panel, red, plain, deadline)
        return self._investigation.iteration_done()

    def _context(self, panel: Panel, name: str, final: bool) -> Context:
        limit, effort = self._limits.get(name), self._plan.effort
        exact_flat = False
        if name == "rss" and panel.has("heap"):
            heap = find_resource("heap")
            exact_flat = growth(panel.series("heap").readings, heap.tolerance).state == "flat"
        headroom = None if limit is None else max(0, limit - panel.level(name))
        if name == "fd" and panel.level("process"):
            # The counter is the whole tree's, the limit that of each process alone.
            headroom = None
        return Context(
            final, effort.run_length, headroom, effort.most, exact_flat=exact_flat, quiet_heap=self._quiet_heap
        )

    def _judge_exhaustion(self, panel: Panel, error: BaseException) -> None:
        gone = exhausted_by(error)
        for budget in self._plan.budgets:
            if budget.resource in gone and panel.has(budget.resource):
                verdict = ran_out(panel.series(budget.resource), budget, first_line(error))
                if verdict is not None:
                    self._verdicts[budget.resource] = verdict
                    return

    def _judge_nothing(self) -> None:
        """No time was left for an iteration after the start."""
        reason = "no time was left after warm-up"
        if self._suspicion.restarts:
            reason = "began again after things that ended late or were frozen; no time was left to judge the rest"
        for budget in self._plan.budgets:
            self._verdicts[budget.resource] = Verdict(
                budget.resource,
                "inconclusive",
                reason=reason,
                advice="more time would tell: --leakcheck-max-time",
                explicit=budget.explicit,
            )

    def _held(self, panel: Panel) -> dict[str, tuple[Held, ...]]:
        red = self._red
        if panel.n < 1 or red is None:
            return {}
        held = survivors(self._identities, self._identities_at_red or take_identities())
        # Libraries map memory too, and entries of a folder are others' as well: named only where they are the finding.
        if red.resource != "mmap":
            del held["mmap"]
        if red.resource in panel.folders:
            held[red.resource] = group(panel.folders[red.resource].kinds())
        if self._investigation is not None and self._investigation.kinds:
            held[red.resource] = self._investigation.kinds
        if panel.watch.released_names:
            held["fd"] = group(describe_target(name) for name in panel.watch.released_names.elements())
        return held

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
