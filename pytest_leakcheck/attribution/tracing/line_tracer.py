"""In which line of one function a counter grows: the second round, where the first came to a function and no call in it.

Operators (``a @ b``), attributes and ``with`` make no event of their own, nor do functions of `ctypes` before Python 3.12;
what they keep is charged to the function, and here to its line.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from types import CodeType, FrameType
from typing import Final

from pytest_leakcheck.attribution.tracing.call_tree import LEAST, MOST
from pytest_leakcheck.attribution.tracing.throttle import STOPPED, Throttle
from pytest_leakcheck.attribution.tracing.trace_events import LineBackend, Step, is_of_the_program
from pytest_leakcheck.model.culprit import Site

# Parts of a growth: enough to be believed of a line that grows alone, and what the others may come to then.
_SOME: Final = 0.25
_HARDLY: Final = 0.1


class Lines:
    """Arm it just before an iteration, disarm it right after, as a `Tracer`; close it in the end.

    What the counter grows by while a line runs is charged to that line, with all that it calls. What it grows by while
    no frame of the function runs is not charged.

    Attributes:
        interrupted: Why there was nothing more to hear from some moment on; empty where nothing came between.
        throttle: Whether it took too long, and part of an iteration was left out.
    """

    def __init__(self, code: CodeType, read: Callable[[], int], plain_seconds: float = 0.0) -> None:
        """
        Args:
            code: The function.
            read: The counter.
            plain_seconds: How long an iteration takes that is not traced.

        Raises:
            Unavailable: Other tools have taken all places that there are.
        """
        self.code = code
        self.interrupted = ""
        self.throttle = Throttle(plain_seconds)
        self._read = read
        self._first = code.co_firstlineno
        last = max((line for _start, _end, line in code.co_lines() if line), default=self._first)
        # Numbers in place: Python ints kept per line would be blocks that the tracer leaks.
        self._kept = array("q", bytes(8 * (max(last, self._first) - self._first + 1)))
        self._last = 0
        self._stacks = threading.local()
        self._armed = False
        if sys.version_info >= (3, 12):
            from pytest_leakcheck.attribution.tracing.monitoring_backend import MonitoredLines

            self._backend: LineBackend = MonitoredLines(self)
        else:
            from pytest_leakcheck.attribution.tracing.setprofile_backend import TracedLines

            self._backend = TracedLines(self)

    def arm(self) -> None:
        if self.interrupted or self._armed:
            return
        self._armed = True
        # The lines that are run in this thread, of the outermost frame first.
        self._stacks = threading.local()
        running = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self.code:
                running.append(frame)
            frame = frame.f_back
        self._stacks.lines = [one.f_lineno for one in reversed(running)]
        self.throttle.begin()
        self._last = self._read()
        self._backend.install(running)

    def disarm(self) -> None:
        if not self._armed:
            return
        self._armed = False
        # A frame that runs on has its last line charged.
        if self._stacks.lines:
            self.step("leave")
        self.throttle.stop()
        self.interrupted = self._backend.remove() or self.interrupted

    def close(self) -> None:
        """Give back what the interpreter has lent."""
        self.disarm()
        self._backend.close()

    def forget(self) -> None:
        """Start all sums anew: after a first iteration, which also fills caches."""
        for at in range(len(self._kept)):
            self._kept[at] = 0

    def line(self, total: int | None = None) -> int:
        """The line that explains a growth (if not given, all that was charged); 0 if no single one does."""
        total = sum(self._kept) if total is None else total
        at = min(range(len(self._kept)), key=lambda at: abs(self._kept[at] - total))
        explains = total > 0 and (LEAST * total <= self._kept[at] <= MOST * total or self._is_alone(at, total))
        return self._first + at if explains else 0

    def _is_alone(self, at: int, total: int) -> bool:
        """Whether no other line keeps anything worth speaking of: malloc's own cache hides part of what small blocks take."""
        kept = self._kept[at]
        others = sum(map(abs, self._kept)) - abs(kept)
        return _SOME * total <= kept <= MOST * total and others <= _HARDLY * kept

    def refine(self, path: tuple[Site, ...], total: int | None = None) -> tuple[Site, ...]:
        """The path with the line that was found in place of its last; as it is where none was."""
        line = self.line(total)
        return (*path[:-1], replace(path[-1], line=line)) if line and path else path

    def step(self, kind: Step, line: int = 0) -> None:
        """What a frame of the function does now. No exception of its own gets out of here."""
        if self.throttle.limit == STOPPED:
            return
        began = perf_counter()
        try:
            self._step(kind, line or self._first)
        except RecursionError:
            return
        except BaseException as error:
            if is_of_the_program(error):
                raise
            self.interrupted = f"reading the counter failed: {type(error).__name__}: {error}"
            self.throttle.stop()
            return
        self.throttle.spend(0, began)

    def _step(self, kind: Step, line: int) -> None:
        try:
            lines: list[int] = self._stacks.lines
        except AttributeError:
            lines = self._stacks.lines = []
        now = self._read()
        if lines:
            self._kept[lines[-1] - self._first] += now - self._last
        self._last = now
        if kind == "leave":
            if lines:
                lines.pop()
        elif kind == "enter" or not lines:
            lines.append(line)
        else:
            lines[-1] = line
