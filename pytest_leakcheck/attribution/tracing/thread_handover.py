"""Attribute a change of a counter that one thread sees to the thread that caused it.

A C function that releases the GIL (``os.open``) has done its work some time before its own thread runs again; until
then, another thread may see the change. Before Python 3.12, threads that started before the tracer are not traced: what
they create is attributed to the line that handed the work to them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_standard, path_to
from pytest_leakcheck.attribution.object_inspection import name_of_called
from pytest_leakcheck.attribution.tracing.tracer import Event
from pytest_leakcheck.model.culprit import Site

# C functions that only wait for another thread or wake one. They create nothing.
_HARMLESS_FUNCTIONS: Final = frozenset(
    {
        "RLock.__enter__",
        "RLock.__exit__",
        "RLock.acquire",
        "RLock.release",
        "SimpleQueue.get",
        "SimpleQueue.put",
        "_ThreadHandle.join",
        "epoll.poll",
        "lock.__enter__",
        "lock.__exit__",
        "lock.acquire",
        "lock.release",
        "poll",
        "poll.poll",
        "select",
        "sleep",
        # The signal with which a thread wakes an event loop.
        "socket.send",
    }
)
# Functions of the standard library that hand work to a thread that already runs.
# Their callers are among them, because a tracer that leaves deep frames out reports only these.
_HANDING_FUNCTIONS: Final = frozenset(
    {
        "_map_async",
        "apply",
        "apply_async",
        "call_soon_threadsafe",
        "imap",
        "imap_unordered",
        "map",
        "map_async",
        "put",
        "run_coroutine_threadsafe",
        "run_in_executor",
        "starmap",
        "starmap_async",
        "submit",
    }
)
# C functions that create a thread, which is the first to see that it was added, and nothing else.
_THREAD_STARTERS: Final = frozenset({"start_joinable_thread", "start_new_thread"})


class Handover:
    """Record of the threads, by number, that run a C function and may have caused a change that another one sees."""

    def __init__(self) -> None:
        self._threads = 0
        self._inside: set[int] = set()
        self._suspects: set[int] = set()

    @property
    def many(self) -> bool:
        """Whether several threads were seen; until then the other methods are not needed."""
        return self._threads > 1

    def new_thread(self) -> int:
        self._threads += 1
        return self._threads

    def note(self, thread: int, calls: str) -> None:
        """Record that a thread has reached an event; `calls` is the C function that it is about to call, or empty."""
        self._suspects.discard(thread)
        if calls and calls not in _HARMLESS_FUNCTIONS:
            self._inside.add(thread)
        else:
            self._inside.discard(thread)

    def hold(self, thread: int) -> None:
        """Attribute a change that a thread saw to the first of the others that returns from its C function."""
        self._suspects |= self._inside - {thread}

    def is_suspect(self, thread: int) -> bool:
        """Return whether this thread may have caused the changes that other threads saw."""
        return thread in self._suspects

    def is_anothers(self, thread: int, returned: str) -> bool:
        """Return whether another thread more likely caused a change than the C function that returned in this one."""
        if returned and returned not in _HARMLESS_FUNCTIONS and returned not in _THREAD_STARTERS:
            return False
        return any(other != thread for other in self._inside)

    def begin(self) -> None:
        self._inside.clear()
        self._suspects.clear()


# The code of a frame of the program, and its line.
_Line = tuple[CodeType, int]
_WAIT: Final = threading.Condition.wait.__code__
# Functions of the standard library that wait in `_WAIT`, and are reported in its place if deep frames are left out.
_WAITING_FUNCTIONS: Final = frozenset({"exception", "get", "join", "result", "wait"})


class UntracedThreads:
    """Record of the lines that hand work to threads that are not traced."""

    def __init__(self) -> None:
        own = threading.get_ident()
        # From Python 3.12 on, all threads are traced.
        before = set() if sys.version_info >= (3, 12) else {one.ident for one in threading.enumerate()}
        self._threads = before - {own}
        self._handed: dict[_Line, tuple[Site, ...]] = {}
        # Those whose work may not have ended: nothing was waited for since.
        self._pending: set[_Line] = set()

    def begin(self) -> None:
        self._handed.clear()
        self._pending.clear()
        self._threads &= {one.ident for one in threading.enumerate()}

    @property
    def lines(self) -> list[str]:
        """The lines of this iteration, as ``file:line``."""
        return [f"{PurePath(code.co_filename).name}:{line}" for code, line in self._handed]

    def note(self, event: Event, frame: FrameType, called: Any) -> None:
        if not self._threads:
            return
        if self.has_waited(event, frame, called):
            if len(self._pending) == 1:
                # Of several, it is not known which has been waited for.
                self._pending.clear()
        elif event == "call" and frame.f_back is not None:
            self._note_call(frame.f_code, frame.f_back)
        elif event == "c_call" and type(called) is CodeType:
            self._note_call(called, frame)

    def _note_call(self, code: CodeType, caller: FrameType) -> None:
        if code.co_name not in _HANDING_FUNCTIONS or not is_standard(code.co_filename):
            return
        # Of the calls that lead there, only the program's own: what the others do has created nothing.
        while is_standard(caller.f_code.co_filename) and caller.f_back is not None:
            code, caller = caller.f_code, caller.f_back
        line = (caller.f_code, caller.f_lineno or 0)
        self._handed[line] = path_to(caller, f"{code.co_qualname}()")
        self._pending.add(line)

    def has_waited(self, event: Event, frame: FrameType, called: Any) -> bool:
        """Return whether a thread has waited for another one, which has probably ended its work."""
        return bool(self._handed) and (
            (event == "return" and frame.f_code is _WAIT) or (event == "c_return" and _is_waiting(called))
        )

    def path_of(self, event: Event, frame: FrameType, called: Any) -> tuple[Site, ...] | None:
        """Return the call path at which an untraced thread caused a change; empty if it is unknown.

        None if the thread that sees the change has caused it.
        """
        returned = name_of_called(called) if event == "c_return" else ""
        if not self._handed or (returned and not _is_waiting(called) and returned not in _HARMLESS_FUNCTIONS):
            return None
        line = _line_of_program(frame)
        if line in self._handed:
            return self._handed[line]
        # What only waits, the beginning of a thread and what comes after the last event has caused nothing.
        idle = returned or line is None or event == "end" or self.has_waited(event, frame, called)
        lines = self._pending if len(self._pending) == 1 else self._handed
        return self._handed[next(iter(lines))] if idle and len(lines) == 1 else ()


def is_wait(path: Sequence[Site]) -> bool:
    """Return whether a call path ends in a function that only waits, so that another thread caused what is seen."""
    return bool(path) and path[-1].call.removesuffix("()") in _HARMLESS_FUNCTIONS


def _is_waiting(called: Any) -> bool:
    return type(called) is CodeType and called.co_name in _WAITING_FUNCTIONS and is_standard(called.co_filename)


def _line_of_program(frame: FrameType | None) -> _Line | None:
    """Return the line that runs in the innermost frame outside of the standard library; None if there is none."""
    while frame is not None and is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lineno or 0)
