"""Each way to get the rollout executor wrong that could be thought of, and a test of it that is red then."""

from __future__ import annotations

from typing import Final

import pytest

from mutant_tables import exit_statuses

pytestmark = pytest.mark.laboratory

PACKAGE: Final = "leakcheck_incidents.rollout_executor"
# A mutant that hangs is red as soon as patience is at its end.
ALWAYS: Final = [
    (f"{PACKAGE}.rollouts", "PATIENCE: Final = 60.0", "PATIENCE: Final = 2.0"),
    (f"{PACKAGE}.executor", "timeout: float = 30.0", "timeout: float = 2.0"),
]
TABLE: Final = "worlds: the_table_of_worlds and not 100"
CONCURRENT: Final = "max(1, self.concurrent // world_size)"
BATCH: Final = "max(1, self.batch // world_size)"
SHARED: Final = "self._limits.share(world_size)"
STARTED: Final = "        self._runner.start()\n"

# What is done: the module, what stands there, what is put in its place, and the tests, by file and words, that must be red.
MUTANTS: Final[dict[str, tuple[str, str, str, str]]] = {
    "nothing": ("", "", "", TABLE),
    "not divided": ("executor", SHARED, "self._limits", TABLE),
    "divided twice": ("executor", SHARED, f"{SHARED}.share(world_size)", TABLE),
    "a given one divided again": (
        "executor",
        STARTED,
        f"        self.manager.limits = self.manager.limits.share(train_data_parallel_size or 1)\n{STARTED}",
        "executor: one_that_is_given_is_left_alone",
    ),
    "only B divided": ("staleness", CONCURRENT, "self.concurrent", TABLE),
    "only C divided": ("staleness", BATCH, "self.batch", "staleness: shares"),
    "C without a place for each": ("staleness", CONCURRENT, "self.concurrent // world_size", "staleness: shares"),
    "B without a place for each": ("staleness", BATCH, "self.batch // world_size", "staleness: shares"),
    "one rank too many": ("staleness", CONCURRENT, "max(1, self.concurrent // (world_size + 1))", TABLE),
    "modifiers forgotten": ("fixed", "manager.register(modifier)", "pass", "executor: the_factory_registers"),
    "version forgotten": (
        "staleness",
        "limits.staleness + version + 1",
        "limits.staleness + 1",
        "staleness: staleness_cap",
    ),
    "one batch too few": (
        "staleness",
        "limits.staleness + version + 1",
        "limits.staleness + version",
        "staleness: staleness_cap",
    ),
    "running is no data": (
        "staleness",
        "(stats.accepted + stats.running)",
        "stats.accepted",
        "staleness: staleness_cap",
    ),
    "rejected keeps its place": ("staleness", "running=-1, rejected=1", "rejected=1", "staleness: over_random_traces"),
    "accepted is not counted": ("staleness", "running=-1, accepted=1", "running=-1", "staleness: over_random_traces"),
    "recovery forgotten": (
        "staleness",
        "accepted=version * max(1, self.limits.batch)",
        "rejected=0",
        "staleness: recovery",
    ),
    "last modifier alone": (
        "staleness",
        "self._modifiers += (modifier,)",
        "self._modifiers = (modifier,)",
        "staleness: in_turn",
    ),
    "asked and taken in two steps": (
        "staleness",
        "        with self._lock:\n            if self._capacity() <= 0:",
        "        if True:\n            if self._capacity() <= 0:",
        "staleness: threads_take_no_place_twice",
    ),
    "pause ignored": ("executor", "and not self._paused", "", "executor: a_pause"),
    "errors dropped": (
        "executor",
        "self._failure = self._failure or outcome.error",
        "pass",
        "executor: callers_thread",
    ),
    "error kept": (
        "executor",
        "failure, self._failure = self._failure, None",
        "failure = self._failure",
        "shutdown: is_let_go",
    ),
    "told twice": (
        "executor",
        "if failure is not None and not self._failure_raised",
        "if failure is not None",
        "executor: callers_thread",
    ),
    "last workflow kept": ("executor", "            del workflow\n", "", "shutdown: nothing_that_ended"),
    "last data kept": ("executor", "            del outcome\n", "", "shutdown: nothing_that_ended"),
    "no room awaited": (
        "executor",
        "self._stopping or len(self._collected) < self._size",
        "True",
        "executor: slows_it_down",
    ),
    "queue without end": (
        "executor",
        "lambda: len(self._pending) < self._size",
        "lambda: True",
        "executor: full_queue",
    ),
    "what waits is not given up": ("executor", "self._managed.withdraw()", "pass", "shutdown: shutdown_counts"),
    "version never looked at again": (
        "executor",
        "_POLL_SECONDS if self._would_begin else None",
        "None",
        "executor: new_version",
    ),
    "join of the runner forgotten": ("tasks", "self._thread.join(timeout)", "pass", "shutdown: "),
    "join of the consumer forgotten": ("executor", "consumer.join()", "pass", "shutdown: "),
    "tasks not cancelled": ("tasks", "task.cancel()", "pass", "executor: each_cap_holds_it"),
    "cancelled once": ("tasks", "timeout=_CLOSING_SECONDS", "timeout=None", "shutdown: swallows_a_cancellation"),
    "loop not closed": (
        "tasks",
        "        finally:\n            loop.close()",
        "        finally:\n            pass",
        "executor: order",
    ),
    "loop of a failed start not closed": (
        "tasks",
        "            loop.close()\n            raise",
        "            raise",
        "shutdown: a_start_that_fails",
    ),
    "threads of a workflow left": (
        "tasks",
        "loop.run_until_complete(loop.shutdown_default_executor())",
        "pass",
        "shutdown: threads_of_a_workflow",
    ),
}


@pytest.fixture(scope="module")
def statuses() -> dict[str, int]:
    return exit_statuses(MUTANTS, PACKAGE, "test_rollout", ALWAYS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_red(statuses: dict[str, int], mutant: str) -> None:
    assert statuses[mutant] == (0 if mutant == "nothing" else 1)
