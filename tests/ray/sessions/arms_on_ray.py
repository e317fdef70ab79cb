"""Leaks of public reports on Ray, rebuilt: each leaky, and fixed as its maintainers did or advised."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.dag import InputNode, MultiOutputNode
from ray.util.placement_group import placement_group, remove_placement_group

OF_RAY = ["ray_actor", "ray_placement_group", "ray_ref", "ray_object"]
ARMS = pytest.mark.parametrize("leaky", [pytest.param(True, id="leaky"), pytest.param(False, id="fixed")])
JUDGED = pytest.mark.leakcheck(resources=OF_RAY)


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def step(self, number: int = 0) -> int:
        return number

    def hold(self, refs: list[Any]) -> None:
        self.kept.append(refs[0])

    def use(self, refs: list[Any]) -> int:
        return len(ray.get(refs[0]))

    def put(self) -> None:
        self.kept.append(ray.put(bytearray(200_000)))  # of test_object_made_by_an_actor

    def request(self, payload: bytes) -> int:
        self.kept.append(payload)
        return len(self.kept)


@pytest.fixture(scope="module")
def worker(cluster: None) -> Any:
    made = Worker.remote()
    ray.get(made.step.remote())
    return made


@ray.remote
def train(number: int) -> bytearray:
    return bytearray(150_000 + number)


class Tuner:
    """ray#64231: each trial of Tune left an ObjectRef behind."""

    pending: dict[int, Any] = {}

    def trial(self, number: int, *, leaky: bool) -> None:
        ref = train.remote(number)  # of test_ref_of_a_trial
        self.pending[len(self.pending)] = ref
        ray.get(ref)
        if not leaky:
            self.pending.popitem()


@JUDGED
@ARMS
def test_ref_of_a_trial(leaky: bool) -> None:
    Tuner().trial(1, leaky=leaky)


GROUPS: list[Any] = []


@JUDGED
@ARMS
def test_actor_not_killed(leaky: bool) -> None:
    """A group of workers per training run that nothing ends."""
    one = Worker.remote()  # of test_actor_not_killed
    ray.get(one.step.remote())
    GROUPS.append(one)
    if not leaky:
        ray.kill(GROUPS.pop())


@JUDGED
@ARMS
def test_placement_group_not_removed(leaky: bool) -> None:
    group = placement_group([{"CPU": 0.001}])  # of test_placement_group_not_removed
    ray.get(group.ready())
    if not leaky:
        remove_placement_group(group)


@JUDGED
@ARMS
def test_ref_stored_in_an_actor(worker: Any, leaky: bool) -> None:
    """verl#3453: what a step hands to a worker stays there."""
    refs = [ray.put(bytearray(300_000))]  # of test_ref_stored_in_an_actor
    ray.get(worker.hold.remote(refs) if leaky else worker.use.remote(refs))


@JUDGED
@ARMS
def test_object_made_by_an_actor(worker: Any, leaky: bool) -> None:
    ray.get(worker.put.remote() if leaky else worker.step.remote())


class Submitter:
    """ray#50031: the shell of each job, and what it had started, were never waited for."""

    jobs: list[subprocess.Popen[bytes]] = []

    def submit(self, *, leaky: bool) -> None:
        started = [subprocess.Popen([sys.executable, "-c", ""]) for _ in range(2)]  # of test_zombies_of_jobs
        self.jobs[:] = started
        for one in [] if leaky else started:
            one.wait()
        # Nothing here may reap them: a dropped `Popen` of a process that runs would be polled later.
        for one in started:
            one.returncode = 0


@pytest.mark.leakcheck(resources=["process", *OF_RAY])
@ARMS
def test_zombies_of_jobs(leaky: bool) -> None:
    Submitter().submit(leaky=leaky)


class Graph:
    """ray#50434: a compiled graph keeps the result of each output that is not read."""

    unread: list[Any] = []

    def __init__(self) -> None:
        with InputNode() as given:
            outputs = [Worker.remote().step.bind(given) for _ in range(2)]
        self.compiled = MultiOutputNode(outputs).experimental_compile()

    def execute(self, number: int, *, leaky: bool) -> None:
        first, second = self.compiled.execute(number)
        ray.get(first)  # of test_results_of_a_graph
        if leaky:
            self.unread.append(second)
        else:
            ray.get(second)


@pytest.fixture(scope="module")
def graph(cluster: None) -> Iterator[Graph]:
    made = Graph()
    yield made
    made.compiled.teardown()


@pytest.mark.leakcheck(resources=["object", *OF_RAY])
@ARMS
def test_results_of_a_graph(graph: Graph, leaky: bool) -> None:
    graph.execute(1, leaky=leaky)


class Ingress:
    """ray#52174: a replica of Serve kept memory of each request."""

    seen: list[bytes] = []

    def handle(self, payload: bytes, *, leaky: bool) -> int:
        if leaky:
            self.seen.append(payload * 20_000)  # of test_heap_of_a_replica_in_this_process
        return len(payload)


@pytest.mark.heap_budget()
@ARMS
def test_heap_of_a_replica_in_this_process(leaky: bool) -> None:
    assert Ingress().handle(b"request", leaky=leaky) == 7


@JUDGED
def test_heap_of_a_replica_in_its_own_process(worker: Any) -> None:
    """What is not seen: it is memory of a worker, in which nothing is counted."""
    ray.get(worker.request.remote(b"request" * 1000))


class Agent:
    """ray#65451: the agent of runtime environments opened a log for each job, and closed none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set_up(self, *, leaky: bool) -> None:
        logger = logging.getLogger(f"job-{'leaky' if leaky else 'fixed'}")
        path = self.folder / "runtime_env_setup.log"
        handler = logging.FileHandler(path)  # of test_descriptors_of_runtime_environments
        logger.addHandler(handler)
        if not leaky:
            logger.removeHandler(handler)
            handler.close()


@pytest.mark.leakcheck(resources=["fd", *OF_RAY])
@ARMS
def test_descriptors_of_runtime_environments(tmp_path_factory: pytest.TempPathFactory, leaky: bool) -> None:
    Agent(tmp_path_factory.getbasetemp()).set_up(leaky=leaky)
