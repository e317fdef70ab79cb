"""Whole repetitions: each kind of leak is built and caught, then fixed and silent."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.config.budget import Budget, Unclosed, default_budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner import settling
from pytest_leakcheck.runner.repetition import Repetition
from pytest_leakcheck.runner.settling import Settling
from repeats import Owner, descriptors, open_null, repeat, verdict_on

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen"),
]


# Given back by the collector alone.


def test_threads_in_cyclic_garbage_are_unclosed() -> None:
    class Reader:
        def __init__(self, *, cyclic: bool = True) -> None:
            self.itself = self if cyclic else None
            self.end = threading.Event()
            self.thread = threading.Thread(target=self.end.wait)
            self.thread.start()

        def __del__(self) -> None:
            self.end.set()
            self.thread.join()
            # The kernel takes it off its list a little later.
            while os.path.exists(f"/proc/self/task/{self.thread.native_id}"):  # noqa: PTH110
                time.sleep(0.0001)

    verdict = verdict_on(Reader, Budget("thread", 0))
    assert (verdict.outcome, verdict.slope) == ("unclosed", 1.0)
    assert verdict_on(lambda: Reader(cyclic=False), Budget("thread", 0)).outcome == "ok"


@pytest.mark.parametrize(
    ("unclosed", "explicit", "judged"),
    [
        ("warn", True, {"fd": "unclosed", "object": "leak"}),
        ("warn", False, {"fd": "unclosed"}),
        ("fail", True, {"fd": "unclosed"}),
    ],
)
def test_what_is_unclosed_and_only_warns_takes_no_verdict_from_an_explicit_budget(
    unclosed: Unclosed, explicit: bool, judged: dict[str, str]
) -> None:
    kept = list[list[int]]()

    def work() -> None:
        Owner()
        kept.append([0])

    budgets = Budget("fd", unclosed=unclosed), Budget("object", explicit=explicit)
    assert {one.resource: one.outcome for one in repeat(work, *budgets).verdicts} == judged


def test_children_in_cyclic_garbage_are_unclosed() -> None:
    class Worker:
        def __init__(self, *, cyclic: bool = True) -> None:
            self.itself = self if cyclic else None
            self.child = subprocess.Popen(["sleep", "60"])

        def __del__(self) -> None:
            self.child.kill()
            self.child.wait()

    verdict = verdict_on(Worker, Budget("process", 0))
    assert (verdict.outcome, verdict.slope) == ("unclosed", 1.0)
    assert verdict_on(lambda: Worker(cyclic=False), Budget("process", 0)).outcome == "ok"


def test_a_window_of_owners_that_was_full_before_the_start_is_no_leak_and_a_list_that_grows_is() -> None:
    # Those alive at the start are frozen; as the window moves on they become garbage that the collector cannot see.
    # In a separate process: once that is noticed, nothing is frozen any more, and each row walks all objects.
    shown = subprocess.run(
        [sys.executable, Path(__file__).with_name("sessions") / "program_with_a_window.py"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout.split() == ["ok", "leak"]


# What ends a little later.


class Readers:
    """Threads that end while the harness waits, and not before: a clock would make that a matter of luck."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.running: list[threading.Thread] = []
        self.pause = time.sleep

    def start(self) -> None:
        self.running.append(threading.Thread(target=self.end.wait))
        self.running[-1].start()

    def sleep(self, _: float) -> None:
        self.end.set()
        for thread in self.running:
            thread.join()
        self.running.clear()
        self.end.clear()
        self.pause(0.0005)


def test_threads_that_end_a_little_later_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = Readers()
    with monkeypatch.context() as patch:
        patch.setattr(clock, "sleep", readers.sleep)
        patient = repeat(readers.start, Budget("thread", 0))
    with monkeypatch.context() as patch:
        patch.setattr(clock, "sleep", lambda _: None)
        impatient = repeat(readers.start, Budget("thread", 0))
    readers.sleep(0)
    assert [verdict.outcome for verdict in patient.verdicts] == ["ok"]
    assert [verdict.outcome for verdict in impatient.verdicts] == ["leak"]


def test_threads_that_were_waited_for_at_the_last_look_do_not_cost_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = Readers()
    with monkeypatch.context() as patch:
        patch.setattr(clock, "sleep", readers.sleep)
        result = repeat(readers.start, Budget("thread", 0), iterations=5)
    readers.sleep(0)
    (verdict,) = result.verdicts
    assert verdict.outcome in ("ok", "inconclusive")


# A leak that does not recur while its cause is searched for.


def judge_twice(work: Callable[[Repetition], object], **effort: Any) -> Result:
    plan = Plan("test_a.py::test_b", (Budget("fd"),), Effort(min_time=0, **effort))
    repetition = Repetition(plan)
    repetition.begin()
    work(repetition)
    while repetition.iteration_done():
        work(repetition)
    return repetition.end()


def test_growth_that_has_ended_when_its_cause_is_searched_for_is_no_leak() -> None:
    with descriptors() as kept:
        result = judge_twice(lambda _: kept.append(open_null()) if len(kept) < 21 else None)
    (verdict,) = result.verdicts
    assert (verdict.outcome, verdict.level) == ("ok", 17)
    assert verdict.reason == "settles at +17; grew at first, and stopped after 17 iterations"
    assert result.culprit is None


