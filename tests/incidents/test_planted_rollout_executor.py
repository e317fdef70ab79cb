"""Regressions of incident 4 turn the tests of its fixed arm red, and refactorings do not."""

from __future__ import annotations

import pytest

from planting import Change, judge_change, red_findings
from projects import Project

pytestmark = pytest.mark.laboratory

IN_FLIGHT = "gauge:in_flight"
ENGINE_CALL = "return create_workflow_executor(self, self.config, train_data_parallel_size=train_data_parallel_size)"
WORLD_SIZE = "return int(distributed.get_world_size())"
SHARE = "max(1, self.concurrent // world_size), max(1, self.consumer_batch_size // world_size)"

# What each change turns red: tests, without the arm, resources and verdicts.
REGRESSIONS = [
    (
        Change(
            "each rank applies the limits of all ranks",
            {"staleness.py": [(SHARE, "self.concurrent, self.consumer_batch_size")]},
            "test_as_it_was_met or test_staleness_alone",
        ),
        {("test_as_it_was_met", IN_FLIGHT, "over_budget"), ("test_staleness_alone", IN_FLIGHT, "over_budget")},
    ),
    (
        Change(
            "the engine creates a manager if there are modifiers",
            {
                "fixed.py": [
                    (
                        ENGINE_CALL,
                        "manager = StalenessManager(self.config, self.get_version) if self.modifiers else None\n"
                        "        return create_workflow_executor(self, self.config, manager, train_data_parallel_size)",
                    )
                ]
            },
            "TestWorlds",
        ),
        {
            ("test_as_it_was_met", IN_FLIGHT, "over_budget"),
            ("test_concurrency_alone", IN_FLIGHT, "over_budget"),
            ("test_staleness_alone", IN_FLIGHT, "over_budget"),
        },
    ),
    (
        Change(
            "the engine creates a manager if there are no modifiers",
            {
                "fixed.py": [
                    (
                        ENGINE_CALL,
                        "manager = None if self.modifiers else StalenessManager(self.config, self.get_version)\n"
                        "        return create_workflow_executor(self, self.config, manager, train_data_parallel_size)",
                    )
                ]
            },
            "test_as_it_was_met or test_without_modifiers",
        ),
        {("test_without_modifiers", IN_FLIGHT, "over_budget")},
    ),
    (
        Change(
            "the engine does not pass the number of ranks on",
            {"fixed.py": [(ENGINE_CALL, "return create_workflow_executor(self, self.config)")]},
            "test_as_it_was_met",
        ),
        {("test_as_it_was_met", IN_FLIGHT, "over_budget")},
    ),
    (
        Change(
            "the world size comes from SLURM_NTASKS",
            {
                "executor.py": [
                    (WORLD_SIZE, 'return int(os.environ.get("SLURM_NTASKS", "1"))'),
                    ("import sys\n", "import os\nimport sys\n"),
                ]
            },
            "TestRanks",
        ),
        {("test_memory", IN_FLIGHT, "over_budget"), ("test_memory", "rss", "over_budget")},
    ),
    (
        Change(
            "the world size comes from LOCAL_WORLD_SIZE",
            {
                "executor.py": [
                    (WORLD_SIZE, 'return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))'),
                    ("import sys\n", "import os\nimport sys\n"),
                ]
            },
            "TestRanks",
        ),
        {("test_memory", IN_FLIGHT, "over_budget"), ("test_memory", "rss", "over_budget")},
    ),
    (
        Change(
            "shares are rounded to the nearest number",
            {"staleness.py": [("self.concurrent // world_size)", "round(self.concurrent / world_size))")]},
            "test_as_it_was_met or test_concurrency_alone",
        ),
        {("test_concurrency_alone", IN_FLIGHT, "over_budget")},
    ),
    (
        Change(
            "tasks that have ended are kept while the executor lives",
            {
                "tasks.py": [
                    (
                        "        self._ending = False\n\n",
                        "        self._ending = False\n        self._ended_tasks: list[object] = []\n\n",
                    ),
                    (
                        "        self._tasks.discard(task)\n",
                        "        self._ended_tasks.append(task)\n        self._tasks.discard(task)\n",
                    ),
                ]
            },
            "TestStartStop",
        ),
        {("test_it_goes_on", "task", "leak")},
    ),
    (
        Change(
            "shares are rounded up",
            {"staleness.py": [("self.concurrent // world_size)", "-(-self.concurrent // world_size))")]},
            "test_as_it_was_met or test_concurrency_alone",
        ),
        {("test_concurrency_alone", IN_FLIGHT, "over_budget")},
    ),
    (
        Change(
            "the limits are divided twice",
            {"fixed.py": [("RolloutExecutor(config, engine", "RolloutExecutor(config.share(4), engine")]},
            "test_as_it_was_met",
        ),
        {("test_as_it_was_met", IN_FLIGHT, "over_budget")},
    ),
    (
        Change(
            "an executor is ended at the end of the process",
            {
                "executor.py": [
                    (
                        "        self._runner.start()\n",
                        "        atexit.register(self.shutdown)\n        self._runner.start()\n",
                    ),
                    ("import sys\n", "import atexit\nimport sys\n"),
                ]
            },
            "test_they_end",
        ),
        {("test_they_end", "object", "leak")},
    ),
]
REFACTORINGS = [
    Change(
        "the engine hands over a manager with divided limits",
        {
            "fixed.py": [
                (
                    ENGINE_CALL,
                    "size = 1 if train_data_parallel_size is None else train_data_parallel_size\n"
                    "        manager = StalenessManager(self.config.share(size), self.get_version)\n"
                    "        return create_workflow_executor(self, self.config, manager, size)",
                )
            ]
        },
        "TestWorlds or TestStartStop",
    ),
    Change(
        "a subclass of the executor registers the modifiers",
        {
            "fixed.py": [
                (
                    "def create_workflow_executor(",
                    "class _Registering(RolloutExecutor[Any]):\n"
                    "    modifiers: Sequence[CapacityModifier] = ()\n\n"
                    "    def initialize(self, train_data_parallel_size: int | None = None) -> StalenessManager:\n"
                    "        manager = super().initialize(train_data_parallel_size)\n"
                    "        for modifier in self.modifiers:\n"
                    "            manager.register(modifier)\n"
                    "        return manager\n\n\n"
                    "def create_workflow_executor(",
                ),
                (
                    "    executor: RolloutExecutor[Any] = RolloutExecutor(config, engine.get_version, staleness_manager)\n",
                    "    executor = _Registering(config, engine.get_version, staleness_manager)\n"
                    "    executor.modifiers = engine.modifiers\n",
                ),
                (
                    "    for modifier in engine.modifiers:\n        manager.register(modifier)\n",
                    "",
                ),
            ]
        },
        "TestWorlds or TestStartStop",
    ),
]


@pytest.mark.parametrize(("change", "red"), REGRESSIONS, ids=[change.what for change, _red in REGRESSIONS])
def test_a_regression_is_red(project: Project, change: Change, red: set[tuple[str, str, str]]) -> None:
    ran = judge_change(project, "rollout_executor", change)
    assert red_findings(ran) == {(f"{test}[fixed]", *rest) for test, *rest in red}, ran.text


@pytest.mark.parametrize("change", REFACTORINGS, ids=[change.what for change in REFACTORINGS])
def test_a_refactoring_is_green(project: Project, change: Change) -> None:
    ran = judge_change(project, "rollout_executor", change)
    assert {one["verdict"] for one in ran.findings} == {"ok"}, ran.text
    assert ran.status == 0, ran.text
