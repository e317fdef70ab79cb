"""Trace child processes, such as pool or DataLoader workers, to lines that open descriptors.

`prepare_children` installs a signal handler, which forked children inherit, and which
`multiprocessing` passes to those that it spawns or that its fork server forks. During the search,
each of them gets the signal: `sys.settrace` then reports the lines of its main thread, and the
descriptors are counted at each line. To find out what only its garbage collector releases, that is
switched off meanwhile, and the tracer collects at each new descriptor.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from pytest_leakcheck.attribution.call_paths import is_harness, is_standard, path_to
from pytest_leakcheck.attribution.handles import open_files, read_process_name
from pytest_leakcheck.attribution.tracing.created_handles import Arrival
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.probes.child_reports import unwatch_children, watch_children
from pytest_leakcheck.probes.child_start import run_in_children, stop_in_children
from pytest_leakcheck.probes.clock import monotonic
from pytest_leakcheck.probes.foreign_files import Unreadable, parse, private, read_text
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.own_descriptors import count_open
from pytest_leakcheck.probes.own_folder import own_folder
from pytest_leakcheck.probes.processes import descendants, read_command_line

# A function that has had this many events and has opened nothing is then traced without its lines.
_MAX_EVENTS: Final = 10_000
# Seconds of all events after which a child is not traced any more.
_MAX_SECONDS: Final = 8.0
# It exists in the folder during rounds in which the tracers collect.
_COLLECTS: Final = "collects"
_NO_HANDLER: Final = "it was not started by os.fork or multiprocessing during the session, or its signals are changed"
_NO_ANSWER: Final = "its main thread ran no Python code between the start and the end of the search"
_TRACED_ALREADY: Final = "it is traced by another tool, such as a debugger or coverage"
_OTHER_THREADS: Final = "another of its threads was running too, and only the main thread is traced"
_TOO_MANY_LINES: Final = "it runs too many lines to trace all of them"
# It runs in each child that gets the handler, with its `number` and `folder`. Nothing is imported
# before the signal comes, and no error is raised.
_INSTALL: Final = """
import signal
def start(_number, frame):
    try:
        from pytest_leakcheck.attribution.tracing.traced_children import restart_tracer
        restart_tracer(folder, frame)
    except Exception:
        pass
signal.signal(number, start)
# Functions of C that wait in the kernel are not interrupted.
signal.siginterrupt(number, False)
"""
_NAME: Final = "tracer"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a tracer writes: why descriptors are missing, the opened and the collected ones."""

    why: str
    opened: tuple[tuple[int, str, tuple[Site, ...]], ...]
    collected: tuple[tuple[int, str, str], ...]


class _Handler(NamedTuple):
    """The handler of a signal. The folder exists during rounds."""

    number: int
    folder: str


_PREPARED: Final[list[_Handler]] = []


