"""Have ranks on other machines write into a folder there, and fetch what they write through Ray."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from pytest_leakcheck import __version__
from pytest_leakcheck.model.regular_file import open_regular
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.own_folder import make_folder, remove_folder
from pytest_leakcheck.runner.processes.private_tmpdir import variables_for
from pytest_leakcheck.runner.processes.supervisor import Board, file_of

# Seconds until an agent has a process, and until it answers.
_START_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 2.0
# Seconds without an answer after which a node counts as lost. Ray itself waits for longer.
_LOST_SECONDS: Final = 10.0
# Seconds in which ranks that are ended write their stacks.
_STACK_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.1
_MAX_WHY: Final = 800
_BOARD: Final = file_of(Path(), "board").name


class Place(NamedTuple):
    """Where a rank runs; `is_here` if its process and the session's folder are on one machine."""

    node: str
    address: str
    pid: int
    is_here: bool

    @property
    def name(self) -> str:
        return f"{self.node[:12]} ({self.address})"


class Agent:
    """An actor on a node of another machine, which has a folder like that of the session."""

    def open(self, version: str) -> tuple[str, str, list[str], dict[str, str]]:
        """Make the folder; return its path, and how a process begins here.

        Raises:
            Unavailable: The session has another release of this package.
        """
        if version != __version__:
            raise Unavailable(f"pytest-leakcheck {__version__} is installed there")
        self._folder = make_folder(tempfile.gettempdir())
        variables = without_ray(os.environ) | variables_for(self._folder)
        return str(self._folder), str(Path.cwd()), sys.path, variables

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files into the folder."""
        for name, content in files.items():
            (self._folder / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        """Return a file of the folder."""
        with open_regular(self._folder / name, "rb", follow=False) as file:
            return bytes(file.read())

    def end(self, pids: Sequence[int]) -> None:
        """Do as `end_ranks`."""
        end_ranks(pids)

    def close(self) -> None:
        """Remove the folder."""
        remove_folder(self._folder)


class Remote:
    """Ranks on a node of another machine; `way` has the arguments of `Rank.run` for them.

    `is_lost` is set if the node does not answer.
    """

    def __init__(self, ranks: Sequence[int], place: Place, program: Sequence[str]) -> None:
        """Start an agent there, where Ray has given it a copy of the project.

        Raises:
            Unavailable: No rank can run there.
        """
        import ray
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(place.node, soft=False)
        self._agent = ray.remote(Agent).options(num_cpus=0, scheduling_strategy=there).remote()
        self._ranks, self._folder = ranks, Path(program[0]).parent
        self._sent = [f"{what}-{rank}" for rank in ranks for what in ("messages", "stack")]
        self._asked: Any = None
        self.is_lost, self._heard = False, clock.monotonic()
        try:
            own, here, path, variables = self._ask("open", __version__, seconds=_START_SECONDS)
        except RayError as error:
            raise Unavailable(
                f"no rank can run on node {place.name}, which is on another machine: {one_line(error)}: install there "
                f"what the session has, also pytest-leakcheck {__version__}, or unset RAY_ADDRESS, and the session starts "
                "a cluster of its own"
            ) from None

        code, start = (Path(one).read_text(encoding="utf-8") for one in program)
        root = json.loads(start)["root"]

        def move(text: str) -> str:
            return text.replace(str(self._folder), own).replace(root, here)

        given = json.loads(move(start))
        given |= {
            "basetemp": f"{own}/basetemp",
            "reports": "",
            "path": [one for one in given["path"] if one.startswith(here)] + path,
        }
        files = dict.fromkeys([*self._sent, "1", "2"], b"") | {
            _BOARD: (self._folder / _BOARD).read_bytes(),
            Path(program[0]).name: code.encode(),
            Path(program[1]).name: json.dumps(given).encode(),
        }
        self._ask("write", files)
        cwd = os.getcwd()  # noqa: PTH109 - as it is, without links resolved
        cwd = move(cwd) if cwd.startswith(root) else here
        self.way = own, [*map(move, program)], cwd, variables

    def look(self) -> None:
        """Copy the ranks' part of the board, or find that the node is lost."""
        import ray
        from ray.exceptions import RayError

        self._asked = self._asked or self._agent.read.remote(_BOARD)
        if ray.wait([self._asked], timeout=0)[0]:
            asked, self._asked = self._asked, None
            with contextlib.suppress(RayError):
                board = ray.get(asked)
                self._heard = clock.monotonic()
                with (self._folder / _BOARD).open("r+b") as file:
                    for rank in self._ranks:
                        file.seek(Board.SIZE * rank)
                        file.write(board[file.tell() :][: Board.SIZE])
        self.is_lost = clock.monotonic() > self._heard + _LOST_SECONDS

    def close(self, pids: Sequence[int]) -> None:
        """End the ranks that have these pids, and copy what all have written."""
        import ray
        from ray.exceptions import RayError

        if not self.is_lost:
            with contextlib.suppress(RayError):
                self._ask("end", pids)
                for name in self._sent:
                    (self._folder / name).write_bytes(self._ask("read", name))
                for output in (1, 2):
                    os.write(output, self._ask("read", str(output)))
                self._ask("close")
        ray.kill(self._agent)

    def _ask(self, what: str, *given: object, seconds: float = _ANSWER_SECONDS) -> Any:
        import ray

        return ray.get(getattr(self._agent, what).remote(*given), timeout=seconds)


def end_ranks(pids: Sequence[int]) -> None:
    """Have ranks of this machine write their stacks, and end."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = clock.monotonic() + _STACK_SECONDS
    while clock.monotonic() < deadline and any(map(psutil.pid_exists, pids)):
        clock.sleep(_POLL_SECONDS)


def without_ray(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out what is for Ray alone."""
    return {name: value for name, value in variables.items() if not name.startswith("RAY_")}


def one_line(error: Exception) -> str:
    """Return an error of Ray's, or what the code in an actor has raised."""
    error = getattr(error, "cause", None) or error
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:_MAX_WHY]
