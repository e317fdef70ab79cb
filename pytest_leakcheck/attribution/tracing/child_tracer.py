"""Find the lines that open descriptors, in a forked child process.

A signal of the parent starts the tracer. A forked child inherits the handler; a new program does not. The handler runs
in the child's main thread between two bytecodes, takes no locks and imports nothing. `sys.settrace` then reports the
lines of that thread, and the descriptors are counted at each line. So this works for functions of C as well, and needs
one round only. The tracer removes itself at the first event after the end of the round.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_harness, is_standard
from pytest_leakcheck.attribution.live_handles import open_files
from pytest_leakcheck.attribution.tracing.frames import path_to
from pytest_leakcheck.attribution.tracing.shared_log import Writer
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.probes.clock import monotonic

# Seconds that events may take before the lines of the function with the most events are left out; then the same again.
_STEP_SECONDS: Final = 0.5
# Seconds of all events after which the child is not traced any more.
_MAX_SECONDS: Final = 8.0
TRACED_ALREADY: Final = "it is traced by another tool, such as a debugger or coverage"
TOO_MANY_LINES: Final = "it runs too many lines to trace all of them"

_LocalTrace: TypeAlias = Callable[[FrameType, str, Any], Any]


class _TracedFiles(dict[str, bool]):
    """Cache by file name: whether the lines of a file are traced, so not those of the test runner or the library."""

    def __missing__(self, file: str) -> bool:
        traced = self[file] = not (file.startswith("<") or is_harness(file) or is_standard(file))
        return traced


class ChildTracer:
    """The tracer of one child's main thread, for one round."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._files = _TracedFiles()
        self._paths: dict[tuple[Site, ...], int] = {}
        self._known: dict[int, str] = {}
        self._last = 0
        self._others: dict[int, bytes] = {}
        # Threads of `threading` that have started since the tracer has. One of them may have ended within a line.
        self._started = 0
        self._started_before = 0
        self._events: Counter[CodeType] = Counter()
        # Functions whose lines are not traced, and those that open descriptors, whose lines always are.
        self._left_out: set[CodeType] = set()
        self._suspects: set[CodeType] = set()
        self._seconds, self._allowed = 0.0, _STEP_SECONDS
        # A bound method is a new object at each access; this one is compared by identity.
        self._global_trace = self._on_call
        self._thread_trace = self._on_new_thread
        self._ended = False

    @property
    def is_over(self) -> bool:
        """Whether the round has ended, or the tracer has given up."""
        return self._ended or not self._writer.is_current

    def start(self, frame: FrameType | None) -> None:
        """Trace the current thread from here on; the frame is the innermost one of the program."""
        if sys.gettrace() is not None or threading.gettrace() is not None:
            self._give_up(TRACED_ALREADY)
            return
        self._known, self._last, self._others = open_files(), _count(), _times_of_other_threads()
        self._writer.write("started")
        while frame is not None:
            # Frames that run already make no event of a call.
            if self._files[frame.f_code.co_filename]:
                frame.f_trace = self._trace_lines(frame)
            frame = frame.f_back
        threading.settrace(self._thread_trace)
        sys.settrace(self._global_trace)

    def _on_new_thread(self, _frame: FrameType, _kind: str, _argument: Any) -> None:
        """Count a thread at its first call, and trace it no further."""
        self._started += 1
        sys.settrace(None)

    def _on_call(self, frame: FrameType, _kind: str, _argument: Any) -> _LocalTrace | None:
        if not self._files[frame.f_code.co_filename]:
            if self.is_over:
                self._stop(frame)
            return None
        # What is new was opened by a line of a caller, the innermost whose lines are traced.
        caller = frame.f_back
        while caller is not None and not (self._files[caller.f_code.co_filename] and caller.f_trace is not None):
            caller = caller.f_back
        self._look(caller or frame, caller.f_lineno if caller is not None else 0)
        return None if self._ended else self._trace_lines(frame)

    def _trace_lines(self, frame: FrameType) -> _LocalTrace:
        line = frame.f_lineno

        def on_event(frame: FrameType, _kind: str, _argument: Any) -> _LocalTrace:
            nonlocal line
            # The event comes after the line, or at the end of the function.
            self._look(frame, line)
            frame.f_trace_lines = frame.f_code not in self._left_out
            line = frame.f_lineno if frame.f_trace_lines else 0
            return on_event

        return on_event

    def _look(self, frame: FrameType, line: int) -> None:
        """Count the descriptors; if there are new ones, this line (0 if unknown) of this frame has opened them."""
        if self.is_over:
            self._stop(frame)
            return
        began = monotonic()
        try:
            now = _count()
            if now != self._last:
                self._record_new(frame, line)
                self._last = now
            self._others, self._started_before = _times_of_other_threads(), self._started
        except Exception as error:  # noqa: BLE001 - an error of the tracer must not reach the program
            self._give_up(f"tracing it failed: {type(error).__name__}: {error}")
            self._stop(frame)
            return
        self._events[frame.f_code] += 1
        self._seconds += monotonic() - began
        if self._seconds > self._allowed:
            self._limit_cost(frame)

    def _record_new(self, frame: FrameType, line: int) -> None:
        now = open_files()
        fresh = [fd for fd, what in now.items() if self._known.get(fd) != what]
        self._known = now
        if not fresh:
            return
        if not line or frame.f_code in self._left_out:
            # From now on, the lines of this function are traced.
            self._left_out.discard(frame.f_code)
            self._suspects.add(frame.f_code)
            return
        if self._others_ran():
            self._writer.write("doubt", len(fresh))
            return
        *outer, last = path_to(frame)
        path = (*outer, replace(last, line=line))
        if path not in self._paths:
            self._paths[path] = len(self._paths)
            self._writer.write("path", [(site.file, site.line, site.function, site.call) for site in path])
        for fd in fresh:
            self._writer.write("new", fd, now[fd], self._paths[path])
        self._suspects.add(frame.f_code)

    def _others_ran(self) -> bool:
        """Return whether another thread of Python has run since this thread's last event."""
        if self._started != self._started_before or self._others != _times_of_other_threads():
            return True
        # The time of a thread that has a processor may not be up to date.
        return any(_is_running(number) for number in self._others)

    def _limit_cost(self, frame: FrameType) -> None:
        """Leave out the lines of the function with the most events, unless it opens descriptors."""
        if self._seconds > _MAX_SECONDS:
            self._give_up(TOO_MANY_LINES)
            self._stop(frame)
            return
        innocent = [(events, code) for code, events in self._events.items() if code not in self._suspects]
        if innocent:
            self._left_out.add(max(innocent, key=lambda one: one[0])[1])
        self._events.clear()
        self._allowed = self._seconds + _STEP_SECONDS

    def _give_up(self, why: str) -> None:
        self._writer.write("why", why)
        self._ended = True

    def _stop(self, frame: FrameType | None) -> None:
        """Remove the trace functions from this thread."""
        self._ended = True
        if sys.gettrace() == self._global_trace:
            sys.settrace(None)
        if threading.gettrace() == self._thread_trace:
            threading.settrace(None)  # type: ignore[arg-type, unused-ignore]
        while frame is not None:
            if self._files[frame.f_code.co_filename]:
                frame.f_trace = None
            frame = frame.f_back


def _count() -> int:
    """Return a number that changes with the number of open descriptors."""
    # Kernels before 6.2 do not report it as the size of the folder.
    return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))  # noqa: PTH116, PTH208 - at each line


def _times_of_other_threads() -> dict[int, bytes]:
    """Return how long each other Python thread has run, by the scheduler; if this is unchanged, it opened nothing."""
    threads: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    # `threading.enumerate` would take a lock, which the interrupted code may hold.
    if len(threads) <= 1:
        return {}
    me = threading.get_ident()
    numbers = (one.native_id or 0 for ident, one in list(threads.items()) if ident != me)
    # If a time cannot be read, it must differ from the next.
    return {number: _read_of_thread(number, "schedstat") or repr(monotonic()).encode() for number in numbers}


def _is_running(thread: int) -> bool:
    """Return whether a thread runs or waits for a processor; True if that is unknown."""
    # The state follows the name, which is in parentheses.
    return _read_of_thread(thread, "stat").rpartition(b") ")[2][:1] in (b"R", b"")


def _read_of_thread(thread: int, file: str) -> bytes:
    """Read a file about a thread of this process; empty if that is not possible."""
    try:
        descriptor = os.open(f"/proc/self/task/{thread}/{file}", os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 512)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
