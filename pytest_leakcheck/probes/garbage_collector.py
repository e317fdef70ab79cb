"""Freeze existing objects and watch the garbage collector, but never switch it on or off.

`gc.freeze()` hides the existing objects from the collector, so a full collection per iteration
costs microseconds and ``gc.get_objects()`` returns only new objects. A callback reads the counters
of descriptors, threads and device memory at the start and stop of each automatic collection (not
run by this module): what they fall by was released.
"""

from __future__ import annotations

import contextlib
import gc
import os
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.runtime_counters import list_tasks

# The most collections in a row. One is not always enough, because a finalizer may drop the last
# reference to another cycle. Three are enough for all but deliberately long chains.
ROUNDS: Final = 3
# Python 3.12 starts with a few hundred frozen objects.
_FROZEN_BY_PYTHON: Final = gc.get_freeze_count()
# The function itself: a test may replace that of the module.
_collect: Final = gc.collect
_DELETED_SUFFIX: Final = " (deleted)"
# All objects are walked for garbage once this many times the duration of the last walk has passed.
# Such walks then take at most a fiftieth of the time of a session, however many objects it has.
_WALK_SHARE: Final = 50
# Before `gc.collect` in a test, threads that the program has told to end get this long for that, in
# seconds: what ends by itself must not count as released by the collector.
_END_PAUSES: Final = (0.0001, 0.0002, 0.0004, 0.0008, 0.0016)
_OLDEST_GENERATION: Final = 2


class BusyError(LeakcheckError, RuntimeError):
    """The error that a second measurement starts in a process: the two would affect each other."""


class CollectorWatch:
    """A watch that freezes objects, and sums what automatic collections release.

    Only one can be open in a process. `has_released` refers to the time since the last
    `take_released`. `owes_walk`: garbage among old objects was frozen, and not collected since.
    `released_names` are the targets of released descriptors, while `name_released` is on.
    """

    _is_open = False
    # When the next walk over all objects is due, in seconds of `clock.monotonic`.
    _next_walk = 0.0

    def __init__(
        self, read: Callable[[], tuple[int, int]], read_device: Callable[[], int] | None = None
    ) -> None:
        """Store how to read descriptors and threads of this process, and bytes on accelerators.

        `read_device` is None if there is no device.
        """
        self._read = read
        self._read_device = read_device
        # Descriptors, threads, bytes on devices. The arrays are preallocated, because a Python int
        # stored at each reading would be an object that the plugin retains.
        self._before = array("q", (0, 0, 0))
        self._released = array("q", (0, 0, 0))
        # How many threads the last row had.
        self._threads = array("q", (0,))
        self._names_before: dict[int, str] | None = None
        self._collecting = False
        self._callback = self._on_collection
        self._had_frozen = False
        # A list that exists since the harness froze all others, so `gc.get_objects` shows it unless
        # the program has called `gc.freeze` in the meantime.
        self._marker: list[object] = []
        # One that is frozen, and shows there only if the program has called `gc.unfreeze`.
        self._old_marker: list[object] = []
        self._was_frozen = self._was_unfrozen = self._thawed = False
        self.has_released = self.owes_walk = False
        self.released_names: Counter[str] = Counter()

    @property
    def enabled(self) -> bool:
        """Whether the program's collector is on.

        If not, garbage counts as retained, because the plugin collects none.
        """
        return gc.isenabled()

    def open(self, *, walk_now: bool = True) -> None:
        """Collect garbage, freeze all other objects, and start watching.

        Raise `BusyError` if another watch is open. A walk over 30,000 objects takes 10 to 20 ms,
        and more with each test of a session. Without it (`walk_now` is False, and none is due),
        garbage among old objects is frozen too, and stays until the watch is closed or thawed.
        """
        if CollectorWatch._is_open:
            raise BusyError(
                "a measurement is already running in this process: do not nest leakcheck.steps(), leakcheck.budget() "
                "and measure(), and do not run them in two threads"
            )
        CollectorWatch._is_open = True
        self._had_frozen = has_frozen()
        self.owes_walk = not walk_now and clock.monotonic() < CollectorWatch._next_walk
        # One round only. Garbage that a finalizer leaves during the round is frozen with the rest.
        if self.owes_walk:
            _collect(1)
        else:
            began = clock.monotonic()
            _collect()
            ended = clock.monotonic()
            CollectorWatch._next_walk = ended + _WALK_SHARE * (ended - began)
        self.refreeze()
        gc.callbacks.append(self._callback)

    def close(self) -> None:
        CollectorWatch._is_open = False
        # The program may have emptied ``gc.callbacks`` during the measurement.
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._callback)
        # A bound method of this object: together they would be garbage.
        del self._callback
        gc.unfreeze()
        if self._had_frozen:
            # The program had frozen objects before `open`, so freeze again to keep them hidden from
            # the collector.
            _collect()
            gc.freeze()

    def collect(self) -> int:
        """Collect until no garbage is found, at most `ROUNDS` times; return the number found."""
        callbacks = gc.callbacks
        # Remove the callback: during these collections it would cost a microsecond and record
        # nothing.
        silent = self._names_before is None and bool(callbacks) and callbacks[-1] is self._callback
        if silent:
            callbacks.pop()
        self._collecting = True
        found = collected = _collect()
        for _ in range(ROUNDS - 1):
            if not collected:
                break
            collected = _collect()
            found += collected
        self._collecting = False
        if silent:
            callbacks.append(self._callback)
        return found

    def collect_young(self) -> int:
        """Collect generations 0 and 1; return the number of garbage objects.

        Earlier survivors are not walked.
        """
        self._collecting = True
        found = _collect(1)
        self._collecting = False
        return found

    def thaw(self) -> int:
        """Unfreeze all objects and collect; return the number of garbage objects.

        Garbage that was alive when it was frozen is collected too.
        """
        self._was_frozen, self._was_unfrozen = self.hides_objects(), self.shows_old_objects()
        self._thawed = True
        self.owes_walk = False
        # While new ones can still be told from the program's other ones, which are listed next.
        list_tasks()
        gc.unfreeze()
        return self.collect()

    def refreeze(self) -> None:
        self._old_marker = []
        gc.freeze()
        self._marker, self._thawed = [], False

    # These two walk all objects that are not frozen. The number of frozen ones would take a walk
    # over all others, which are more with each test of a session.

    def hides_objects(self) -> bool:
        """Return whether the program has called `gc.freeze` since `open`, hiding new objects."""
        return self._was_frozen or not any(one is self._marker for one in gc.get_objects())

    def shows_old_objects(self) -> bool:
        """Return whether the program's `gc.unfreeze` lets objects from before `open` count too."""
        return self._was_unfrozen or (
            not self._thawed and any(one is self._old_marker for one in gc.get_objects())
        )

    def take_released(self) -> tuple[int, int, int]:
        """Return what was released since the last call: descriptors, threads, device bytes."""
        fds, threads, on_device = self._released
        self._released[0] = self._released[1] = self._released[2] = 0
        self.has_released = False
        return fds, threads, on_device

    def note_threads(self, count: int) -> None:
        """Store how many threads this process has between iterations."""
        self._threads[0] = count

    def name_released(self, wanted: bool) -> None:
        """Start or stop naming released descriptors.

        Naming costs two readlinks per open descriptor and collection.
        """
        self._names_before = {} if wanted else None

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if self._names_before is not None:
            self._note_names(phase)
        if self._collecting:
            return
        fds, threads = self._read()
        if phase == "start" and threads > self._threads[0] and _is_explicit(info["generation"]):
            for pause in _END_PAUSES:
                clock.sleep(pause)
                fds, threads = self._read()
                if threads <= self._threads[0]:
                    break
        on_device = self._read_device() if self._read_device is not None else 0
        before, released = self._before, self._released
        if phase == "start":
            before[0], before[1], before[2] = fds, threads, on_device
            return
        released[0] += max(0, before[0] - fds)
        released[1] += max(0, before[1] - threads)
        released[2] += max(0, before[2] - on_device)
        self.has_released = bool(released[0] or released[1] or released[2])

    def _note_names(self, phase: str) -> None:
        assert self._names_before is not None
        targets = open_targets()
        if phase == "stop":
            gone = (name for fd, name in self._names_before.items() if targets.get(fd) != name)
            self.released_names.update(gone)
        self._names_before = targets


