"""Fork processes of single tests from a server, started once, that has imported what they need.

The server forks a process for each file, which collects it; that one forks a process for each test.
`ForkServer` is the session's end of the connection, `Server` the other one. The server is no child
of the session, whose tests could see it or wait for it. It ends with the session: each of its
processes watches the session or dies with its parent.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_standard
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_descriptors import keep_high
from pytest_leakcheck.probes.own_folder import temporary_folder
from pytest_leakcheck.probes.processes import own_tree
from pytest_leakcheck.runner.processes.supervisor import (
    GRACE_SECONDS,
    Start,
    die_with,
    end_tree,
    start_process,
)

# Seconds to answer what takes a few milliseconds.
_ANSWER_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.05
_MAX_BYTES: Final = 65536
# What stands before the device in a list of mappings that are written and shared.
_SHARED: Final = ("rw-s", "rwxs", "-w-s")
# What this process was forked from; empty in the server itself.
_FORKED_FROM: Final[list[int]] = []


def unsupported() -> str:
    """Say why this system cannot have a server; empty if it can."""
    return (
        ""
        if hasattr(os, "pidfd_open")
        else "this system cannot watch a process that is not its child"
    )


class ServerLost(Exception):
    """The server has ended or does not answer: what it ran needs a process started for it."""


class Forked:
    """A process that the server has forked, with what `supervisor` uses of a `Popen`."""

    def __init__(self, pid: int, reap: Callable[[], int]) -> None:
        self.pid, self._reap = pid, reap
        self._watch = keep_high(os.pidfd_open(pid))
        self.returncode: int | None = None

    def has_ended(self, seconds: float = 0) -> bool:
        """Return whether the process has ended within this time; it stays unreaped until `wait`."""
        return self.returncode is not None or is_readable(self._watch, seconds=seconds)

    def send_signal(self, number: int) -> None:
        signal.pidfd_send_signal(self._watch, number)

    def wait(self) -> int:
        if self.returncode is None:
            os.close(self._watch)
            self.returncode = self._reap()
        return self.returncode


class ForkServer:
    """The session's end; `why_not` says why the server forks nothing, empty while it does.

    `given` is what the server was started with: a process that is to have something else needs
    another server.
    """

    def __init__(
        self,
        prepare: Callable[[Path, int], Start],
        parent: str | None,
        given: object,
        waiting: Callable[[], None],
    ) -> None:
        """Start a server; this process calls `waiting` while the server is busy.

        `prepare` gets the server's folder, which is made in `parent`, and its end of the
        connection.
        """
        self.given, self.why_not, self._waiting = given, "", waiting
        # Why no process can be forked for the tests of a file; empty for the one that is collected.
        self._files: dict[str, str] = {}
        self._file = ""
        self._process: Forked | None = None
        self._open = ExitStack()
        self._connection = -1
        with contextlib.suppress(ServerLost), self._ending():
            folder = self._open.enter_context(temporary_folder(parent))
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._connection = keep_high(ours.detach())
            start = prepare(folder, theirs.fileno())
            self._seconds = start.start_up
            with theirs, open(folder / "said", "x+b", opener=private) as said:
                # It forks the server and ends.
                start_process(start, said, pass_fds=(theirs.fileno(),)).wait()
            self._process = Forked(self._receive(_ANSWER_SECONDS)["pid"], lambda: 0)
            self.why_not = self._receive(self._seconds)["why"]
        if self.why_not:
            self.close()

    def collect(self, file: str) -> str:
        """Have the server collect this file instead; return why it cannot fork, empty if it can."""
        why = self.why_not or self._files.get(file, "")
        if why or file == self._file:
            return why
        with contextlib.suppress(ServerLost), self._ending():
            if self._file:
                self._ask({})
                self._file = ""
            answer = self._ask({"file": file}, self._seconds)
            if "left" in answer:
                answer["why"] = "the file cannot be collected there"
            elif answer["why"]:
                self._receive(_ANSWER_SECONDS)
            self._files[file] = answer["why"]
            self._file = file if not answer["why"] else ""
        return self.why_not or self._files[file]

    def fork(self, start: Path, said: Path) -> Forked:
        """Fork a process for a collected test, with the task in `start`; it writes into `said`."""
        with self._ending():
            pid = self._ask({"start": str(start), "said": str(said)})["pid"]
            return Forked(pid, self._reap)

    def close(self) -> None:
        """End the server, which removes what it has made, and kill it if it does not."""
        self.why_not = self.why_not or "the fork server was lost"
        if self._connection >= 0:
            os.close(self._connection)
            self._connection = -1
        process, self._process = self._process, None
        if process is not None:
            if not process.has_ended(GRACE_SECONDS):
                end_tree(process, grace=0, group=True)
            process.wait()
        self._open.close()

    def _reap(self) -> int:
        with self._ending():
            return int(self._ask({"reap": True})["status"])

    @contextlib.contextmanager
    def _ending(self) -> Any:
        """End the server on failure or interrupt: the next answer would be to this question."""
        try:
            yield
        except Exception as error:
            # A test may have replaced any function that this calls.
            self.close()
            raise ServerLost from error
        except BaseException:
            self.close()
            raise

    def _ask(self, request: dict[str, Any], seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        os.write(self._connection, json.dumps(request).encode())
        return self._receive(seconds)

    def _receive(self, seconds: float) -> dict[str, Any]:
        deadline = clock.monotonic() + seconds
        while not is_readable(self._connection, seconds=_LOOK_SECONDS):
            if clock.monotonic() > deadline:
                raise TimeoutError
            self._waiting()
        # At the end of the server it is empty, which is no JSON.
        return dict(json.loads(os.read(self._connection, _MAX_BYTES)))


class Server:
    """The server's end, which also the processes that it forks for files have."""

    def __init__(self, connection: int, session: int, said: Path) -> None:
        """Begin before the project is imported; `said` is what this process writes into."""
        self._connection = keep_high(connection)
        self._session = keep_high(os.pidfd_open(session))
        self._folder, self._said = said.parent, os.stat(said)
        self._random = random.getstate()
        self._forking = False
        self._register = os.register_at_fork
        os.register_at_fork = self._register_at_fork

    def find_obstacle(self) -> str:
        """Return what forked processes would share, or would lack; empty if there is nothing."""
        # Some libraries end their threads before a fork, and start them when they are needed;
        # OpenBLAS is one.
        if len(os.listdir("/proc/self/task")) > 1:
            self._try_to_fork()
        if len(threads := os.listdir("/proc/self/task")) > 1:
            return f"{len(threads)} threads run"
        if len(own_tree()) > 1:
            return "a child process runs"
        return self._find_open() or _find_shared_memory()

    def serve(self, why: str, *, hand_over: bool) -> dict[str, str] | None:
        """Return each request in a process that is forked for it, and None at the end in this one.

        `why` is why there can be none. With `hand_over`, the forked process gets the connection
        until it ends.
        """
        self._send({"why": why})
        while not why and (request := self._receive()):
            pid = self._fork(request, hand_over=hand_over)
            if not pid:
                return request
            if not hand_over:
                self._send({"pid": pid})
            # The session ends the process with its descendants before it has it reaped.
            if not (self._outlives(pid) if hand_over else self._receive()):
                os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._send({"left" if hand_over else "status": status})
        return None

    def _receive(self) -> dict[str, str]:
        """Return what the session asks; nothing if it has ended."""
        if not is_readable(self._connection, unless=self._session):
            return {}
        return dict(json.loads(os.read(self._connection, _MAX_BYTES) or b"{}"))

    def _send(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._connection, json.dumps(answer).encode())

    def _outlives(self, pid: int) -> bool:
        """Wait until a child has ended; return whether the session has not ended before."""
        watch = os.pidfd_open(pid)
        try:
            return is_readable(watch, unless=self._session)
        finally:
            os.close(watch)

    def _fork(self, request: dict[str, str], *, hand_over: bool) -> int:
        """Fork, and return once the child is prepared: 0 in the child."""
        server, seeded = os.getpid(), random.getstate()
        waiting, prepared = os.pipe()
        # The child would write it once more.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = self._os_fork()
        if pid:
            os.close(prepared)
            os.read(waiting, 1)
            os.close(waiting)
            return pid
        os.close(waiting)
        os.setsid()
        die_with(server)
        _FORKED_FROM[:] = [server]
        # Before Python 3.13, this thread would still have the number that it has in the server.
        threading.current_thread()._set_native_id()  # type: ignore[attr-defined]
        # The standard library has seeded its generator for this process, which must not undo a seed
        # of the program.
        if seeded == self._random:
            self._random = random.getstate()
        else:
            random.setstate(seeded)
        _leave_exit_handlers_to_parent()
        self._renew_files(request.get("said", ""))
        if not hand_over:
            os.close(self._connection)
            os.close(self._session)
            os.register_at_fork = self._register
        os.close(prepared)
        return 0

    def _os_fork(self) -> int:
        self._forking = True
        with warnings.catch_warnings():
            # Python warns if there are threads.
            warnings.simplefilter("ignore")
            pid = os.fork()
        self._forking = False
        return pid

    def _try_to_fork(self) -> None:
        pid = self._os_fork()
        if not pid:
            os._exit(0)
        watch = os.pidfd_open(pid)
        if not is_readable(watch, seconds=GRACE_SECONDS):
            os.kill(pid, signal.SIGKILL)
        os.close(watch)
        os.waitpid(pid, 0)

    def _register_at_fork(self, **hooks: Any) -> None:
        """Register hooks that this server's forks skip: to the test, its process is not forked."""
        if not is_standard(sys._getframe(1).f_code.co_filename):
            hooks = {
                when: partial(self._call, hook) if callable(hook) else hook
                for when, hook in hooks.items()
            }
        self._register(**hooks)

    def _call(self, hook: Callable[[], object]) -> None:
        if not self._forking:
            hook()

    def _renew_files(self, said: str) -> None:
        """Point this process at its own output and temporary files: pytest's captured output."""
        for number in _descriptors():
            found = os.fstat(number)
            if said and os.path.samestat(found, self._said):
                new = os.open(said, os.O_WRONLY | os.O_APPEND)
            elif stat.S_ISREG(found.st_mode) and not found.st_nlink:
                new = _copy_file(number, Path(said).parent if said else self._folder)
            else:
                continue
            os.dup2(new, number, inheritable=os.get_inheritable(number))
            os.close(new)

    def _find_open(self) -> str:
        """Return an open file, socket or pipe that no fork renews; empty if there is none."""
        harmless = [self._said, os.fstat(1), os.stat(os.devnull), os.stat("/dev/urandom")]
        # Where libffi maps its own code again for callbacks, it keeps its file open. A loaded
        # library is never written to.
        libraries = {
            line.rstrip("\n").split(maxsplit=5)[-1] for line in _read_maps() if " r-xp " in line
        }
        for number in _descriptors():
            found = os.fstat(number)
            renewed = stat.S_ISREG(found.st_mode) and not found.st_nlink
            own = number in (self._connection, self._session)
            path = os.readlink(f"/proc/self/fd/{number}")
            if not (
                own
                or renewed
                or path in libraries
                or any(os.path.samestat(found, one) for one in harmless)
            ):
                return f"{path} is open"
        return ""


