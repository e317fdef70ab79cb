"""The executor, step by step at random, against a model that lets begin whatever may."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leakcheck_incidents.rollout_executor.executor import WorkflowExecutor
from leakcheck_incidents.rollout_executor.rollouts import PATIENCE, until
from leakcheck_incidents.rollout_executor.staleness import Limits, RolloutStats
from rollout_control import Controlled

LIMITS = Limits(concurrent=3, batch=2, staleness=1)


class ExecutorMachine(RuleBasedStateMachine):
    """Its threads are its own; after each step it is waited for until it has done what the model has."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.executor: WorkflowExecutor[int] = WorkflowExecutor(LIMITS, lambda: self.version, queue_size=100)
        self.manager = self.executor.initialize()
        self.waiting: list[Controlled] = []
        self.running: list[Controlled] = []
        self.ended: list[int] = []
        self.accepted = self.rejected = self.given = 0
        self.paused = False

    def teardown(self) -> None:
        self.executor.shutdown()
        # What ran was cancelled, what waited was given up.
        self.rejected += len(self.running)
        assert self.manager.stats == RolloutStats(0, 0, self.accepted, self.rejected)

    @rule(count=st.integers(1, 3))
    def submit(self, count: int) -> None:
        for _ in range(count):
            self.waiting.append(Controlled())
            self.executor.submit(self.waiting[-1], PATIENCE)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        one = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.given += 1
        one.end(self.given)
        self.ended.append(self.given)
        self.accepted += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        self.running.pop(data.draw(st.integers(0, len(self.running) - 1))).end(None)
        self.rejected += 1

    @rule()
    def pause(self) -> None:
        self.executor.pause()
        self.paused = True

    @rule()
    def resume(self) -> None:
        self.executor.resume()
        self.paused = False

    @rule()
    def bump(self) -> None:
        self.version += 1

    @rule(ahead=st.integers(0, 3))
    def recover(self, ahead: int) -> None:
        # The counters first: they only let more begin together with the version.
        self.manager.recover(self.version + ahead)
        self.version += ahead
        self.accepted = self.version * LIMITS.batch

    @precondition(lambda self: self.ended)
    @rule()
    def take(self) -> None:
        assert self.executor.wait(len(self.ended), PATIENCE) == self.ended
        self.ended.clear()

    @invariant()
    def does_what_the_model_does(self) -> None:
        while self.waiting and not self.paused and self.has_place():
            self.running.append(self.waiting.pop(0))
        wanted = RolloutStats(len(self.waiting), len(self.running), self.accepted, self.rejected)
        until(lambda: self.manager.stats == wanted)
        for one in self.running:
            assert one.began.wait(PATIENCE)
        assert not any(one.began.is_set() for one in self.waiting)

    def has_place(self) -> bool:
        data = len(self.running) + 1 + self.accepted
        return len(self.running) < LIMITS.concurrent and data <= (LIMITS.staleness + self.version + 1) * LIMITS.batch


TestExecutorMachine = ExecutorMachine.TestCase
TestExecutorMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
