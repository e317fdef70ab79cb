"""The executor of the write-up, pasted into a user's test: a gauge and a mark find the fault, and its fix is green."""

from __future__ import annotations

import pytest

from projects import Outcome, Project

# The write-up's classes, as its branch had them: the engine creates a manager, and the executor divides only its own.
AREAL = """
    import asyncio
    import queue
    import threading
    import time
    from types import SimpleNamespace

    import pytest

    CONFIG = SimpleNamespace(max_concurrent_rollouts=None, consumer_batch_size=64, max_head_offpolicyness=1)


    class FilteredSamplesCapacityModifier:
        def __init__(self):
            self.filtered = 0

        def modify_capacity(self, capacity, current_version, stat):
            return capacity + self.filtered


    class StalenessManager:
        def __init__(self, max_concurrent_rollouts, consumer_batch_size, max_staleness):
            self.max_concurrent_rollouts = max_concurrent_rollouts
            self.consumer_batch_size = consumer_batch_size
            self.max_staleness = max_staleness
            self.lock = threading.Lock()
            self.stat = SimpleNamespace(submitted=0, running=0, accepted=0)
            self.modifiers = []

        def register_capacity_modifier(self, modifier):
            self.modifiers.append(modifier)

        def get_capacity(self, current_version):
            with self.lock:
                stat = self.stat
                concurrency = max(1, self.max_concurrent_rollouts) - stat.running
                allowed = (self.max_staleness + current_version + 1) * max(1, self.consumer_batch_size)
                capacity = min(concurrency, allowed - (stat.accepted + stat.running))
                for modifier in self.modifiers:
                    capacity = modifier.modify_capacity(capacity, current_version, stat)
                return capacity

        def on_rollout_submitted(self):
            with self.lock:
                self.stat.submitted += 1
                self.stat.running += 1

        def on_rollout_accepted(self):
            with self.lock:
                self.stat.running -= 1
                self.stat.accepted += 1


    class WorkflowExecutor:
        def __init__(self, config, inference_engine, staleness_manager=None):
            self.config = config
            self.inference_engine = inference_engine
            self.staleness_manager = staleness_manager
            self.input_queue = queue.Queue()
            self.output_queue = queue.Queue()
            self.exiting = threading.Event()

        def initialize(self, train_data_parallel_size=None):
            if self.staleness_manager is None:
                size = train_data_parallel_size or 1
                limit = self.config.max_concurrent_rollouts or self.config.consumer_batch_size
                self.staleness_manager = StalenessManager(
                    max(1, limit // size),
                    max(1, self.config.consumer_batch_size // size),
                    self.config.max_head_offpolicyness,
                )
            self.rollout_thread = threading.Thread(target=lambda: asyncio.run(self._rollout_thread()), daemon=True)
            self.rollout_thread.start()

        def destroy(self):
            self.exiting.set()
            self.rollout_thread.join()

        async def _rollout_thread(self):
            running = set()
            while not self.exiting.is_set():
                while not self.input_queue.empty() and self.capacity() > 0:
                    self.staleness_manager.on_rollout_submitted()
                    running.add(asyncio.create_task(self.input_queue.get()()))
                ended = {task for task in running if task.done()}
                for task in ended:
                    self.staleness_manager.on_rollout_accepted()
                    self.output_queue.put(task.result())
                running -= ended
                await asyncio.sleep(0.01)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

        def capacity(self):
            return self.staleness_manager.get_capacity(self.inference_engine.get_version())


    def create_workflow_executor(inference_engine, config, staleness_manager, train_data_parallel_size=None):
        executor = WorkflowExecutor(config, inference_engine, staleness_manager)
        staleness_manager.register_capacity_modifier(FilteredSamplesCapacityModifier())
        executor.initialize(train_data_parallel_size=train_data_parallel_size)
        return executor


    class RemoteSGLangEngine:
        def __init__(self, config):
            self.config = config

        def get_version(self):
            return 0

        def initialize(self, train_data_parallel_size=None):
            staleness_manager = StalenessManager(
                self.config.max_concurrent_rollouts or self.config.consumer_batch_size,
                self.config.consumer_batch_size,
                self.config.max_head_offpolicyness,
            )
            self.workflow_executor = create_workflow_executor(
                self, self.config, staleness_manager, train_data_parallel_size=train_data_parallel_size
            )


    async def rollout():
        kv_cache = bytearray(b"x") * SIZE
        await asyncio.sleep(3600)
        return len(kv_cache)

"""
# What a user writes to test them.
TEST = """
    @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine=ENGINE, **BOUNDS)
    def test_rollouts(world_size, leakcheck):
        engine = RemoteSGLangEngine(CONFIG)
        engine.initialize(train_data_parallel_size=world_size)
        executor = engine.workflow_executor
        leakcheck.gauge("in_flight", lambda: executor.staleness_manager.stat.running)
        for _ in range(100):
            executor.input_queue.put(rollout)
        while executor.capacity() > 0:
            time.sleep(0.01)
        executor.destroy()
"""
IN_FLIGHT = 'in_flight={"total": "<= max(64, world_size)", "at_least": "64 - (world_size - 1)"}'
# The write-up's fix: no manager is handed down; the factory registers its modifier once the executor has one.
FIX = [
    (
        """
            staleness_manager = StalenessManager(
                self.config.max_concurrent_rollouts or self.config.consumer_batch_size,
                self.config.consumer_batch_size,
                self.config.max_head_offpolicyness,
            )
""",
        "\n",
    ),
    ("self, self.config, staleness_manager, train", "self, self.config, train"),
    (
        "config, staleness_manager, train_data_parallel_size=None):",
        "config, staleness_manager=None, train_data_parallel_size=None):",
    ),
    ("        staleness_manager.register_capacity_modifier(FilteredSamplesCapacityModifier())\n", ""),
    (
        "        return executor\n",
        "        if staleness_manager is None:\n"
        "            executor.staleness_manager.register_capacity_modifier(FilteredSamplesCapacityModifier())\n"
        "        return executor\n",
    ),
]


