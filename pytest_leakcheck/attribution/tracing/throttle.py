"""How much a traced iteration may cost, and what is no longer looked at when it costs more."""

from __future__ import annotations

import os
from array import array
from threading import get_native_id
from time import perf_counter
from typing import Final

UNLIMITED: Final = 1 << 30
# Deeper than any frame is shallow: nothing is reported.
STOPPED: Final = -UNLIMITED
# An iteration of microseconds may be slowed a thousandfold, and nobody minds.
_LEAST: Final = 0.001
# In plain iterations: what events may cost until a depth is chosen and until a smaller one is, and how long an
# iteration may take in all until nothing more is looked at in it. To be called and to look at nothing costs too.
_AT_FIRST: Final = 4.0
_AFTERWARDS: Final = 1.0
_ELAPSED: Final = 6.0
# What events may cost at a chosen depth, in plain iterations; and at most this part of what all of them do.
_AT_DEPTH: Final = 2.5
_MOST: Final = 0.7
# By so many seconds more an iteration may be held up by other processes, which is no cost of tracing it.
_HELD_UP: Final = 0.5
# What an event costs before and after it is timed, on a machine of 2020.
_UNSEEN: Final = 0.5e-6
_DEPTHS: Final = 128
# A backend asks whether it is late after so many events that it left out.
SKIPPED: Final = 1000


class Throttle:
    """Adds up what the events of an iteration cost, and lowers the depth down to which they are reported.

    The plain duration says what the traced one may be. Only a slow iteration is worth this care, so anything below a
    millisecond counts as one. Time for which the thread could have run and had no processor is not charged.

    Attributes:
        limit: Events of frames deeper than this, counted from the iteration's outer frame, are not reported.
        coarse: Whether anything was left out so far.
        cut: Whether the rest of this iteration is not looked at.
        turn: Counts events, so that one can be told from the next.
    """

    def __init__(self, plain_seconds: float, longest: float = 0.0) -> None:
        """
        Args:
            plain_seconds: What an iteration takes that is not traced.
            longest: Seconds after which nothing more is looked at in one; 0 is some times what a plain one takes.
        """
        self.limit = self._depth = UNLIMITED
        self.coarse = self.cut = False
        self.turn = 0
        self._plain = max(plain_seconds, _LEAST)
        self._longest = longest or _ELAPSED * self._plain
        # Numbers in place: a float kept per depth would be a block that the tracer leaks.
        self._by_depth = array("d", bytes(8 * _DEPTHS))
        self.begin()

    def begin(self) -> None:
        """Before an iteration: the depth stays as low as it was found to have to be."""
        self.limit = self._depth
        self.cut = False
        self._forget()
        self._spent = 0.0
        self._allowed = _AT_FIRST * self._plain
        self._began = perf_counter()
        self._stop_at = self._began + self._longest
        self._thread = get_native_id()
        self._held_up = seconds_held_up(self._thread)
        self._taken_off = 0.0

    def spend(self, depth: int, began: float | None) -> bool:
        """Charge an event that was begun then, if that is known. Returns whether less is looked at from now on."""
        now = perf_counter()
        if began is not None:
            took = now - began + _UNSEEN
            self._by_depth[min(max(depth, 0), _DEPTHS - 1)] += took
            self._spent += took
        if now > self._stop_at and self.is_late():
            return True
        if self._spent <= self._allowed or self._was_held_up(depth):
            return False
        self._allowed = self._spent + _AFTERWARDS * self._plain
        if self.limit > self._shallowest():
            self._lower()
            self.limit = self._depth
        else:
            self.stop()
            self.cut = True
        self.coarse = True
        return True

    def is_late(self) -> bool:
        """Whether this iteration has taken so long that nothing more is looked at in it."""
        late = perf_counter() - self._stop_at
        if late <= 0 or late <= min(seconds_held_up(self._thread) - self._held_up, _HELD_UP):
            return False
        if self.limit > self._shallowest() and self._spent > _AFTERWARDS * self._plain:
            # The next one is to get further.
            self._lower()
        self.stop()
        self.coarse = self.cut = True
        return True

    def _was_held_up(self, depth: int) -> bool:
        """Whether what seems to be spent too much is time in which other processes had the processor; it is taken off."""
        held_up = seconds_held_up(self._thread) - self._held_up
        at = min(max(depth, 0), _DEPTHS - 1)
        others = max(0.0, min(held_up - self._taken_off, self._by_depth[at] - _UNSEEN))
        self._taken_off += others
        self._by_depth[at] -= others
        self._spent -= others
        return self._spent <= self._allowed

    def stop(self) -> None:
        """Report nothing more in this iteration."""
        self.limit = STOPPED

    def _lower(self) -> None:
        """Choose a smaller depth by what each depth has cost since the last was chosen."""
        # What of the elapsed time was not spent here went into the program, which tells how far it has come.
        elapsed = perf_counter() - self._began
        progress = min(max((elapsed - self._spent) / self._plain, 0.01), 1.0)
        share = min(_AT_DEPTH * self._plain * progress / self._spent, _MOST)
        wanted = share * sum(self._by_depth)
        below = 0.0
        depth = 0
        # A frame that lies just too deep is still reported as one call.
        while depth + 1 < min(self._depth, _DEPTHS):
            below += self._by_depth[depth + 1] + (self._by_depth[0] if depth == 0 else 0.0)
            if below > wanted:
                break
            depth += 1
        self._depth = max(depth - 1, self._shallowest())
        self._forget()

    def _shallowest(self) -> int:
        """The least depth that anything was reported of: below it are frames that are of no interest at all."""
        return next((depth for depth in range(_DEPTHS) if self._by_depth[depth]), 0)

    def _forget(self) -> None:
        for depth in range(_DEPTHS):
            self._by_depth[depth] = 0.0


def seconds_held_up(thread: int) -> float:
    """For how long a thread has been ready to run while others had the processor; 0 where the system does not tell."""
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
