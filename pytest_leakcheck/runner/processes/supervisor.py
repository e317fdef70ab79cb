"""A command in a process of its own, watched from here: it ends, or it is ended, and what became of it is a value.

Knows nothing of pytest. The two processes share a file: the child notes in it which iteration is under way (one store
into mapped memory, so that the measured window sees neither an allocation nor a descriptor), and this side reads there
how far a child came that can no longer say so.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from pytest_leakcheck.runner.processes.end_tree import end_tree, has_ended

# No thread's cache of freed blocks, which counts as in use and is the main noise of the heap; and a threshold that does
# not move as blocks are freed, so that a block of one size always comes from the same place.
_TUNABLES: Final = {"glibc.malloc.tcache_count": "0", "glibc.malloc.mmap_threshold": "131072"}
_VARIABLE: Final = "GLIBC_TUNABLES"
_POLL: Final = 0.01
# What a child gets to end by itself once it has said all: threads and children that it leaked would keep it for ever.
_LEAVE: Final = 2.0
# Between SIGTERM and SIGKILL.
_TERMINATE: Final = 2.0
_TAIL: Final = 30
# <sys/prctl.h>
_PR_SET_PDEATHSIG: Final = 1
PROGRAM: Final = "leakcheck_program.py"
_MACHINERY: Final = (f"/{PROGRAM}", "/_pytest/", "/pluggy/", "Extension modules:", '"<frozen', '"<string>')


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a child.

    Attributes:
        status: The exit status; below 0 the number of the signal that it died of, as in `subprocess`.
        iteration: The iteration that was under way at the end; 0 before the first.
        seconds: How long it lived.
        finished: It said all that it had to say; what it did afterwards is its own affair.
        hung: It was ended from here, because an iteration took too long.
        said: The end of what it wrote to its standard streams.
        error: Why it could not be started; empty where it was.
        killed_for_memory: The kernel ended it, or a child of it, since its cgroup had no more.
    """

    status: int
    iteration: int
    seconds: float
    finished: bool = False
    hung: bool = False
    said: str = ""
    error: str = ""
    killed_for_memory: bool = False

    @property
    def reason(self) -> str:
        """Why there is no verdict, in at most 60 columns for the first thousand iterations."""
        if self.error:
            return f"could not be started: {self.error}"
        where = f"in iteration {self.iteration}" if self.iteration else "before the first iteration"
        if self.hung:
            return f"hung: no verdict after {self.seconds:.0f} s; killed {where}"
        if self.killed_for_memory and self.status == -signal.SIGKILL:
            return f"killed by the kernel for want of memory {where}"
        return f"{describe_exit(self.status)} {where}"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a child may be silent, in seconds: until it begins, and from one step to the next."""

    start_up: float
    step: float


def describe_exit(status: int) -> str:
    """An exit status in words; below 0 it is a signal, as in `subprocess`."""
    if status < 0:
        return f"died of {_signal_name(-status)} (signal {-status})"
    return f"exited with status {status}"


class Board:
    """Two numbers that both processes see: the iteration or the step under way, and whether all is said."""

    SIZE: Final = 16

    def __init__(self, path: Path, rank: int = 0) -> None:
        """Map the file, which has `SIZE` bytes for each rank; this one's are read and written."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._map).cast("q")
        self._at = 2 * rank

    @property
    def iteration(self) -> int:
        return self._cells[self._at]

    @iteration.setter
    def iteration(self, number: int) -> None:
        self._cells[self._at] = number

    @property
    def finished(self) -> bool:
        return self._cells[self._at + 1] != 0

    def finish(self) -> None:
        self._cells[self._at + 1] = 1

    @property
    def steps(self) -> int:
        """Of all ranks together: it changes as long as any of them goes on."""
        return sum(self._cells[::2])

    @property
    def all_begun(self) -> bool:
        return all(self._cells[::2])

    def close(self) -> None:
        self._cells.release()
        self._map.close()


def unsupported() -> str:
    """Why no process can be started and ended as a group here, or nothing."""
    return "" if hasattr(os, "killpg") else "a process of its own needs process groups, which this system has not"