def test_growth_that_tracing_prevents_is_a_leak_once_it_recurs() -> None:
    with descriptors() as kept:
        result = judge_twice(lambda one: None if one.searched else kept.append(open_null()))
    (verdict,) = result.verdicts
    assert (verdict.outcome, verdict.slope) == ("leak", 1.0)
    assert len(kept) == 2 * 17 + 3


def test_a_leak_that_did_not_recur_when_time_was_up_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)

    def work(one: Repetition) -> None:
        nonlocal now
        now += 0.1
        if not one.searched:
            kept.append(open_null())

    with descriptors() as kept:
        (verdict,) = judge_twice(work, max_time=3.2).verdicts
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == (
        "+1.0/iter sustained over 17 iterations, but it did not recur while traced: it depends on time, or has ended"
    )


class Reaper:
    """What releases each handle some time after it was made, or all at once; time is what the work and the waits take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float, *, at_once: bool = False) -> None:
        self.now = self.waited = 0.0
        self._seconds, self._at_once = seconds, at_once
        self._held: deque[tuple[float, int]] = deque()
        monkeypatch.setattr(clock, "monotonic", lambda: self.now)
        monkeypatch.setattr(clock, "sleep", self._sleep)
        monkeypatch.setattr(Settling, "seconds_alone", 0.25)
        monkeypatch.setattr(Settling, "seconds_held", 6.0)

    def hand_over(self) -> None:
        begun = self.now // self._seconds * self._seconds if self._at_once else self.now
        self._held.append((begun + self._seconds, open_null()))
        self._pass(0.02)

    def _sleep(self, seconds: float) -> None:
        self.waited += seconds
        self._pass(seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.release(self.now)

    def release(self, now: float = inf) -> None:
        while self._held and self._held[0][0] <= now:
            os.close(self._held.popleft()[1])


@pytest.fixture
def other_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Its event ends it; it waits for so many seconds, or for ever. All others are of the session."""
    monkeypatch.setattr(settling, "_OF_SESSION", set(sys._current_frames()))
    end = threading.Event()
    thread = threading.Thread(target=end.wait, args=(getattr(request, "param", 600),))
    thread.start()
    yield end
    end.set()
    thread.join()


@pytest.mark.parametrize(
    ("seconds", "at_once", "leaks_every", "expected"),
    [(4, False, 0, ("ok", 0)), (5, True, 0, ("ok", 0)), (4, False, 5, ("leak", 0.2)), (10, False, 0, ("leak", 1))],
)
@pytest.mark.usefixtures("other_thread")
def test_what_a_thread_of_the_start_releases_seconds_later_is_no_leak(  # noqa: PLR0917 - what is given and what is seen
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    at_once: bool,
    leaks_every: int,
    expected: tuple[str, float],
    begun: list[str],
) -> None:
    """A server closes a connection late: what it never closes is a leak at its own rate, beside others too."""
    reaper = Reaper(monkeypatch, seconds, at_once=at_once)
    calls = itertools.count(1)
    with descriptors() as kept:

        def work() -> None:
            reaper.hand_over()
            if leaks_every and next(calls) % leaks_every == 0:
                kept.append(open_null())

        verdict = verdict_on(work, Budget("fd"), max_time=60)
        reaper.release()
    assert (verdict.outcome, round(verdict.slope, 1)) == expected
    assert seconds < 6 or 6 <= reaper.waited < 6.5
    assert ("Fill" in begun) == (seconds < 6)


@pytest.mark.parametrize("other_thread", [None], indirect=True)
@pytest.mark.usefixtures("other_thread")
def test_a_thread_that_another_one_must_notify_is_not_given_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reaper = Reaper(monkeypatch, 4)
    verdict = verdict_on(reaper.hand_over, Budget("fd"))
    reaper.release()
    assert verdict.outcome == "leak"
    assert reaper.waited < 1


def test_only_a_thread_that_was_there_at_the_start_and_still_runs_is_given_that_time(
    monkeypatch: pytest.MonkeyPatch, other_thread: threading.Event
) -> None:
    reaper = Reaper(monkeypatch, 4)
    calls = itertools.count()

    def work() -> None:
        reaper.hand_over()
        if next(calls) == 8:
            other_thread.set()

    verdict = verdict_on(work, Budget("fd"))
    reaper.release()
    assert verdict.outcome == "leak"
    assert reaper.waited < 1


@pytest.mark.parametrize("is_driver", [False, True])
def test_a_driver_of_ray_has_no_default_budget_of_memory_that_ray_takes_too(
    is_driver: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = SimpleNamespace(connected=is_driver, core_worker=object())
    worker: Any = SimpleNamespace(global_worker=connected)
    monkeypatch.setitem(sys.modules, "ray._private.worker", worker)
    by_default = [*map(default_budget, ("object", "heap", "rss"))]
    judged = {one.resource for one in repeat(int, *by_default, iterations=5).verdicts}
    assert judged == ({"object"} if is_driver else {"object", "heap", "rss"})
    # Where a mark names it, or nothing else is judged.
    for budget in (Budget("heap"), default_budget("heap")):
        assert [one.resource for one in repeat(int, budget, iterations=5).verdicts] == ["heap"]
