"""Run a command in a subprocess, supervise it, end it and all its descendants, without pytest.

The two processes share a file, which the child maps into memory (`Board`). It stores the number of
the current iteration there. That allocates nothing and opens no descriptor, so it does not affect
the measurement, and if the child dies without a report, the parent can still read how far it got
(`BoardView`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Literal, Protocol

import psutil

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.foreign_files import private, read_tail
from pytest_leakcheck.probes.memory import load_libc
from pytest_leakcheck.probes.processes import descendants

# Settings of glibc's allocator: no per-thread cache of freed blocks, because these count as in use,
# and a fixed threshold for mmap (bytes), which otherwise moves as blocks are freed.
_TUNABLES: Final = {"glibc.malloc.tcache_count": "0", "glibc.malloc.mmap_threshold": "131072"}
TUNABLES_VARIABLE: Final = "GLIBC_TUNABLES"
POLL_SECONDS: Final = 0.01
# Seconds that a process gets to end by itself: after it has finished, because leaked threads and
# children could keep it alive forever, after SIGTERM, and after another rank has failed.
GRACE_SECONDS: Final = 2.0
# On Windows, SIGTERM ends a process at once.
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
# Lines of output that `excerpt` keeps.
_MAX_EXCERPT_LINES: Final = 30
_MAX_ERRNO: Final = 4095
# From <sys/prctl.h>.
_PR_SET_PDEATHSIG: Final = 1
PROGRAM: Final = "leakcheck_program.py"
# If a line of a fatal error's traceback contains one of these texts, it does not show code of the
# user.
_HARNESS_FRAMES: Final = (
    f"/{PROGRAM}",
    "/_pytest/",
    "/pluggy/",
    "Extension modules:",
    '"<frozen',
    '"<string>',
)
# From Python 3.14 on the stack of C follows, of up to 32 frames, nearly all of which are the
# interpreter's.
_C_FRAMES: Final = ("  Binary file ", "  <truncated rest of calls>")


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a child process ended: by itself or, if `hung`, by this process for lack of progress.

    `status` is as in `subprocess`, `iteration` is 0 before the first, and `said` are the last lines
    of its standard streams. `error` says why it could not be started, `unsent` is the number of the
    error for which it could not write what it has found (0: none).
    """

    status: int
    iteration: int
    seconds: float
    hung: bool = False
    said: str = ""
    error: str = ""
    unsent: int = 0

    @property
    def reason(self) -> str:
        """Why there is no verdict: up to 60 characters in iterations 1 to 999, else maybe more."""
        if self.error:
            return f"could not be started: {self.error}"
        where = f"in iteration {self.iteration}" if self.iteration else "before the first iteration"
        if self.hung:
            return f"hung: no verdict after {self.seconds:.0f} s; killed {where}"
        return f"{describe_exit(self.status)} {where}"


def describe_exit(status: int) -> str:
    """Describe an exit status; a negative one is a signal number, as in `subprocess`."""
    if status >= 0:
        return f"exited with status {status}"
    name = next((one.name for one in signal.Signals if one == -status), "a signal")
    return f"died of {name} (signal {-status})"