def prepare_children() -> bool:
    """Make children that start from now on traceable, and report what their collectors release.

    Return whether `release_children` is to undo this call.
    """
    watched = watch_children()
    # Only the main thread can handle signals. Programs take the lowest of the real-time signals
    # first.
    if (
        _PREPARED
        or not sys.platform.startswith("linux")
        or threading.current_thread() is not threading.main_thread()
    ):
        return watched
    free = [
        number
        for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in free[:1]:
        # Around that of the rounds, so that no other user can create that one.
        handler = _Handler(number, f"{tempfile.mkdtemp(dir=own_folder())}/round")
        _PREPARED.append(handler)
        exec(_INSTALL, handler._asdict())  # noqa: S102 - here as in the children
        run_in_children(_NAME, _INSTALL, **handler._asdict())
    return watched or bool(_PREPARED)


def release_children() -> None:
    """Undo `prepare_children` in this process."""
    unwatch_children()
    while _PREPARED:
        handler = _PREPARED.pop()
        signal.signal(handler.number, signal.SIG_DFL)
        shutil.rmtree(Path(handler.folder).parent, ignore_errors=True)
        stop_in_children(_NAME)


class TracedChildren:
    """The child processes in a round: `begin_iteration` before each iteration, `close` at the end.

    With `unclosed`, only descriptors count that the collector of a child releases; their targets
    are `released`.
    """

    def __init__(self, *, unclosed: bool = False) -> None:
        self._unclosed = unclosed
        self._collected: Counter[int] = Counter()
        self.released: list[str] = []
        # Where the children have opened what they have not closed, by process and descriptor, where
        # it is known.
        self.found: dict[tuple[int, int], Arrival] = {}
        # The processes with new descriptors, those with the most without a known line first; `why`
        # is that of the first.
        self.names: dict[int, str] = {}
        self.count, self.why = 0, ""
        self._before: dict[int, dict[int, str]] = {}
        self._reasons: dict[int, str] = {}
        with suppress(OSError):
            for handler in _PREPARED:
                Path(handler.folder).mkdir(0o700)
                if unclosed:
                    Path(handler.folder, _COLLECTS).touch()

    def begin_iteration(self) -> None:
        """Start the tracer in children seen before: a new one may be about to execute a program."""
        for pid in descendants(os.getpid()):
            if pid not in self._before:
                self._before[pid] = open_files(str(pid))
            elif self._reasons.get(pid, _NO_HANDLER) == _NO_HANDLER:
                self._reasons[pid] = _send_signal(pid) or _NO_ANSWER

    def close(self) -> None:
        """End the round, and find out what the children have opened."""
        unknown: Counter[int] = Counter()
        for pid, before in self._before.items():
            new = {fd: what for fd, what in open_files(str(pid)).items() if before.get(fd) != what}
            found = dict(self._read(pid, new))
            count = self._collected[pid] if self._unclosed else len(new)
            if count:
                self.found |= found
                self.count += count
                unknown[pid] = count - len(found)
        for handler in _PREPARED:
            shutil.rmtree(handler.folder, ignore_errors=True)
        for pid in self._reasons:
            _send_signal(pid)
        self.names = {pid: read_process_name(str(pid)) for pid, _unknown in unknown.most_common()}
        self.why = next((self._reasons.get(pid, _NO_ANSWER) for pid in self.names), "")

    def _read(self, pid: int, new: Mapping[int, str]) -> Iterator[tuple[tuple[int, int], Arrival]]:
        """Yield where a child opened new or collected descriptors; keep why some are missing."""
        opened: dict[int, tuple[str, tuple[Site, ...]]] = {}
        with suppress(Unreadable, IndexError):
            for line in read_text(Path(_PREPARED[0].folder, str(pid))).splitlines():
                seen = parse(_Seen, line)
                self._reasons[pid] = (
                    self._reasons[pid] if seen.opened or seen.collected else seen.why
                )
                for fd, what, target in seen.collected:
                    self._collected[pid] += 1
                    self.released.append(target)
                    if self._unclosed and fd in opened and opened[fd][0] == what:
                        found, path = opened.pop(fd)
                        yield (pid, self._collected[pid]), Arrival(path, found, exact=True)
                opened |= {fd: (what, path) for fd, what, path in seen.opened}
        for fd, (what, path) in opened.items():
            if not self._unclosed and what == new.get(fd):
                yield (pid, fd), Arrival(path, what, exact=True)

    def describe(self, pids: Collection[int] = ()) -> str:
        """Describe some of the processes with new descriptors; by default, all of them."""
        names = [name for pid, name in self.names.items() if not pids or pid in pids]
        return (
            f"{len(names)} child processes, such as {names[0]}"
            if len(names) > 1
            else f"child process {names[0]}"
        )


def _send_signal(pid: int) -> str:
    """Send the signal to a child; return why it would not handle it, empty if it does."""
    with suppress(OSError, IndexError):
        number, words = _PREPARED[0].number, read_command_line(str(pid))
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        blocked, caught = (
            int(signals, 16) for signals in re.findall(r"Sig(?:Blk|Cgt):\s*(\w+)", status)
        )
        is_ours = words == read_command_line("self") or "multiprocessing." in " ".join(words)
        # Without a handler, it would end the process. A child that is about to execute a program
        # blocks all signals.
        if is_ours and (caught & ~blocked) >> (number - 1) & 1:
            os.kill(pid, number)
            return ""
    return _NO_HANDLER


class _Tracer:
    """Traces a child's main thread; it appends reasons, or descriptors with paths, to a file."""

    def __init__(self, file: str, frame: FrameType | None, *, collects: bool) -> None:
        """Trace the current thread from here on; the frame is the innermost one of the program."""
        self._collects = collects
        if collects:
            gc.disable()
            # A collection then walks what is new.
            gc.freeze()
        self._file, self._pid = file, os.getpid()
        self._others, self._known, self._last = (
            _times_of_other_threads(),
            open_files(),
            count_open(),
        )
        self._events: Counter[CodeType] = Counter()
        self._seconds = 0.0
        # A bound method is a new object at each access; this one is compared by identity.
        self._global_trace = self._on_call
        if sys.gettrace() is not None:
            self._write(_TRACED_ALREADY)
            return
        self._write()
        while frame is not None:
            # Frames that run already make no event of a call.
            if _is_traced(frame.f_code.co_filename):
                frame.f_trace = self._trace_lines(frame)
            frame = frame.f_back
        sys.settrace(self._global_trace)

    def stop(self) -> None:
        if self._collects:
            self._collects = False
            gc.unfreeze()
            gc.enable()
        if sys.gettrace() is self._global_trace:
            sys.settrace(None)

    def _on_call(self, frame: FrameType, _kind: str, _argument: Any) -> Any:
        if frame.f_code is threading.Thread.start.__code__:
            # The new thread may have ended before the next event.
            self._others = {0: b"started"}
        if not _is_traced(frame.f_code.co_filename):
            return None
        # What is new was opened by a line of a caller, the innermost whose lines are traced.
        caller = frame.f_back
        while caller is not None and not _is_traced(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None:
            self._look(caller, caller.f_lineno if caller.f_trace_lines else 0)
        return self._trace_lines(frame)

    def _trace_lines(self, frame: FrameType) -> Any:
        line = frame.f_lineno

        def on_event(frame: FrameType, _kind: str, _argument: Any) -> Any:
            nonlocal line
            if sys.gettrace() is not self._global_trace:
                return None
            # The event comes after the line, or at the end of the function.
            self._look(frame, line)
            frame.f_trace_lines = self._events[frame.f_code] < _MAX_EVENTS
            line = frame.f_lineno if frame.f_trace_lines else 0
            return on_event

        return on_event

    def _look(self, frame: FrameType, line: int) -> None:
        """Count the descriptors; this line (0: unknown) of this frame has opened the new ones."""
        if os.getpid() != self._pid:
            # A process that the child forks inherits its trace functions.
            self.stop()
            return
        began = monotonic()
        self._events[frame.f_code] += 1
        try:
            # Read before the count, so that no other thread can open anything between the two and
            # seem to have rested since.
            others, now = _times_of_other_threads(), count_open()
            if now != self._last:
                self._record_new(frame, line)
                self._last = now
            self._others = others
        except Exception as error:  # noqa: BLE001 - an error of the tracer must not reach the program
            self._write(f"tracing it failed: {type(error).__name__}: {error}")
            self.stop()
        self._seconds += monotonic() - began
        if self._seconds > _MAX_SECONDS:
            self._write(_TOO_MANY_LINES)
            self.stop()

    def _record_new(self, frame: FrameType, line: int) -> None:
        collected = self._collect() if self._collects else []
        before, self._known = self._known, open_files()
        fresh = [(fd, what) for fd, what in self._known.items() if before.get(fd) != what]
        if fresh:
            # From now on, the lines of this function are always traced.
            self._events[frame.f_code] = -sys.maxsize
            frame.f_trace_lines = True
        if fresh and self._others != _times_of_other_threads():
            self._write(_OTHER_THREADS)
            fresh = []
        if (fresh and line) or collected:
            *callers, last = path_to(frame)
            path = (*callers, replace(last, line=line))
            self._write(
                opened=tuple((fd, what, path) for fd, what in fresh if line),
                collected=tuple(collected),
            )

    def _collect(self) -> list[tuple[int, str, str]]:
        """Collect; return the released descriptors, with the file's identity and the target."""
        before, targets = open_files(), open_targets()
        gc.collect()
        after = open_files()
        return [
            (fd, what, targets.get(fd, "")) for fd, what in before.items() if after.get(fd) != what
        ]

    def _write(
        self, why: str = "", opened: tuple[Any, ...] = (), collected: tuple[Any, ...] = ()
    ) -> None:
        with suppress(OSError), open(self._file, "a", encoding="utf-8", opener=private) as file:
            file.write(f"{json.dumps(encode(_Seen(why, opened, collected)))}\n")


_TRACERS: Final[list[_Tracer]] = []


def restart_tracer(folder: str, frame: FrameType | None) -> None:
    """Handle the parent's signal: end an earlier tracer; start one if a round's folder exists."""
    while _TRACERS:
        _TRACERS.pop().stop()
    if os.access(folder, os.W_OK):
        collects = gc.isenabled() and os.access(f"{folder}/{_COLLECTS}", os.F_OK)
        _TRACERS.append(_Tracer(f"{folder}/{os.getpid()}", frame, collects=collects))


@cache
def _is_traced(file: str) -> bool:
    return not (file.startswith("<") or is_harness(file) or is_standard(file))


def _times_of_other_threads() -> dict[int, bytes]:
    """Return the scheduler's times of other threads of Python; an unchanged one opened nothing."""
    found: dict[int, bytes] = {}
    # `threading.enumerate` would take a lock, which the interrupted code may hold.
    threads: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    for number in [
        one.native_id or 0 for ident, one in list(threads.items()) if ident != threading.get_ident()
    ]:
        try:
            with open(f"/proc/self/task/{number}/schedstat", "rb", buffering=0) as file:  # noqa: PTH123 - at each line
                found[number] = file.read(64)
        except OSError:
            found[number] = b"%f" % monotonic()  # it differs from the next
    return found