# The executor's life, over and over.
LIFE = """
    @pytest.mark.thread_budget(0)
    @pytest.mark.fd_budget(0)
    def test_rollouts():
        engine = RemoteSGLangEngine(CONFIG)
        engine.initialize(train_data_parallel_size=4)
        engine.workflow_executor.input_queue.put(rollout)
        while not engine.workflow_executor.staleness_manager.stat.running:
            time.sleep(0.001)
        engine.workflow_executor.destroy()
"""
MEMORY = 'rss="<= 64 MiB + 8 MiB * world_size"'
MIB = 1 << 20


def changed(text: str, changes: tuple[tuple[str, str], ...]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def judge(
    project: Project, *changes: tuple[str, str], engine: str = "thread", bounds: str = IN_FLIGHT, size: int = 0
) -> Outcome:
    """Run the user's test of the write-up's code, with changes, as CI does: there, inconclusive is red."""
    head = f"    ENGINE, SIZE, BOUNDS = {engine!r}, {size}, dict({bounds})\n"
    return project.run_test(head + changed(AREAL + TEST, changes), "--leakcheck-max-time=10", CI="1")


def points(ran: Outcome, resource: str = "gauge:in_flight") -> list[float]:
    return [point["peak"] for point in ran.finding("test_rollouts", resource)["points"]]


def test_the_manager_of_the_engine_is_red_and_the_fix_green_with_ranks_as_threads(project: Project) -> None:
    ran = judge(project)
    assert ran.finding("test_rollouts", "gauge:in_flight")["verdict"] == "over_budget", ran.text
    assert points(ran) == [64, 128, 256]
    assert "each rank takes as much as one alone: divide what is meant for all ranks by world_size" in ran.one_line
    fixed = judge(project, *FIX)
    assert fixed.status == 0, fixed.text
    assert points(fixed) == [64, 64, 64]


@pytest.mark.laboratory
def test_over_gloo_it_is_red_in_memory_too_and_the_fix_green(project: Project) -> None:
    ran = judge(project, engine="gloo", bounds=f"{IN_FLIGHT}, {MEMORY}", size=MIB)
    assert points(ran) == [64, 128, 256]
    assert ran.finding("test_rollouts", "rss")["verdict"] == "over_budget", ran.text
    assert [round(peak / (64 * MIB), 1) for peak in points(ran, "rss")] == [1.0, 2.0, 4.0]
    fixed = judge(project, *FIX, engine="gloo", bounds=f"{IN_FLIGHT}, {MEMORY}", size=MIB)
    assert fixed.status == 0, fixed.text
    assert points(fixed) == [64, 64, 64]
    assert [round(peak / (64 * MIB), 1) for peak in points(fixed, "rss")] == [1.0, 1.0, 1.0]


@pytest.mark.laboratory
@pytest.mark.parametrize("engine", ["thread", "process"])
def test_a_bound_on_memory_alone_names_the_line_that_takes_it(project: Project, engine: str) -> None:
    ran = judge(project, engine=engine, bounds=MEMORY, size=MIB)
    found = ran.finding("test_rollouts", "rss")
    assert found["verdict"] == "over_budget", ran.text
    assert found["site"]["function"] == "rollout"
    assert 'kv_cache = bytearray(b"x") * SIZE' in ran.text
    fixed = judge(project, *FIX, engine=engine, bounds=MEMORY, size=MIB)
    assert fixed.status == 0, fixed.text


@pytest.mark.laboratory
@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ((), "at world_size 2: 128, at most 64 allowed"),
        (
            (*FIX, ("max(1, limit // size),", "max(1, limit // size // size),")),
            "at world_size 2: 32, at least 63 required",
        ),
        ((*FIX, ("self.rollout_thread.start()", "pass")), "at world_size 1: 0, at least 64 required"),
    ],
    ids=["not divided", "divided twice", "worker not started"],
)
def test_a_test_that_waits_for_a_time_sees_too_many_and_too_few(
    project: Project, changes: tuple[tuple[str, str], ...], seen: str
) -> None:
    patient = (
        "        while executor.capacity() > 0:\n            time.sleep(0.01)\n        executor.destroy",
        "        time.sleep(2)\n        executor.exiting.set",
    )
    ran = judge(project, *changes, patient)
    assert seen in " ".join(one["reason"] for one in ran.findings), ran.text
    assert "over_budget" in {one["verdict"] for one in ran.findings}


