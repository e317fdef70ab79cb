"""Start a Ray cluster of one node for a session, which ends with it and leaves nothing behind.

Ray runs in a separate process, the keeper, and below it: what it loads and starts would count as
the tests' own. `LocalCluster` is the session's end of the connection, `keep` the keeper's.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_descriptors import keep_high
from pytest_leakcheck.probes.own_folder import temporary_folder
from pytest_leakcheck.runner.processes.fork_server import Forked, is_readable
from pytest_leakcheck.runner.processes.ray_ranks import TUNED_VARIABLE
from pytest_leakcheck.runner.processes.supervisor import (
    TUNABLES_VARIABLE,
    Start,
    end_tree,
    quiet_environment,
    start_process,
)

# Seconds, of which Ray needs 5 to 12 to start and 2 to end.
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.05
_MAX_BYTES: Final = 65536
# The longest temporary folder whose sub-folder has room for the paths of Ray's sockets: of 107
# characters Ray takes 63, and the sub-folder 19.
_MAX_PARENT: Final = 25
_MAX_WHY: Final = 600
# No statistics of its use are sent, and no `uv run` above the tests is repeated in each worker.
QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_COLOR_PREFIX": "0",
}
# The keeper is no child of the session: its tests could see it, and wait for it.
_PROGRAM: Final = """\
import json, os, sys
if os.fork():
    os._exit(0)
os.setsid()
sys.path[:] = json.loads(sys.argv[1])
from pytest_leakcheck.runner.processes.ray_cluster import keep
keep(*map(int, sys.argv[2:5]), sys.argv[5])
"""


def is_installed() -> bool:
    """Return whether Ray is installed, without loading it; a project's folder may have the name."""
    found = find_spec("ray")
    return found is not None and found.origin is not None


class LocalCluster:
    """The session's end; `variables` are those that a process needs to connect to the cluster."""

    def __init__(self, cpus: int, waiting: Callable[[], None]) -> None:
        """Start a cluster that takes so many ranks; this process calls `waiting` meanwhile.

        Raises:
            Unavailable: Ray does not start; with what it says.
        """
        # Ray listens on all interfaces, and runs code for each client. Without a token of ours
        # it writes one into the user's home.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.variables: Mapping[str, str] = {**QUIET, **token}
        self._process: Forked | None = None
        self._connection = -1
        self._open = ExitStack()
        try:
            self._start(cpus)
            answer = self._receive(waiting)
        except BaseException:
            self.close()
            raise
        if "address" not in answer:
            self.close()
            raise Unavailable(f"Ray did not start a cluster for the session: {answer['why']}")
        self.variables = {**self.variables, "RAY_ADDRESS": answer["address"]}

    def close(self) -> None:
        """End the cluster; kill what does not end by itself."""
        if self._connection >= 0:
            # A process that a test has forked may have the connection too.
            with socket.socket(fileno=self._connection) as ours, suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            self._connection = -1
        process, self._process = self._process, None
        if process is not None:
            if not process.has_ended(_END_SECONDS):
                end_tree(process, grace=0, group=True)
            process.wait()
        self._open.close()

    def _start(self, cpus: int) -> None:
        folder = self._open.enter_context(temporary_folder(_short_folder()))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection = keep_high(ours.detach())
        numbers = (theirs.fileno(), os.getpid(), cpus)
        given = [json.dumps(sys.path), *map(str, numbers), str(folder)]
        command = [sys.executable, "-c", _PROGRAM, *given]
        # Ranks get these settings of the allocator from it, so that they need no process of their
        # own.
        environment = quiet_environment({**os.environ, **self.variables})
        self.variables = {**self.variables, TUNED_VARIABLE: environment[TUNABLES_VARIABLE]}
        start = Start(command, Path.cwd(), environment, _START_SECONDS, 0.0)
        with theirs, open(folder / "said", "x+b", opener=private) as said:
            start_process(start, said, pass_fds=(theirs.fileno(),)).wait()
        answer = self._receive(lambda: None)
        if "pid" in answer:
            self._process = Forked(answer["pid"], lambda: 0)

    def _receive(self, waiting: Callable[[], None]) -> dict[str, Any]:
        deadline = clock.monotonic() + _START_SECONDS
        while not is_readable(self._connection, seconds=_LOOK_SECONDS):
            if clock.monotonic() > deadline:
                return {"why": f"no answer after {_START_SECONDS:.0f} s"}
            waiting()
        answer = os.read(self._connection, _MAX_BYTES) or b'{"why": "its process ended"}'
        return dict(json.loads(answer))


def keep(connection: int, session: int, cpus: int, folder: str) -> None:
    """Keep a cluster until the session closes the connection or ends, and remove its folder."""
    watch = os.pidfd_open(session)
    os.write(connection, json.dumps({"pid": os.getpid()}).encode())
    import ray

    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
            _temp_dir=folder,
        )
        answer = {"address": ray.get_runtime_context().gcs_address}
    except Exception as error:  # noqa: BLE001 - whatever it is, the session shows it
        answer = {"why": f"{type(error).__name__}: {' '.join(str(error).split())[:_MAX_WHY]}"}
    try:
        os.write(connection, json.dumps(answer).encode())
        is_readable(connection, unless=watch)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str:
    given = tempfile.gettempdir()
    return given if len(os.fsencode(given)) <= _MAX_PARENT else "/tmp"  # noqa: S108 - made for this user alone
