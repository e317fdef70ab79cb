"""The counters of Ray, with a cluster that is written down: what needs Ray itself is in tests/ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.probes import processes, ray_counters
from pytest_leakcheck.probes.base import NotInUse
from pytest_leakcheck.probes.catalog import CATALOG, open_instruments
from pytest_leakcheck.probes.ray_counters import (
    Actors,
    Objects,
    PlacementGroups,
    Plasma,
    Reference,
    Refs,
    Workers,
    list_actors,
    list_placement_groups,
    list_refs,
    look_at_cluster,
)

DRIVER = 1
PUT, RESULT, ACTOR = b"\x00" + b"\xff" * 23 + b"\x01\x00\x00\x00", b"\x07" * 28, b"\xe0" * 16
OF_RAY = [name for name, one in RESOURCES.items() if one.of_cluster]


def row(key: bytes, size: int = -1, site: str = "", **counts: int) -> SimpleNamespace:
    given = {"local_ref_count": 0, "submitted_task_ref_count": 0, "pinned_in_memory": False, "contained_in_owned": []}
    return SimpleNamespace(object_id=key, object_size=size, call_site=site, **given | counts)


def process(pid: int, *rows: SimpleNamespace, worker_type: int = 0) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, worker_type=worker_type, object_refs=rows)


class Cluster:
    """A cluster that one can write down; `install` makes this process its driver."""

    def __init__(self) -> None:
        self.refs: dict[bytes, dict[str, int]] = {}
        self.actors: dict[str, dict[str, str]] = {}
        self.groups: dict[str, dict[str, str]] = {}
        self.processes: list[SimpleNamespace] = []
        self.silent = self.asked = 0
        self.grpc: object = "installed"
        self.worker = SimpleNamespace(connected=True, core_worker=SimpleNamespace(get_all_reference_counts=self._refs))

    def _refs(self) -> dict[bytes, dict[str, int]]:
        return dict(self.refs)

    def actor_table(self, _actor: None, actor_state_name: str) -> dict[str, dict[str, str]]:
        return {key: one for key, one in self.actors.items() if one["State"] == actor_state_name}

    def placement_group_table(self) -> dict[str, dict[str, str]]:
        return self.groups

    def node_table(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeManagerAddress": "here", "NodeManagerPort": 1},
            {"Alive": False, "NodeManagerAddress": "gone", "NodeManagerPort": 2},
        ]

    def node_stats(self, address: str, port: int, *, include_memory_info: bool) -> SimpleNamespace:
        assert (address, port, include_memory_info) == ("here", 1, True)
        self.asked += 1
        return SimpleNamespace(core_workers_stats=self.processes, num_workers=len(self.processes) + self.silent)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        modules: dict[str, dict[str, object]] = {
            "ray": {"__file__": str(Path(sys.prefix, "ray", "__init__.py"))},
            "ray._private.worker": {"global_worker": self.worker},
            "ray._private.state": {"state": self},
            "ray._private.internal_api": {"node_stats": self.node_stats},
            "ray.core.generated.common_pb2": {"DRIVER": DRIVER},
        }
        monkeypatch.setattr(ray_counters, "find_spec", lambda _name: self.grpc)
        for name, values in modules.items():
            module = ModuleType(name)
            vars(module).update(values)
            monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    found.install(monkeypatch)
    return found


def test_without_ray_there_is_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    # A folder of this name, such as tests/ray, is no Ray.
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.delitem(sys.modules, "ray._private.worker", raising=False)
    opened, missing = open_instruments(OF_RAY)
    assert opened == []
    assert sorted(missing) == sorted(OF_RAY)
    assert all(isinstance(why, NotInUse) for why in missing.values())
    assert str(missing["ray_ref"]) == "Ray is not loaded by the end of warm-up: there is no cluster to ask"


def test_before_init_and_after_shutdown_all_counters_are_0(cluster: Cluster) -> None:
    cluster.refs[PUT] = {}
    cluster.worker.connected = False
    opened, missing = open_instruments(OF_RAY)
    assert {one.resource: one.read() for one in opened} == dict.fromkeys(OF_RAY, 0)
    assert (missing, list_refs(), list_actors(), list_placement_groups()) == ({}, {}, {}, {})
    cluster.worker.connected = True
    assert {one.resource: one.read() for one in opened}["ray_ref"] == 1


def test_each_counter_counts_its_kind(cluster: Cluster) -> None:
    cluster.refs = {PUT.hex().encode(): {"local": 1}, RESULT.hex().encode(): {"local": 1}}
    states = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING", "DEAD")
    cluster.actors = {state: {"State": state, "ActorClassName": f"Of{state}"} for state in states}
    cluster.groups = {state: {"state": state, "name": ""} for state in ("PENDING", "CREATED", "REMOVED")}
    handle = b"\xff" * 8 + ACTOR + b"\x01\x00\x00\x00"
    cluster.processes = [
        process(7, row(PUT, 300_000), row(handle), row(RESULT, 15), worker_type=DRIVER),
        # The same object, of which this process does not know the size.
        process(8, row(PUT)),
        process(9, row(b"\x09" * 28, 200_000)),
    ]
    read = {kind.resource: kind().read() for kind in (Actors, PlacementGroups, Refs, Objects, Workers, Plasma)}
    assert read == {
        "ray_actor": 4,
        "ray_placement_group": 2,
        "ray_ref": 2,
        "ray_object": 3,
        "ray_worker": 2,
        "plasma": 500_000,
    }
    assert list_refs() == {PUT.hex(): "", RESULT.hex(): ""}
    assert list_actors()["ALIVE"] == "OfALIVE"
    assert sorted(list_placement_groups()) == ["CREATED", "PENDING"]


def test_the_counters_of_a_row_share_one_answer_and_later_ones_ask_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: now[0])
    objects, workers, plasma = Objects(), Workers(), Plasma()
    assert [one.read() for one in (objects, workers, plasma)] == [0, 0, 0]
    assert cluster.asked == 1
    # The first one of the next row asks again, however soon that comes.
    cluster.processes = [process(8, row(PUT, 300_000))]
    assert [one.read() for one in (objects, workers, plasma)] == [1, 1, 300_000]
    assert cluster.asked == 2
    objects.read()
    cluster.processes = []
    now[0] += 0.01
    assert plasma.read() == 0
    assert cluster.asked == 4


def test_a_cluster_that_does_not_answer_leaves_the_last_value(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.actors = {"a": {"State": "ALIVE", "ActorClassName": "A"}}
    counter = Actors()
    counter.open()

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr(cluster, "actor_table", refuse)
    monkeypatch.setattr(cluster, "node_table", refuse)
    assert counter.read() == 1
    assert look_at_cluster() == ray_counters.Cluster(gap="Ray's nodes did not answer (ConnectionError)")


def test_without_grpcio_what_only_nodes_know_is_unavailable_and_never_0(cluster: Cluster) -> None:
    cluster.grpc = None
    opened, missing = open_instruments(OF_RAY)
    assert [one.resource for one in opened] == ["ray_actor", "ray_placement_group", "ray_ref"]
    assert sorted(missing) == ["plasma", "ray_object", "ray_worker"]
    why = "Ray's nodes are asked through grpcio, which is not installed"
    assert str(missing["plasma"]) == f"{why}: pip install grpcio"
    assert not isinstance(missing["plasma"], NotInUse)
    assert look_at_cluster().gap == why


def test_a_reference_says_what_holds_it_and_whether_all_have_answered(cluster: Cluster) -> None:
    cluster.silent = 1
    cluster.processes = [
        process(7, row(PUT, 5, "(put object) ", local_ref_count=2), worker_type=DRIVER),
        process(8, row(PUT, pinned_in_memory=True, local_ref_count=1), row(RESULT, submitted_task_ref_count=1)),
        process(9, row(b"\xff" * 8 + ACTOR + b"\x01\x00\x00\x00", local_ref_count=1), row(RESULT)),
    ]
    found = look_at_cluster()
    assert found.references == (
        Reference(PUT.hex(), 5, "(put object) ", "LOCAL_REFERENCE", 7, is_driver=True),
        Reference(PUT.hex(), 0, "", "PINNED_IN_MEMORY", 8, is_driver=False),
        Reference(RESULT.hex(), 0, "", "USED_BY_PENDING_TASK", 8, is_driver=False),
        Reference(ACTOR.hex(), 0, "", "ACTOR_HANDLE", 9, is_driver=False),
        Reference(RESULT.hex(), 0, "", "BORROWED", 9, is_driver=False),
    )
    assert (found.workers, found.gap) == ((8, 9), "1 of Ray's workers did not answer")
    assert found.references[3].is_handle


@pytest.mark.usefixtures("cluster")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rays_own_processes_are_no_part_of_the_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "ray" / "_private" / "log_monitor.py"
    script.parent.mkdir(parents=True)
    script.write_text("import time; print('started', flush=True); time.sleep(60)", encoding="utf-8")
    tree = processes.process_tree()
    tree.open()
    before = tree.read()
    with subprocess.Popen([sys.executable, "-u", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with child.stdout:
            assert tree.read().process == before.process + 1
            monkeypatch.setattr(sys.modules["ray"], "__file__", os.fspath(tmp_path / "ray" / "__init__.py"))
            assert tree.read() == before._replace(fd=before.fd + 1)
            assert child.pid not in set(processes.descendants(os.getpid()))
            child.kill()
    tree.close()


def test_every_counter_of_the_cluster_is_in_the_catalog() -> None:
    assert {CATALOG[name]().resource for name in OF_RAY} == set(OF_RAY)
