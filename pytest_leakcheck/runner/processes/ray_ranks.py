"""Run each rank of a world in a Ray actor, from a separate process, which is Ray's driver.

The actors write into the folder of the session, as ranks that are its processes do. On another
machine they write into a folder of their own, and an `Agent` sends what is new there.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.foreign_files import write_text
from pytest_leakcheck.runner.processes.ray_agents import (
    Place,
    Remote,
    end_ranks,
    one_line,
    without_ray,
)
from pytest_leakcheck.runner.processes.supervisor import TUNABLES_VARIABLE, describe_exit

# Seconds: to connect, until there is room for all ranks, and until all of them have a process.
# Processes are started one after the other.
_CONNECT_SECONDS: Final = 40.0
_ROOM_SECONDS: Final = 20.0
_START_SECONDS: Final = 20.0
_START_SECONDS_PER_RANK: Final = 4.0
_POLL_SECONDS: Final = 0.1
# The settings of the allocator with which a cluster's processes have been started.
TUNED_VARIABLE: Final = "LEAKCHECK_TUNED"
# The node of a rank, for its recording.
NODE_VARIABLE: Final = "LEAKCHECK_NODE"
# Set where ranks are on several machines: they share no folder in which to form a process group.
APART_VARIABLE: Final = "LEAKCHECK_APART"


def start_up_seconds(ranks: int) -> float:
    """Return how long it may take until all ranks have a process, if one must be started again."""
    return _CONNECT_SECONDS + _ROOM_SECONDS + 2 * _seconds_to_start(ranks)


class Rank:
    """A rank: an actor without concurrency, so that the test runs in the process's main thread.

    It is sent as it stands here: without the session's path, it cannot import this package.
    """

    def place(self, folder: str, machine: str) -> tuple[str, str, int, bool]:
        """Return what a `Place` holds."""
        import ray

        node, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        sees_folder = Path(folder, "start").is_file() and os.access(folder, os.W_OK)
        return node, address, os.getpid(), sees_folder and self.find_machine() == machine

    @staticmethod
    def find_machine() -> str:
        """Return what names one kernel, and one numbering of its processes."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"

    def run(self, said: str, program: list[str], cwd: str, variables: dict[str, str]) -> int:
        """Run a program; its output goes to the files ``1`` and ``2`` of the folder `said`.

        Return its exit status.
        """
        # Ray's handler would raise an error in the body, and the rank report a failure of its own.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(variables)
        os.chdir(cwd)
        for number, name in ((1, "stdout"), (2, "stderr")):
            getattr(sys, name).flush()
            output = os.open(f"{said}/{number}", os.O_WRONLY | os.O_APPEND)
            os.dup2(output, number)
            os.close(output)
            stream = open(number, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        sys.argv[:] = program
        try:
            runpy.run_path(program[0], run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
        return 0


def run_actors(ranks: int, program: list[str], folder: str, grace: float) -> dict[int, str]:
    """Run a program of Python in all ranks; return how those that failed have ended, by rank.

    The others get `grace` seconds to end by themselves. If any has failed, this process must end
    without Ray's own clean-up.

    Raises:
        Unavailable: The ranks cannot be started.
    """
    from fcntl import F_GETFL, F_SETFL, fcntl

    import ray
    from ray.util.placement_group import remove_placement_group

    # What ranks append must not be overwritten by this process.
    fcntl(2, F_SETFL, fcntl(2, F_GETFL) | os.O_APPEND)
    stop: list[int] = []
    start = json.loads(Path(program[1]).read_text(encoding="utf-8"))
    root, test = start["root"], Path(os.getcwd(), start["file"])  # noqa: PTH109 - as it is, without links resolved
    # Only other machines need a copy of the project: with one, no process can be used that is idle.
    project: dict[str, str] = {}
    while True:
        _connect(os.environ["RAY_ADDRESS"], folder, project)
        # Only now: Ray has set a handler that would end this process before the stacks are written.
        signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
        group = _reserve(ranks)
        actors: list[Any] = []
        failed: dict[int, str] = {}
        try:
            actors, places = _start_actors(group, ranks, folder)
            if project or all(place.is_here for place in places):
                failed = _run(actors, places, program, grace, stop)
                return failed
            if not test.is_relative_to(root):
                raise Unavailable(
                    f"nodes on other machines get a copy of {root}, in which {test} is not: start pytest with a --rootdir "
                    "that has both, or unset RAY_ADDRESS, and the session starts a cluster"
                )
            project = {"working_dir": root}
        finally:
            # If a node is lost, it would wait for that; the end of this process does the same.
            if not failed:
                for actor in actors:
                    ray.kill(actor)
                # Before the next world, which is to be spread.
                remove_placement_group(group)
                ray.shutdown()


def _connect(address: str, folder: str, project: dict[str, str]) -> None:
    # Ray says after 30 s that a token is wrong, and waits for minutes for a cluster that is not
    # there. It cannot be interrupted.
    def give_up() -> None:
        why = _no_cluster(address, f"no answer after {_CONNECT_SECONDS:.0f} s")
        write_text(Path(folder, "unavailable"), why)
        os._exit(1)

    timer = threading.Timer(_CONNECT_SECONDS, give_up)
    timer.daemon = True
    timer.start()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        import ray

        ray.init(
            address=address,
            runtime_env=project,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
    except Exception as error:  # noqa: BLE001 - Ray raises errors of many types
        why = one_line(error)
        raise Unavailable(
            f"Ray cannot give the nodes on other machines a copy of {project['working_dir']}: {why}; a .gitignore or "
            ".rayignore there lists what they do not need"
            if project
            else _no_cluster(address, why)
        ) from None
    finally:
        timer.cancel()


def _no_cluster(address: str, why: str) -> str:
    return (
        f"cannot connect to a Ray cluster at {address}: {why}; RAY_ADDRESS is the address of a running cluster, such as "
        "10.0.0.1:6379: start one (ray start --head), or unset RAY_ADDRESS, and the session starts its own"
    )


def _reserve(ranks: int) -> Any:
    """Return a placement group with a bundle of one CPU for each rank, spread over the nodes."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}] * ranks, strategy="SPREAD")
    if group.wait(_ROOM_SECONDS):
        return group
    total, free = (of().get("CPU", 0) for of in (ray.cluster_resources, ray.available_resources))
    remove_placement_group(group)
    ray.shutdown()
    raise Unavailable(
        f"the Ray cluster has no room for {ranks} ranks: {total:g} CPUs, {free:g} of them free after "
        f"{_ROOM_SECONDS:.0f} s; each rank takes one: give the cluster more CPUs, or the mark smaller sizes"
    )


def _start_actors(group: Any, ranks: int, folder: str) -> tuple[list[Any], list[Place]]:
    """Return an actor for each rank, and where it runs; start each once more if it fails."""
    import ray
    from ray.exceptions import RayError

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    started = [_start_actor(group, rank) for rank in range(ranks)]
    places: list[Place] = []
    here, seconds = Rank.find_machine(), _seconds_to_start(ranks)
    deadline = clock.monotonic() + 2 * seconds

    def find_place(rank: int) -> Place:
        left = min(seconds, max(0.0, deadline - clock.monotonic()))
        return Place(*ray.get(started[rank].place.remote(folder, here), timeout=left))

    try:
        for rank in range(ranks):
            try:
                places.append(find_place(rank))
            except RayError:
                # Under load, some processes of Ray never come up.
                ray.kill(started[rank])
                started[rank] = _start_actor(group, rank)
                places.append(find_place(rank))
    except RayError as error:
        raise Unavailable(
            f"Ray did not start rank {rank} of {ranks}, tried twice: {one_line(error)}"
        ) from None
    return started, places


def _start_actor(group: Any, rank: int) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
    # The allocator reads them as a process starts.
    tunables = os.environ.get(TUNABLES_VARIABLE, "")
    is_set = os.environ.get(TUNED_VARIABLE) == tunables
    environment = {} if is_set else {"env_vars": {TUNABLES_VARIABLE: tunables}}
    options = {"num_cpus": 1, "scheduling_strategy": bundle, "runtime_env": environment}
    return ray.remote(Rank).options(**options).remote()


def _run(
    actors: Sequence[Any],
    places: Sequence[Place],
    program: list[str],
    grace: float,
    stop: list[int],
) -> dict[int, str]:
    import ray

    remotes = {
        node: Remote([rank for rank, one in enumerate(places) if one.node == node], place, program)
        for node, place in {one.node: one for one in places if not one.is_here}.items()
    }
    here: Any = f"/proc/{os.getpid()}/fd", program, os.getcwd(), {}  # noqa: PTH109 - as it is, without links resolved
    shared, pending = without_ray(os.environ), {}
    for rank, (actor, own) in enumerate(zip(actors, _variables_of(places), strict=True)):
        remote = remotes.get(places[rank].node)
        *way, variables = remote.way if remote else here
        pending[actor.run.remote(*way, shared | variables | own)] = rank
    failed: dict[int, str] = {}
    deadline = 0.0
    while pending and not stop and not (deadline and clock.monotonic() > deadline):
        done, _ = ray.wait([*pending], timeout=_POLL_SECONDS)
        for remote in remotes.values():
            remote.look()
        lost = [node for node, remote in remotes.items() if remote.is_lost]
        silent = [result for result, rank in pending.items() if places[rank].node in lost]
        for result in {*done, *silent}:
            rank = pending.pop(result)
            if how := _how_it_ended(result, rank, places):
                failed[rank] = how
                deadline = deadline or clock.monotonic() + grace
    left = [places[rank] for rank in pending.values()]
    end_ranks([place.pid for place in left if place.is_here])
    for node, remote in remotes.items():
        remote.close([place.pid for place in left if place.node == node])
    return failed


def _variables_of(places: Sequence[Place]) -> Iterator[dict[str, str]]:
    """Yield what each rank has in its environment besides that of this process."""
    apart = {} if all(place.is_here for place in places) else {APART_VARIABLE: "1"}
    of_node = Counter(place.node for place in places)
    before: Counter[str] = Counter()
    for rank, place in enumerate(places):
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": before[place.node],
            "WORLD_SIZE": len(places),
            "LOCAL_WORLD_SIZE": of_node[place.node],
        }
        before[place.node] += 1
        own = {name: str(number) for name, number in numbers.items()}
        yield own | apart | {NODE_VARIABLE: place.name}


def _how_it_ended(result: Any, rank: int, places: Sequence[Place]) -> str:
    """Return how a rank failed, and write what Ray says of it; empty if it did not."""
    import ray
    from ray.exceptions import ActorDiedError, RayError

    try:
        status = int(ray.get(result, timeout=_POLL_SECONDS))
    except RayError as error:
        sys.stderr.write(f"Ray on rank {rank} of {len(places)}: {one_line(error)}\n")
        # Ray does not say of which signal.
        how = "died" if isinstance(error, ActorDiedError) else "was lost"
        return f"{how} on node {places[rank].name}"
    return describe_exit(status) if status else ""


def _seconds_to_start(ranks: int) -> float:
    return _START_SECONDS + _START_SECONDS_PER_RANK * ranks