class Board:
    """The memory in which a child shows its progress, which can be written to when no file can.

    Each rank has three numbers: its iteration (or step), whether it has finished, and `unsent`, as
    in `ProcessEnd`.
    """

    SIZE: Final = 24

    def __init__(self, path: Path, rank: int = 0) -> None:
        """Map the file, which has `SIZE` bytes per rank, to write those of this rank."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._map).cast("q")
        self._at = 3 * rank

    @property
    def iteration(self) -> int:
        return self._cells[self._at]

    @iteration.setter
    def iteration(self, number: int) -> None:
        self._cells[self._at] = number

    def finish(self) -> None:
        self._cells[self._at + 1] = 1

    def set_unsent(self, error: int) -> None:
        self._cells[self._at + 2] = error

    def close(self) -> None:
        self._cells.release()
        self._map.close()


class BoardView:
    """A board as the parent process reads it: as a file, and not as memory.

    A test that cuts the file would otherwise crash this process.
    """

    def __init__(self, path: Path, ranks: int = 1) -> None:
        """Open the file, which has zeros for each rank, or else is empty."""
        self._file = path.open("rb", buffering=0)
        self._last = array("q", bytes(Board.SIZE * ranks))

    def _read(self) -> array[int]:
        """Return the numbers of all ranks; the last ones if the file has been cut."""
        # Windows has no `pread`.
        self._file.seek(0)
        read = self._file.read(len(self._last) * self._last.itemsize)
        if len(read) == len(self._last) * self._last.itemsize:
            self._last = array("q", read)
        return self._last

    @property
    def iteration(self) -> int:
        """That of the first rank."""
        return max(0, self._read()[0])

    @property
    def finished(self) -> bool:
        return self._read()[1] != 0

    @property
    def unsent(self) -> int:
        """The highest number that any rank has set."""
        return min(max(self._read()[2::3]), _MAX_ERRNO)

    @property
    def steps(self) -> int:
        """The sum of all ranks' step numbers, which changes as long as any rank makes progress."""
        return sum(self._read()[::3])

    @property
    def all_begun(self) -> bool:
        return all(self._read()[::3])

    def close(self) -> None:
        self._file.close()


def unsupported() -> str:
    """Return why no process can be started and ended as a group here; empty if that is possible."""
    if not hasattr(os, "killpg"):
        return "a separate process needs process groups, which this system does not have"
    is_hidden = sys.platform.startswith("linux") and not Path("/proc/self").exists()
    return "a separate process needs /proc, which is not mounted here" if is_hidden else ""


def quiet_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with tunables that quiet glibc's allocator; the user's own stay."""
    tuned = [word for word in given.get(TUNABLES_VARIABLE, "").split(":") if word]
    own = {word.partition("=")[0] for word in tuned}
    ours = [f"{name}={value}" for name, value in _TUNABLES.items() if name not in own]
    return {**given, TUNABLES_VARIABLE: ":".join([*ours, *tuned])}


class Process(Protocol):
    """What this module uses of a `Popen`, or of a process with another parent.

    `has_ended` leaves it unreaped.
    """

    pid: int
    returncode: int | None

    def has_ended(self) -> bool: ...

    def send_signal(self, number: int, /) -> None: ...

    def wait(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Start:
    """How to start a child process; each of its `ranks` has a part of the board.

    It is ended after so many seconds without progress: `start_up` until all ranks have begun, then
    `step` from one step to the next. With `show`, it writes to the standard output of this process,
    otherwise to `ProcessEnd.said`.
    """

    command: Sequence[str]
    cwd: Path
    environment: Mapping[str, str]
    start_up: float
    step: float
    show: bool = False
    ranks: int = 1
    # Forks the process in place of the command, with the file for what it says.
    fork: Callable[[Path], Process] | None = None


def run(start: Start, folder: Path, watch: Callable[[int, BoardView], None]) -> ProcessEnd:
    """Run a command until it exits, or kill it once it stalls.

    Either way, all processes of its group are killed. `folder` gets the files ``board-0`` and
    ``said``; all other names in it are free for the caller. This process calls `watch` repeatedly
    meanwhile, with the pid and the board.
    """
    path = file_of(folder, "board")
    path.touch(0o600, exist_ok=False)
    path.write_bytes(bytes(Board.SIZE * start.ranks))
    board = BoardView(path, start.ranks)
    began = clock.monotonic()
    try:
        with open(folder / "said", "x+b", opener=private) as said:
            process = (
                start_process(start, said) if start.fork is None else start.fork(folder / "said")
            )
            try:
                hung = not _wait(process, board, start, watch)
            finally:
                end_tree(process, grace=GRACE_SECONDS, group=True)
            return ProcessEnd(
                process.wait(),
                board.iteration,
                clock.monotonic() - began,
                hung=hung,
                unsent=board.unsent,
                said=excerpt(read_tail(said.fileno())),
            )
    except OSError as error:
        return ProcessEnd(-1, 0, 0.0, error=error.strerror or str(error))
    finally:
        board.close()


def start_process(
    start: Start, said: IO[bytes], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start the command; `said` is the file for what it says."""
    # A new session is a new process group, which the terminal's Ctrl-C does not reach.
    return subprocess.Popen(  # noqa: S603 - the command is this package's own
        start.command,
        cwd=start.cwd,
        env=dict(start.environment),
        stdin=subprocess.DEVNULL,
        stdout=None if start.show else said,
        stderr=said,
        start_new_session=True,
        pass_fds=pass_fds,
    )