def _is_explicit(generation: int) -> bool:
    """Return whether a collection that begins is by `gc.collect`: it was not due."""
    return (
        generation == _OLDEST_GENERATION
        and gc.get_count()[_OLDEST_GENERATION] <= gc.get_threshold()[_OLDEST_GENERATION]
    )


def collect_while(goes_on: Callable[[], bool]) -> None:
    """Collect garbage while there is any and a condition holds, at most `ROUNDS` times."""
    for _ in range(ROUNDS):
        if not _collect() or not goes_on():
            break


def has_frozen() -> bool:
    """Return whether objects that the program or the harness has frozen still are.

    This walks all of them.
    """
    return gc.get_freeze_count() > _FROZEN_BY_PYTHON


def open_targets(
    process: str = "self", known: Mapping[int, str] = MappingProxyType({})
) -> dict[int, str]:
    """Return what each descriptor of a process points to, without " (deleted)".

    Those of this process that are `known` are not read again. The result is empty if the process
    may not be inspected.
    """
    targets: dict[int, str] = {}
    # Listing the folder needs a descriptor, and the test may have left none.
    with contextlib.suppress(OSError), room_for_descriptors():
        for name in os.listdir(f"/proc/{process}/fd"):
            number = int(name)
            with contextlib.suppress(OSError):
                if number in known:
                    # The folder that is listed may have the number of a file that was closed; now
                    # it has none.
                    os.fstat(number)
                    targets[number] = known[number]
                else:
                    targets[number] = os.readlink(f"/proc/{process}/fd/{name}").removesuffix(
                        _DELETED_SUFFIX
                    )
    return targets
