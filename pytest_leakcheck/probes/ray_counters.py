"""Count what a driver of Ray keeps in its cluster; nothing here loads Ray, or starts it.

A driver is a process that has called ``ray.init()``. Ray's own tables are read, those that its
commands ``ray list`` and ``ray memory`` show, without its dashboard.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import Any, Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import NotInUse, Stateless, Unavailable

# The variable of the environment that has Ray record where each reference is created, if it is 1 as
# ``ray.init()`` is called. That takes 60 us for each `ray.put`, which takes 840 us without it.
RECORD: Final = "RAY_record_ref_creation_sites"
_WORKER_MODULE: Final = "ray._private.worker"
# Ray alone does not need it.
_NO_GRPC: Final = "Ray's nodes are asked through grpcio, which is not installed"
# In the order in which an actor passes through them, so that one that moves on is not missed.
_STATES_OF_ACTORS: Final = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING", "ALIVE")
# What the id of a reference begins with that stands for an actor's handle, and where the actor's
# own id follows.
_OF_HANDLE: Final = b"\xff" * 8
_ACTOR_ID: Final = slice(8, 24)
# Ray keeps larger objects in a node's object store, and a smaller result in its owner's memory.
_MIN_STORED_BYTES: Final = 100 << 10
# Threads of Ray allocate in the driver's process too: their buffers fill for hundreds of calls.
SHARED_WITH_RAY: Final = frozenset({"heap", "mmap", "rss"})
# The counters of one row share an answer of the nodes for this long.
_ROW_SECONDS: Final = 0.001


def is_loaded() -> bool:
    """Return whether Ray is loaded; its name alone may be that of another folder."""
    return _WORKER_MODULE in sys.modules


def find_core_worker() -> Any:
    """Return what connects this process to a cluster of Ray; None if nothing does."""
    worker: Any = getattr(sys.modules.get(_WORKER_MODULE), "global_worker", None)
    return worker.core_worker if getattr(worker, "connected", False) else None


def list_refs() -> dict[str, str]:
    """Return the objects to which this driver refers, by id, without descriptions."""
    core = find_core_worker()
    return {} if core is None else {key.decode(): "" for key in core.get_all_reference_counts()}


def list_actors() -> dict[str, str]:
    """Return the classes of the cluster's actors that are not dead, by id."""
    if find_core_worker() is None:
        return {}
    read = _state().actor_table
    rows = (read(None, actor_state_name=name) for name in _STATES_OF_ACTORS)
    return {key: row["ActorClassName"] for table in rows for key, row in table.items()}


def list_placement_groups() -> dict[str, str]:
    """Return the names of the cluster's placement groups that are not removed, by id."""
    if find_core_worker() is None:
        return {}
    table = _state().placement_group_table()
    return {
        key: row["name"] or "unnamed placement group"
        for key, row in table.items()
        if row["state"] != "REMOVED"
    }


@dataclass(frozen=True, slots=True)
class Reference:
    """What one process of the cluster refers to: an object, or an actor by its handle.

    Attributes:
        key: The id of the object or actor, in hex digits.
        size: Bytes of the object; 0 if the process does not know.
        record: Ray's own record of where the reference was created; empty if it keeps none.
        kind: How the process refers to it, in Ray's words.
        holder: The process.
        is_driver: Whether that process is a driver, and no worker.
    """

    key: str
    size: int
    record: str
    kind: str
    holder: int
    is_driver: bool

    @property
    def is_handle(self) -> bool:
        return self.kind == "ACTOR_HANDLE"


@dataclass(frozen=True, slots=True)
class Cluster:
    """What all processes of the cluster refer to; `gap` says why some of it is unknown."""

    references: tuple[Reference, ...] = ()
    workers: tuple[int, ...] = ()
    gap: str = ""

    @property
    def objects(self) -> dict[str, str]:
        """The objects that any process refers to, by id, without descriptions."""
        return {one.key: "" for one in self.references if not one.is_handle}


def look_at_cluster() -> Cluster:
    """Ask each node what its processes refer to."""
    if find_core_worker() is None:
        return Cluster()
    if not _can_ask():
        return Cluster(gap=_NO_GRPC)
    try:
        nodes = list(_ask_nodes())
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many kinds as a cluster goes down
        return Cluster(gap=f"Ray's nodes did not answer ({type(error).__name__})")
    silent = sum(max(0, node.num_workers - len(node.core_workers_stats)) for node in nodes)
    rows = ((worker, row) for worker in _workers_of(nodes) for row in worker.object_refs)
    return Cluster(
        tuple(_read_reference(worker, row) for worker, row in rows),
        tuple(worker.pid for worker in _workers_of(nodes) if not _is_driver(worker)),
        f"{silent} of Ray's workers did not answer" if silent else "",
    )


def _read_reference(worker: Any, row: Any) -> Reference:
    is_handle = row.object_id.startswith(_OF_HANDLE)
    kinds = (
        ("ACTOR_HANDLE", is_handle),
        ("PINNED_IN_MEMORY", row.pinned_in_memory),
        ("USED_BY_PENDING_TASK", row.submitted_task_ref_count),
        ("LOCAL_REFERENCE", row.local_ref_count),
        ("CAPTURED_IN_OBJECT", row.contained_in_owned),
    )
    return Reference(
        (row.object_id[_ACTOR_ID] if is_handle else row.object_id).hex(),
        max(0, row.object_size),
        row.call_site,
        next((kind for kind, holds in kinds if holds), "BORROWED"),
        worker.pid,
        _is_driver(worker),
    )


