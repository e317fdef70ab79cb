"""Limit the cost of a traced iteration. If events cost too much, those of the deepest frames are left out."""

from __future__ import annotations

from array import array
from typing import Final

from pytest_leakcheck.probes.clock import monotonic, process_time

# Values of `Throttle.limit`: all events are reported, or none.
UNLIMITED: Final = 1 << 30
STOPPED: Final = -UNLIMITED
# What the events may cost, and how long they are reported, as multiples of the duration of an untraced iteration.
_MAX_COST: Final = 3.0
_MAX_DURATION: Final = 6.0
# Seconds. A shorter iteration gets the budget of one that takes this long.
_MIN_PLAIN_SECONDS: Final = 0.001
# Seconds for which other processes may have the processor meanwhile.
_MAX_HELD_UP_SECONDS: Final = 0.1
# When more than this many events have been left out, the throttle checks whether the iteration is late.
_SKIPPED: Final = 1000
# Number of depths whose costs are summed separately; deeper frames count at the last of them.
_TRACKED_DEPTHS: Final = 128


class Throttle:
    """Budget of traced iterations. When it is used up, the frames are left out that took the deeper half of the cost.

    Events of frames deeper than `limit` are not reported. `coarse`: some event was left out so far. `cut`: the rest of
    this iteration is not traced. `turn` counts events: if it changes while one is handled, another thread ran.
    """

    def __init__(self, plain_seconds: float, longest: float = 0.0) -> None:
        """Create a throttle without a depth limit; it reports for `longest` seconds (0: six plain iterations)."""
        self.limit = self._depth = UNLIMITED
        self.coarse = self.cut = False
        self.turn = 0
        plain = max(plain_seconds, _MIN_PLAIN_SECONDS)
        self._budget = _MAX_COST * plain
        self._longest = longest or _MAX_DURATION * plain
        self._skipped = 0
        # Cost in seconds by depth. An array: a Python float per depth would be a memory block that the tracer leaks.
        self._by_depth = array("d", bytes(8 * _TRACKED_DEPTHS))
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, with the depth limit that earlier iterations required."""
        self.limit, self.cut = self._depth, False
        self._stop_at, self._cpu_stop_at = monotonic() + self._longest, process_time() + self._longest
        self._begin_budget()

    def _begin_budget(self) -> None:
        for depth in range(_TRACKED_DEPTHS):
            self._by_depth[depth] = 0.0
        self._spent, self._cpu_before = 0.0, process_time()

    def spend(self, depth: int, began: float | None) -> None:
        """Charge an event's cost, 0 if `began` is None (unknown); if it is the last that is allowed, lower the limit."""
        now = monotonic()
        if began is not None:
            cost = now - began
            self._by_depth[min(max(depth, 0), _TRACKED_DEPTHS - 1)] += cost
            self._spent += cost
        late = self._is_late(now)
        # An event that waits for a processor does not use it.
        expensive = self._spent > self._budget and process_time() - self._cpu_before > self._budget
        if late or expensive:
            if not self._lower_depth() or late:
                self._cut_off()
            self._begin_budget()
            self.coarse = True

    def skip(self) -> None:
        """Take note of an event that is too deep to be reported; many of these make an iteration late as well."""
        self._skipped += 1
        if self._skipped > _SKIPPED:
            self._skipped = 0
            if self._is_late(monotonic()):
                self._cut_off()

    def _is_late(self, now: float) -> bool:
        """Return whether this iteration has taken too long, without time in which other processes ran."""
        held_up = now - self._stop_at
        return held_up > 0 and (held_up > _MAX_HELD_UP_SECONDS or process_time() > self._cpu_stop_at)

    def _cut_off(self) -> None:
        self.cut = True
        self.stop()

    def stop(self) -> None:
        """Report nothing more in this iteration."""
        self.limit = STOPPED

    def _lower_depth(self) -> bool:
        """Leave out the frames that took the deeper half of the cost; return False if that would leave out all."""
        depths = [depth for depth in range(_TRACKED_DEPTHS) if self._by_depth[depth]]
        spent, last = 0.0, 0
        for depth in depths:
            spent += self._by_depth[depth]
            if spent > self._spent / 2:
                break
            last = depth
        # A frame just below the limit is still reported, as a C call.
        lower = max(last - 1, min(depths, default=0))
        if lower >= min(self._depth, max(depths, default=0)):
            return False
        self.limit = self._depth = lower
        return True