def leave(status: int) -> None:
    """End this process; a forked one skips what is its parent's, such as the end of modules."""
    if _FORKED_FROM:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def _leave_exit_handlers_to_parent() -> None:
    """Forget exit handlers: they end what belongs to the parent, which does that itself."""
    atexit._clear()
    finalize: Any = weakref.finalize
    for finalizer in list(finalize._registry):
        finalizer.atexit = False
    # The next one registers with `atexit` again.
    finalize._registered_with_atexit = False


def _find_shared_memory() -> str:
    return next(
        ("it shares memory" for line in _read_maps() if line.split(" ", 2)[1] in _SHARED), ""
    )


def _read_maps() -> list[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return file.readlines()


def _descriptors() -> list[int]:
    # Without that of the listing itself, which is closed by then.
    return [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{name}")
    ]


def _copy_file(number: int, folder: Path) -> int:
    """Return a copy of a temporary file, at the same position, in a folder of this package."""
    with (
        tempfile.TemporaryFile(buffering=0, dir=folder) as copy,
        open(f"/proc/self/fd/{number}", "rb") as file,
    ):
        shutil.copyfileobj(file, copy)
        new = os.dup(copy.fileno())
    os.lseek(new, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    return new


def is_readable(number: int, *, seconds: float | None = None, unless: int | None = None) -> bool:
    """Wait until a descriptor is readable; False if the time ends or `unless` is readable first."""
    poll = select.poll()
    for descriptor in (number, unless):
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    found = [one for one, _event in poll.poll(None if seconds is None else 1000 * seconds)]
    return number in found
