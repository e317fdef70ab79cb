"""The cyclic collector, as the user has it: frozen at the start, watched, never switched.

`gc.freeze()` moves what exists out of the collector's sight, so a full collection per iteration costs microseconds and
``gc.get_objects()`` is what is new. Through ``gc.callbacks`` the scarce counters are read at the start and stop of each
collection, automatic ones too, and what fell in between was given back by the collector alone.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from pytest_leakcheck.probes.own_descriptors import room_for_descriptors

# A finalizer may drop the last reference to another cycle; three rounds end all but chains made to last.
ROUNDS: Final = 3
# Python 3.12 starts with a few hundred objects frozen; more than that is the program's doing.
FROZEN_BY_PYTHON: Final = gc.get_freeze_count()


_DELETED: Final = " (deleted)"


class BusyError(RuntimeError):
    """Two measurements at once in one process would each see the other's doing."""


class CollectorWatch:
    """Freezes, collects, and sums what automatic collections release. One at a time in a process.

    Attributes:
        has_released: Whether automatic collections gave anything back since `take_released` was last called.
        released_names: What the released descriptors pointed to, where that was asked for.
    """

    _under_way = False

    def __init__(self, read: Callable[[], tuple[int, int]], read_device: Callable[[], int] | None = None) -> None:
        """
        Args:
            read: Descriptors and threads of this process, now.
            read_device: Bytes on accelerators; None where there are none.
        """
        self._read = read
        self._read_device = read_device
        # Preallocated: a Python int kept per reading would be an object that the harness leaks.
        self._before = array("q", (0, 0, 0))
        self._released = array("q", (0, 0, 0))
        self._names_before: dict[int, str] | None = None
        self._ours = False
        self._callback = self._on_collection
        self._had_frozen = False
        self.has_released = False
        self.released_names: Counter[str] = Counter()

    @property
    def enabled(self) -> bool:
        """Whether the program's collector is on; where it is off, garbage is retained and is not collected here."""
        return gc.isenabled()

    def open(self) -> None:
        """Collect what is garbage now, freeze the rest, and begin to watch.

        Raises:
            BusyError: Another watch is open in this process.
        """
        if CollectorWatch._under_way:
            raise BusyError(
                "a measurement is under way in this process already: do not nest leakcheck.steps(), leakcheck.budget() "
                "and measure(), and do not run them in two threads"
            )
        CollectorWatch._under_way = True
        self._had_frozen = gc.get_freeze_count() > FROZEN_BY_PYTHON
        # Once, and not in rounds: each walks all objects, 10 to 20 ms for 30,000, and what a finalizer lets go of meanwhile is
        # only frozen with the rest.
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._callback)

    def close(self) -> None:
        """Stop watching and give the frozen objects back to the collector."""
        CollectorWatch._under_way = False
        # The program may have emptied the list under us.
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._callback)
        gc.unfreeze()
        if self._had_frozen:
            # The program had frozen its own: they must not end up in the collector's sight.
            gc.collect()
            gc.freeze()

    def collect(self) -> int:
        """Collect as long as something is found, at most `ROUNDS` times. Returns how many objects were.

        What these collections release is the caller's to count, from a reading before and one after.
        """
        callbacks = gc.callbacks
        # To be called at the start and stop of our own collections costs a microsecond, for nothing.
        silent = self._names_before is None and bool(callbacks) and callbacks[-1] is self._callback
        if silent:
            callbacks.pop()
        self._ours = True
        found = collected = gc.collect()
        for _ in range(ROUNDS - 1):
            if not collected:
                break
            collected = gc.collect()
            found += collected
        self._ours = False
        if silent:
            callbacks.append(self._callback)
        return found

    def thaw(self) -> int:
        """Unfreeze and collect: what was alive when it was frozen and is garbage now is out of reach till then.

        Returns:
            How many objects were garbage.
        """
        gc.unfreeze()
        return self.collect()

    def refreeze(self) -> None:
        """Freeze again after `thaw`."""
        gc.freeze()

    def take_released(self) -> tuple[int, int, int, int]:
        """Descriptors, threads, processes and bytes on devices that automatic collections gave back since the last call.

        Processes are not followed there (walking the tree would cost too much in a collection) and are always 0.
        """
        fds, threads, on_device = self._released
        self._released[0] = self._released[1] = self._released[2] = 0
        self.has_released = False
        return fds, threads, 0, on_device

    def name_released(self, wanted: bool) -> None:
        """From now on also note what the released descriptors pointed to; costs a readlink per descriptor."""
        self._names_before = {} if wanted else None

    def _on_collection(self, phase: str, _info: dict[str, Any]) -> None:
        if self._names_before is not None:
            self._note_names(phase)
        if self._ours:
            return
        fds, threads = self._read()
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


def open_targets(process: str = "self") -> dict[int, str]:
    """What each open descriptor of a process points to (empty where there is no /proc, or it may not be looked at).

    The name is the one that it was opened under: the kernel adds " (deleted)" once the file is removed, which is dropped.
    """
    targets: dict[int, str] = {}
    try:
        names = os.listdir(f"/proc/{process}/fd")
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return targets
        # To list them takes one, and they have run out.
        with room_for_descriptors():
            names = os.listdir(f"/proc/{process}/fd")
    for name in names:
        try:
            targets[int(name)] = os.readlink(f"/proc/{process}/fd/{name}").removesuffix(_DELETED)
        except OSError:
            continue
    return targets
