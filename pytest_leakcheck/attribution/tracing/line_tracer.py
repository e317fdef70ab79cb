"""Find the line of one function in which a counter grows.

This is the second round, for a growth that the first traced to a function but to no call in it: operators (``a @ b``),
attributes and ``with`` make no call events, nor do `ctypes` functions before Python 3.12.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final, Literal

from pytest_leakcheck.attribution.tracing.call_tree import LEAST, MOST, is_by_chance
from pytest_leakcheck.attribution.tracing.tracer import STOPPED, Throttle, is_of_the_program
from pytest_leakcheck.probes.clock import monotonic

# A line that grows alone explains a growth of which it retains at least this share. It does so if what the other lines
# retain and release adds up to at most this share of its own.
_MIN_LONE_RATIO: Final = 0.25
_MAX_OTHERS_RATIO: Final = 0.1
# A frame is entered or resumed, reaches a line, or is left or suspended.
Step = Literal["enter", "line", "leave"]


class LineTracer(ABC):
    """Tracer of the lines of one function, to be used as a `CallTracer`.

    The counter's growth while a line runs, calls included, is charged to that line; other growth is not charged.
    """

    def __init__(self, code: CodeType, read: Callable[[], int], plain_seconds: float = 0.0) -> None:
        self._code = code
        self.interrupted = ""
        self.throttle = Throttle(plain_seconds)
        self._read = read
        self._first = code.co_firstlineno
        last = max((line for _start, _end, line in code.co_lines() if line), default=self._first)
        # An array: a Python int per line would be a memory block that the tracer leaks.
        self._kept = array("q", bytes(8 * (max(last, self._first) - self._first + 1)))
        self._last = 0
        self._stacks = threading.local()
        self._armed = False

    @abstractmethod
    def _install(self, running: list[FrameType]) -> None:
        """Begin to report lines; frames of the function that run already are given innermost first."""

    @abstractmethod
    def _remove(self) -> str:
        """Stop reporting, and return why some events may have been missed; empty if none were."""

    def arm(self) -> None:
        if self.interrupted or self._armed:
            return
        self._armed = True
        # `lines` of this object: the current line of each frame of the function in this thread, outermost first.
        self._stacks = threading.local()
        running = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._code:
                running.append(frame)
            frame = frame.f_back
        self._stacks.lines = [one.f_lineno for one in reversed(running)]
        self.throttle.begin()
        self._last = self._read()
        self._install(running)

    def disarm(self) -> None:
        if not self._armed:
            return
        self._armed = False
        # If a frame of the function still runs, charge the growth since the last step to its current line.
        if self._stacks.lines:
            self.step("leave")
        self.throttle.stop()
        self.interrupted = self._remove() or self.interrupted

    def close(self) -> None:
        self.disarm()

    def forget(self) -> None:
        """Reset all sums; for use after the first iteration, which fills caches."""
        for at in range(len(self._kept)):
            self._kept[at] = 0

    def line(self, total: int | None = None) -> int:
        """Return the line that explains a growth, by default all growth that was charged; 0 if no single line does."""
        total = sum(self._kept) if total is None else total
        if total <= 0:
            return 0
        at = min(range(len(self._kept)), key=lambda at: abs(self._kept[at] - total))
        if LEAST * total <= self._kept[at] <= MOST * total:
            others = [*self._kept[:at], *self._kept[at + 1 :]]
            return 0 if is_by_chance(self._kept[at], others, total) else self._first + at
        alone, all_moves = self._kept[at], sum(map(abs, self._kept))
        if _MIN_LONE_RATIO * total <= alone <= MOST * total and all_moves - alone <= _MAX_OTHERS_RATIO * alone:
            # Only this line grows. malloc's own cache may hide a part of what small blocks take.
            return self._first + at
        most = max(range(len(self._kept)), key=self._kept.__getitem__)
        other_gains = sum(amount for amount in self._kept if amount > 0) - self._kept[most]
        # The other lines may only release a part of that again.
        is_only_gain = LEAST * total <= sum(self._kept) and other_gains <= _MAX_OTHERS_RATIO * total
        return self._first + most if is_only_gain else 0

    def step(self, kind: Step, line: int = 0) -> None:
        """Charge the growth since the last step, and update the current line; 0 stands for the function's first line."""
        if self.throttle.limit == STOPPED:
            return
        began = monotonic()
        try:
            self._charge_step(kind, line or self._first)
        except RecursionError:
            return
        except BaseException as error:
            if is_of_the_program(error):
                raise
            self.interrupted = f"reading the counter failed: {type(error).__name__}: {error}"
            self.throttle.stop()
            return
        self.throttle.spend(0, began)

    def _charge_step(self, kind: Step, line: int) -> None:
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