def quiet_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment with glibc's allocator set to be quiet; what the user has tuned stays as it is."""
    tuned = [word for word in given.get(_VARIABLE, "").split(":") if word]
    own = {word.partition("=")[0] for word in tuned}
    ours = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in own]
    return {**given, _VARIABLE: ":".join([*ours, *tuned])}


@dataclass(frozen=True, slots=True)
class Start:
    """How a child is started.

    Attributes:
        command: Program and arguments. It maps `board_of` the folder, if it wants to be known by its iterations.
        cwd: Where it runs.
        environment: All of its environment.
        ranks: How many processes have a part of the board.
        show: Let it write to this process's standard output rather than keep that for `Ended.said`.
    """

    command: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    show: bool = False
    ranks: int = 1


# Called with the number of the process, now and then while it lives.
Watch: TypeAlias = Callable[[int, Board], None]


def run(start: Start, folder: Path, patience: Patience, watch: Watch | None = None) -> Ended:
    """Run a command to its end, or put an end to it; nothing of its process group is left.

    Args:
        start: What to run.
        folder: For the files that the two share; those that are called otherwise are the caller's.
        patience: How long it may take from its start to the first iteration, and from one to the next.
        watch: Looks at it from outside.
    """
    path = board_of(folder)
    path.write_bytes(bytes(Board.SIZE * start.ranks))
    board = Board(path)
    began = time.monotonic()
    try:
        with Path(folder, "said").open("w+b") as said:
            # A session of its own is a process group of its own, and no Ctrl-C of the terminal's reaches it.
            process = subprocess.Popen(  # noqa: S603  # the command is this package's own
                start.command,
                cwd=start.cwd,
                env=dict(start.environment),
                stdin=subprocess.DEVNULL,
                stdout=None if start.show else said,
                stderr=said,
                start_new_session=True,
            )
            try:
                hung = not _wait(process, board, patience, watch)
            finally:
                end_tree(process, grace=_TERMINATE, group=True)
            return Ended(
                process.returncode,
                board.iteration,
                time.monotonic() - began,
                finished=board.finished,
                hung=hung,
                said=excerpt(Path(said.name).read_text(encoding="utf-8", errors="replace")),
            )
    except OSError as error:
        return Ended(-1, 0, 0.0, error=error.strerror or str(error))
    finally:
        board.close()


def board_of(folder: Path) -> Path:
    """Where the board of a run is."""
    return folder / "board"


def reports_of(folder: Path, rank: int) -> Path:
    """Where a process writes what it has to say."""
    return folder / f"reports-{rank}"


def stack_of(folder: Path, rank: int) -> Path:
    """Where a process that is ended from outside writes where it is."""
    return folder / f"stack-{rank}"


def excerpt(text: str) -> str:
    """The last lines, without those frames of a fatal error's traceback that are not the user's."""
    return "\n".join([line for line in text.splitlines() if not any(word in line for word in _MACHINERY)][-_TAIL:])


def _wait(process: subprocess.Popen[bytes], board: Board, patience: Patience, watch: Watch | None) -> bool:
    """Wait for the end. Returns False if it must be ended from here, with something still to say."""
    seen, since = (0, False), time.monotonic()
    while not has_ended(process):
        now, found = time.monotonic(), (board.steps, board.finished)
        if found != seen:
            seen, since = found, now
        elif now - since > (_LEAVE if board.finished else patience.step if board.all_begun else patience.start_up):
            return board.finished
        if watch is not None:
            watch(process.pid, board)
        time.sleep(_POLL)
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "a signal"


def to_line(value: Any) -> str:
    """A value as one line of JSON that `from_line` gives back: tuples stay tuples, what JSON has no word for is text."""
    return json.dumps(_packed(value))


def from_line(line: str) -> Any:
    """
    Raises:
        ValueError: The line is not whole.
    """
    return json.loads(line, object_hook=lambda one: tuple(one["$tuple"]) if one.keys() == {"$tuple"} else one)


def _packed(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _packed(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_packed(one) for one in value]
        return {"$tuple": items} if isinstance(value, tuple) else items
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def die_with(parent: int) -> None:
    """Linux: be killed when the process that waits for this one is, so that nobody is left to run for ever."""
    if not parent or not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