def _can_ask() -> bool:
    return find_spec("grpc") is not None


def _ask_nodes() -> Iterator[Any]:
    ask = import_module("ray._private.internal_api").node_stats
    for node in _state().node_table():
        if node["Alive"]:
            yield ask(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=True)


def _workers_of(nodes: list[Any]) -> Iterator[Any]:
    return (worker for node in nodes for worker in node.core_workers_stats)


def _is_driver(worker: Any) -> bool:
    return bool(worker.worker_type == import_module("ray.core.generated.common_pb2").DRIVER)


def _state() -> Any:
    return sys.modules["ray._private.state"].state


class _Counter(Stateless):
    """A counter that is 0 while this process is no driver.

    It repeats its last value if the cluster does not answer, as while it shuts down.
    """

    resource: str

    def __init__(self) -> None:
        # In an array, because an int object would be a block that the harness allocates.
        self._last = array("q", (0,))

    def open(self) -> None:
        if not is_loaded():
            raise NotInUse("Ray is not loaded by the end of warm-up: there is no cluster to ask")
        # Ray loads modules and starts threads for the first answer.
        self.read()

    def read(self) -> int:
        if find_core_worker() is None:
            return 0
        with suppress(Exception):
            self._last[0] = self._count()
        return self._last[0]

    def _count(self) -> int:
        raise NotImplementedError


class Refs(_Counter):
    """``ray_ref``: objects to which this driver refers (``ObjectRef``), or which its tasks use.

    Resolution: one. Noise: none; the plugin waits for tasks that are about to end. Cost: 1 us, and
    2 us for each reference. Scope: this process.
    """

    resource = "ray_ref"

    def _count(self) -> int:
        return len(find_core_worker().get_all_reference_counts())


class Actors(_Counter):
    """``ray_actor``: actors of the cluster that are not dead, those that wait for a node included.

    Resolution: one. Noise: none. Cost: 1.2 ms. Scope: all drivers of the cluster.
    """

    resource = "ray_actor"

    def _count(self) -> int:
        return len(list_actors())


class PlacementGroups(_Counter):
    """``ray_placement_group``: placement groups of the cluster that are not removed.

    Resolution: one. Noise: none. Cost: 0.3 ms. Scope: all drivers of the cluster.
    """

    resource = "ray_placement_group"

    def _count(self) -> int:
        return len(list_placement_groups())


class _Counts:
    """The counts of the last answer of all nodes."""

    number = 0
    at = -inf
    objects = size = workers = 0

    def ask(self) -> None:
        sizes: dict[bytes, int] = {}
        workers = 0
        for worker in _workers_of(list(_ask_nodes())):
            workers += not _is_driver(worker)
            for row in worker.object_refs:
                if not row.object_id.startswith(_OF_HANDLE):
                    sizes[row.object_id] = max(row.object_size, sizes.get(row.object_id, 0))
        self.objects, self.workers = len(sizes), workers
        self.size = sum(size for size in sizes.values() if size > _MIN_STORED_BYTES)
        self.number, self.at = self.number + 1, clock.monotonic()


_COUNTS: Final = _Counts()


class _OfNodes(_Counter):
    """A counter that all nodes are asked for, once for the counters of one row."""

    def __init__(self) -> None:
        super().__init__()
        self._used = _COUNTS.number

    def open(self) -> None:
        if is_loaded() and not _can_ask():
            raise Unavailable(f"{_NO_GRPC}: pip install grpcio")
        super().open()

    def _count(self) -> int:
        if self._used == _COUNTS.number or clock.monotonic() > _COUNTS.at + _ROW_SECONDS:
            _COUNTS.ask()
        self._used = _COUNTS.number
        return self._take()

    def _take(self) -> int:
        raise NotImplementedError


class Objects(_OfNodes):
    """``ray_object``: objects to which any process of the cluster refers, such as an actor.

    Resolution: one. Noise: none; a worker that does not answer in time leaves out what it alone
    refers to. Cost: 3 ms for a node, together with ``plasma`` and ``ray_worker``, and more with
    each reference. Scope: all processes of the cluster. Fallback: none; without grpcio, which Ray's
    extra `default` requires, the nodes cannot be asked.
    """

    resource = "ray_object"

    def _take(self) -> int:
        return _COUNTS.objects


class Plasma(_OfNodes):
    """``plasma``: bytes of the objects of ``ray_object`` that are larger than 100 KiB, each once.

    Ray keeps these in the object stores of its nodes. The fill of a store itself is not read: Ray
    empties it up to a second late. Resolution: one byte. Noise, cost, scope: as ``ray_object``.
    """

    resource = "plasma"

    def _take(self) -> int:
        return _COUNTS.size


class Workers(_OfNodes):
    """``ray_worker``: worker processes of the cluster, with those that wait for work.

    Resolution: one. Noise: Ray starts workers ahead and ends idle ones, up to the number of CPUs.
    Cost, scope: as ``ray_object``.
    """

    resource = "ray_worker"

    def _take(self) -> int:
        return _COUNTS.workers