def file_of(folder: Path, what: Literal["board", "messages", "stack"], rank: int = 0) -> Path:
    """Return the path of all ranks' board, or of one rank's messages or stack when it is ended."""
    return folder / f"{what}-{rank}"


def excerpt(text: str) -> str:
    """Return the last lines of a text, without a fatal error's lines that show no user code."""
    lines = [
        line
        for line in text.splitlines()
        if not (line.startswith(_C_FRAMES) or any(word in line for word in _HARNESS_FRAMES))
    ]
    return "\n".join(lines[-_MAX_EXCERPT_LINES:])


def _wait(
    process: subprocess.Popen[bytes] | Process,
    board: BoardView,
    start: Start,
    watch: Callable[[int, BoardView], None],
) -> bool:
    """Wait until the process ends or stalls; return False if it must be ended unfinished."""
    seen, since = (0, False), clock.monotonic()
    while not has_ended(process):
        now, found = clock.monotonic(), (board.steps, board.finished)
        if found != seen:
            seen, since = found, now
        elif now - since > (
            GRACE_SECONDS if board.finished else start.step if board.all_begun else start.start_up
        ):
            return board.finished
        watch(process.pid, board)
        clock.sleep(POLL_SECONDS)
    return True


def die_with(parent: int) -> None:
    """Make the kernel kill this process with its parent, so it cannot run forever (Linux only)."""
    if not parent or not sys.platform.startswith("linux"):
        return
    load_libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end_tree(*processes: subprocess.Popen[bytes] | Process, grace: float, group: bool) -> None:
    """Terminate child processes, kill them and their descendants after a grace, and reap them.

    `grace` is in seconds (0: kill at once). With `group`, each process leads a process group, which
    gets both signals, and is killed even if its leader has ended. `psutil.wait_procs` would reap a
    child before its group is killed, and `subprocess` would never learn its status.
    """
    alive = [process for process in processes if not has_ended(process)]
    below = [one for process in alive for one in _descendants(process.pid)]
    try:
        if grace:
            for process in alive:
                _send_signal(process, signal.SIGTERM, group=group)
            deadline = clock.monotonic() + grace
            while clock.monotonic() < deadline and not all(map(has_ended, alive)):
                clock.sleep(POLL_SECONDS)
    finally:
        # In `finally`, so that a second Ctrl-C shortens the grace period, but does not skip the
        # kill.
        for process in processes:
            _send_signal(process, _KILL, group=group)
        for descendant in below:
            with contextlib.suppress(psutil.Error):
                descendant.kill()
        for process in processes:
            process.wait()


def has_ended(process: subprocess.Popen[bytes] | Process) -> bool:
    """Return whether a process ended, unreaped: its pid must not be reused before a group kill."""
    if not isinstance(process, subprocess.Popen):
        return process.has_ended()
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _send_signal(process: subprocess.Popen[bytes] | Process, number: int, *, group: bool) -> None:
    if not group:
        process.send_signal(number)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _descendants(pid: int) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        if not sys.platform.startswith("linux"):
            return psutil.Process(pid).children(recursive=True)
        # psutil also reads /proc/stat, which a container may hide.
        for child in descendants(pid):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(child))
    return found