@pytest.mark.laboratory
def test_one_that_waits_for_the_worker_that_was_not_started_says_where_it_hangs(project: Project) -> None:
    ran = judge(project, *FIX, ("            self.rollout_thread.start()\n", ""))
    assert ran.status == 1
    assert "hung at world_size=1: made no progress for 10 s" in ran.text
    assert "in test_rollouts" in ran.text


@pytest.mark.laboratory
def test_a_manager_that_is_divided_before_it_is_handed_in_is_green(project: Project) -> None:
    """The write-up calls this compatible."""
    divided = (
        (
            "self.config.max_concurrent_rollouts or self.config.consumer_batch_size,\n",
            "64 // train_data_parallel_size,\n",
        ),
        (
            "                self.config.consumer_batch_size,\n                self",
            "                64 // train_data_parallel_size,\n                self",
        ),
    )
    ran = judge(project, *divided)
    assert ran.status == 0, ran.text
    assert points(ran) == [64, 64, 64]


@pytest.mark.laboratory
def test_a_worker_that_is_never_joined_is_red_with_its_line(project: Project) -> None:
    running = ("            self.exiting.set()\n            self.rollout_thread.join()\n", "            pass\n")
    threads_alone = ("    @pytest.mark.fd_budget(0)\n", "")
    head = "    SIZE = 0\n"
    ran = project.run_test(head + changed(AREAL + LIFE, (*FIX, running, threads_alone)), CI="1")
    found = ran.finding("test_rollouts", "thread")
    assert (found["verdict"], found["slope"]) == ("leak", 1.0), ran.text
    assert "self.rollout_thread.start()" in ran.text
    assert "a thread does not end: signal it to stop, then join() it" in ran.one_line
    fixed = project.run_test(head + changed(AREAL + LIFE, tuple(FIX)), CI="1")
    assert fixed.status == 0, fixed.text
    assert set(fixed.verdicts.values()) == {"ok"}
