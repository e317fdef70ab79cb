"""A watchdog timer: interrupt a repeated run that blocks, and tell which call waits.

Its timer is one of POSIX with a signal of its own. It needs no thread, and leaves SIGALRM to the
tests. Outside Linux, there is no watchdog: a run that blocks has only the timeouts of the user.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final, Self

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from pytest_leakcheck.attribution.call_paths import path_to, path_to_await, read_path
from pytest_leakcheck.model.culprit import Site, short_file
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.memory import load_libc

# A run may take this many seconds, and this multiple of the longest run so far: a traced one may be
# ten times as long.
_SHORTEST: Final = 5.0
_MULTIPLE: Final = 20.0
# A run that catches the exception, such as a loop that tries again, is interrupted again after this
# share of its limit.
_AGAIN: Final = 0.2
# Seconds after which a run that no exception ends, such as a call of C, ends the process, with the
# stacks of all threads.
_LAST: Final = 60.0
_CLOCK_MONOTONIC: Final = 1
# From bits/sigevent: the signal goes to one thread.
_SIGEV_THREAD_ID: Final = 4


class Blocked(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # pytest makes it at run time
    """A repeated run took too long; pytest treats it like ``pytest.fail()`` in each test phase."""

    __module__ = "builtins"

    def __init__(self, where: str) -> None:
        """Take which call waits, and where."""
        super().__init__(f"blocked {where}", pytrace=False)
        self.where = where


class _Event(ctypes.Structure):
    """``struct sigevent``, 64 bytes."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("tid", ctypes.c_int),
        ("rest", ctypes.c_byte * 44),
    )


class _Times(ctypes.Structure):
    """``struct itimerspec``."""

    _fields_ = (
        ("again_seconds", ctypes.c_long),
        ("again_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


class _PosixTimer:
    """A timer that signals the main thread; raises `OSError` if there are no such timers."""

    def __init__(self, number: int) -> None:
        self._number = ctypes.c_void_p()
        event = _Event(
            signal=number, notify=_SIGEV_THREAD_ID, tid=main_thread().native_id or os.getpid()
        )
        try:
            self._libc: Any = load_libc()
            failed = self._libc.timer_create(
                _CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._number)
            )
        except AttributeError:
            raise OSError("the C library has no timer_create()") from None
        if failed:
            raise OSError(ctypes.get_errno(), "timer_create() failed")

    def set(self, seconds: float, again: float = 0.0) -> None:
        """Start the timer, or stop it with 0 seconds."""
        times = _Times(int(again), int(again % 1 * 1e9), int(seconds), int(seconds % 1 * 1e9))
        self._libc.timer_settime(self._number, 0, ctypes.byref(times), None)

    def close(self) -> None:
        self._libc.timer_delete(self._number)


class Watchdog:
    """Bounds the runs of one process; use it as a context around all, and `limit` around each."""

    def __init__(self, config: pytest.Config) -> None:
        # pytest's copy of the terminal's descriptor: it captures the descriptor itself.
        self._stderr = config.stash.get(fault_handler_stderr_fd_key, 2)
        self._timers: tuple[_PosixTimer, ...] = ()
        self._context = contextlib.ExitStack()
        self._is_set = False
        self._longest = 0.0

    def __enter__(self) -> Self:
        if not sys.platform.startswith("linux") or current_thread() is not main_thread():
            return self
        free = [
            number
            for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1)
            if signal.getsignal(number) is signal.SIG_DFL
        ]
        # A test may refuse any of this, with an audit hook for example.
        with contextlib.suppress(Exception):
            interrupting, ending = free[:2]
            self._context.callback(
                signal.signal, interrupting, signal.signal(interrupting, self._interrupt)
            )
            faulthandler.register(ending, self._stderr, all_threads=True, chain=True)
            self._context.callback(faulthandler.unregister, ending)
            first = self._context.enter_context(contextlib.closing(_PosixTimer(interrupting)))
            self._timers = (
                first,
                self._context.enter_context(contextlib.closing(_PosixTimer(ending))),
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._timers = ()
        self._context.close()

    @contextlib.contextmanager
    def limit(self, first: float) -> Iterator[None]:
        """Interrupt what takes much longer than earlier runs, with `Blocked`.

        `first` is the time of the first run, in seconds.
        """
        if not self._timers:
            yield
            return
        interrupting, ending = self._timers
        seconds = max(_SHORTEST, _MULTIPLE * max(first, self._longest))
        began = clock.monotonic()
        self._is_set = True
        interrupting.set(seconds, max(1.0, _AGAIN * seconds))
        ending.set(seconds + _LAST)
        try:
            yield
            self._longest = max(self._longest, clock.monotonic() - began)
        finally:
            self._is_set = False
            interrupting.set(0.0)
            ending.set(0.0)

    def _interrupt(self, _number: int, frame: FrameType | None) -> None:
        if self._is_set:
            raise Blocked(describe_wait(frame))


def describe_wait(frame: FrameType | None) -> str:
    """Return which call of the test waits, and where: in a task if this thread's loop is idle."""
    for path in (*_paths_of_waiting_tasks(), path_to(frame)):
        if (where := read_path(path)) is None:
            continue
        at = max(at for at, site in enumerate(where.path) if site == where.site)
        line = f"at {short_file(where.site.file)}:{where.site.line}"
        return f"in {where.path[at + 1].function}(), {line}" if at + 1 < len(where.path) else line
    return "outside of the test's own lines"


def _paths_of_waiting_tasks() -> Iterator[tuple[Site, ...]]:
    """Yield the call path of each task, outermost first, if this thread's event loop runs none."""
    asyncio: Any = sys.modules.get("asyncio")
    loop = asyncio._get_running_loop() if asyncio is not None else None
    if loop is None or asyncio.current_task(loop) is not None:
        return
    for task in asyncio.all_tasks(loop):
        yield path_to_await(task.get_coro())
