"""Limit the cost of a traced iteration.

If events cost too much, those of the deepest frames are left out first.
"""

from __future__ import annotations

import os
from array import array
from threading import get_native_id
from typing import Final

from pytest_leakcheck.probes.clock import monotonic

# Values of `Throttle.limit`. With this limit, no frame is too deep: all events are reported.
UNLIMITED: Final = 1 << 30
# With this limit, every frame is too deep: no event is reported.
STOPPED: Final = -UNLIMITED
# Seconds. A shorter iteration gets the budget of one that takes this long. Tracing may then make it a thousand times
# slower, which does no harm.
_MIN_PLAIN_SECONDS: Final = 0.001
# Budgets, as multiples of the duration of a plain (untraced) iteration. What events may cost before a depth limit is
# first chosen:
_FIRST_BUDGET: Final = 4.0
# What they may then cost before the limit is lowered again:
_NEXT_BUDGET: Final = 1.0
# How long an iteration may take in all; after that, no more of its events are reported. This limit also covers the time
# of callbacks that report nothing:
_MAX_DURATION: Final = 6.0
# What the events of a whole iteration may cost at a chosen depth limit:
_BUDGET_AT_DEPTH: Final = 2.5
# When the depth limit is lowered, events within the new limit may account for at most this share of the cost since the
# limit was last chosen.
_MAX_REMAINING_RATIO: Final = 0.7
# Seconds. At most this much time in which other processes had the processor is added to the allowed duration of an
# iteration.
_MAX_HELD_UP_SECONDS: Final = 0.5
# Seconds. What an event costs outside of the measured time, on a machine of 2020.
_UNTIMED_SECONDS: Final = 0.5e-6
# Number of depths whose costs are summed separately; deeper frames count at the last of them.
_TRACKED_DEPTHS: Final = 128
# When a backend has left out more than this many events, it checks whether the iteration is late.
SKIPPED: Final = 1000


class Throttle:
    """Budget of traced iterations.

    It sums the cost of events, and lowers the depth limit when they cost too much. The budget is proportional to the
    duration of a plain iteration, or to a millisecond if that is longer. Time in which the thread was ready to run but
    had no processor is not charged.

    Attributes:
        limit: Events of frames deeper than this, counted from the iteration's outer frame, are not reported.
        coarse: Whether any event was left out so far.
        cut: Whether the rest of this iteration is not traced.
        turn: Counts the reported events. If it changes while an event is handled, another thread ran.
    """

    def __init__(self, plain_seconds: float, longest: float = 0.0) -> None:
        """Create a throttle without a depth limit; it reports for `longest` seconds (0: six plain iterations)."""
        self.limit = self._depth = UNLIMITED
        self.coarse = self.cut = False
        self.turn = 0
        self._plain = max(plain_seconds, _MIN_PLAIN_SECONDS)
        self._longest = longest or _MAX_DURATION * self._plain
        # Cost in seconds by depth. An array: a Python float per depth would be a memory block that the tracer leaks.
        self._by_depth = array("d", bytes(8 * _TRACKED_DEPTHS))
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, with the depth limit that earlier iterations required."""
        self.limit = self._depth
        self.cut = False
        self._clear_costs()
        self._spent = 0.0
        self._allowed = _FIRST_BUDGET * self._plain
        self._began = monotonic()
        self._stop_at = self._began + self._longest
        self._thread = get_native_id()
        self._held_up = seconds_held_up(self._thread)
        self._deducted = 0.0

    def spend(self, depth: int, began: float | None) -> bool:
        """Charge an event's cost, 0 if `began` is None (unknown); return whether fewer events are reported after it."""
        now = monotonic()
        if began is not None:
            took = now - began + _UNTIMED_SECONDS
            self._by_depth[min(max(depth, 0), _TRACKED_DEPTHS - 1)] += took
            self._spent += took
        if now > self._stop_at and self.is_late():
            return True
        if self._spent <= self._allowed or self._deduct_time_held_up(depth):
            return False
        self._allowed = self._spent + _NEXT_BUDGET * self._plain
        if self.limit > self._smallest_depth():
            self._lower_depth()
            self.limit = self._depth
        else:
            self.stop()
            self.cut = True
        self.coarse = True
        return True

    def is_late(self) -> bool:
        """Return whether this iteration has taken too long; if so, stop tracing it."""
        late = monotonic() - self._stop_at
        if late <= 0 or late <= min(seconds_held_up(self._thread) - self._held_up, _MAX_HELD_UP_SECONDS):
            return False
        if self.limit > self._smallest_depth() and self._spent > _NEXT_BUDGET * self._plain:
            # With a lower limit, the next iteration is traced further before its time is up.
            self._lower_depth()
        self.stop()
        self.coarse = self.cut = True
        return True

    def _deduct_time_held_up(self, depth: int) -> bool:
        """Deduct time without a processor from the cost at a depth; return whether the cost is then within budget."""
        held_up = seconds_held_up(self._thread) - self._held_up
        at = min(max(depth, 0), _TRACKED_DEPTHS - 1)
        others = max(0.0, min(held_up - self._deducted, self._by_depth[at] - _UNTIMED_SECONDS))
        self._deducted += others
        self._by_depth[at] -= others
        self._spent -= others
        return self._spent <= self._allowed

    def stop(self) -> None:
        """Report nothing more in this iteration."""
        self.limit = STOPPED

    def _lower_depth(self) -> None:
        """Choose a lower depth limit from the cost of each depth since the last choice."""
        # The elapsed time that was not spent on events went into the program, and shows how far the iteration has got.
        elapsed = monotonic() - self._began
        progress = min(max((elapsed - self._spent) / self._plain, 0.01), 1.0)
        share = min(_BUDGET_AT_DEPTH * self._plain * progress / self._spent, _MAX_REMAINING_RATIO)
        wanted = share * sum(self._by_depth)
        below = 0.0
        depth = 0
        while depth + 1 < min(self._depth, _TRACKED_DEPTHS):
            below += self._by_depth[depth + 1] + (self._by_depth[0] if depth == 0 else 0.0)
            if below > wanted:
                break
            depth += 1
        # Lower by one, because a frame just below the limit is still reported, as a C call.
        self._depth = max(depth - 1, self._smallest_depth())
        self._clear_costs()

    def _smallest_depth(self) -> int:
        """Return the smallest depth at which an event was reported; frames at smaller depths are never reported."""
        return next((depth for depth in range(_TRACKED_DEPTHS) if self._by_depth[depth]), 0)

    def _clear_costs(self) -> None:
        for depth in range(_TRACKED_DEPTHS):
            self._by_depth[depth] = 0.0


def seconds_held_up(thread: int) -> float:
    """Return the seconds in which a thread was ready to run but had no processor; 0 if the system reports none."""
    try:
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return 0.0
    try:
        return int(os.read(file, 64).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
    finally:
        os.close(file)
