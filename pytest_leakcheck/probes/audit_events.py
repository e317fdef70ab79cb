"""Which entries of folders this process has made, as the interpreter's audit events report it.

CPython raises an event before it makes an entry by `open`, `os.mkdir`, `os.rename`, `os.link`, `os.symlink`, by binding a
socket, by ``sqlite3.connect``, and before `os.truncate`, which gives a new segment of shared memory its size. It raises none
for `os.mkfifo`, for semaphores and in C code, so only a yes is certain.

A hook can never be removed. There is one per process, and while nobody watches it returns at once.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

_SLOTS: Final = 1 << 16
_EMPTY: Final = bytes(_SLOTS)
# Made by the test or by a thread that has started since; made by a thread that was there before.
_NEW: Final = 1
_EARLIER: Final = 2
# By event: which of its arguments names what is made.
_NAMED: Final = {
    "open": 0,
    "os.mkdir": 0,
    "os.rename": 1,
    "os.link": 1,
    "os.symlink": 1,
    "os.truncate": 0,
    "socket.bind": 1,
    "sqlite3.connect": 0,
}


class MadeHere:
    """Remembers names that this process makes entries of, between two listings of a folder.

    The memory is preallocated, two bits of a Bloom filter for each name: nothing grows while a test is measured. It is shared
    with children that are forked, so what they make is known too. Of paths only the last part is looked at, so it does not
    matter how the folder is reached. A stranger's name is taken for one made here with a probability of (k / 65,536)^2, k
    names having been made since the listing before the last.
    """

    def __init__(self) -> None:
        # Two generations: the event comes before the entry, and a listing may come in between.
        self._marks = mmap.mmap(-1, 2 * _SLOTS)
        self._at = 0
        self._earlier: frozenset[int] = frozenset()

    def start(self, earlier: Iterable[int]) -> None:
        """Forget all names, and watch.

        Args:
            earlier: Threads that were there before the test, by the kernel's number; the calling one is the test's.
        """
        self._earlier = frozenset(earlier) - {threading.get_native_id()}
        self.listed()
        self.listed()
        if self not in _watching:
            _watching.append(self)
        _install()

    def stop(self) -> None:
        """Watch no longer."""
        if self in _watching:
            _watching.remove(self)
        self._marks.close()

    def note(self, name: str) -> None:
        """An entry of this name is about to be made."""
        bit = _EARLIER if threading.get_native_id() in self._earlier else _NEW
        one = hash(name)
        self._marks[self._at + one % _SLOTS] |= bit
        self._marks[self._at + (one >> 32) % _SLOTS] |= bit

    def __contains__(self, name: str) -> bool:
        """Whether the test, or a thread that has started since, made this since the listing before the last."""
        return bool(self._made_by(name) & _NEW)

    def by_earlier_thread(self, name: str) -> bool:
        """Whether a thread that was there before the test made this since the listing before the last."""
        return bool(self._made_by(name) & _EARLIER)

    def _made_by(self, name: str) -> int:
        one, marks = hash(name), self._marks
        now, before = (marks[at + one % _SLOTS] & marks[at + (one >> 32) % _SLOTS] for at in (0, _SLOTS))
        return now | before

    def listed(self) -> None:
        """The folder has been listed."""
        self._at ^= _SLOTS
        self._marks[self._at : self._at + _SLOTS] = _EMPTY


_watching: Final[list[MadeHere]] = []
_hooks: Final[list[Callable[[str, tuple[Any, ...]], None]]] = []


def _install() -> None:
    # Where there are no hooks, or another hook refuses this one, nothing is known to be made here.
    if not _hooks and hasattr(sys, "addaudithook"):
        _hooks.append(_make_hook())
        sys.addaudithook(_hooks[0])


def _make_hook() -> Callable[[str, tuple[Any, ...]], None]:
    # What it needs at each event is bound here: the interpreter raises events until it has emptied its modules.
    watching, named, create = _watching, _NAMED, os.O_CREAT

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not watching:
            return
        at = named.get(event)
        if at is None:
            return
        try:
            if event == "open" and not args[2] & create:
                return
            path = args[at]
            if isinstance(path, int):
                path = os.readlink(f"/proc/self/fd/{path}") if event == "os.truncate" else ""
            if name := os.path.basename(os.fsdecode(path).rstrip("/")):
                for one in watching:
                    one.note(name)
        except Exception:  # noqa: BLE001, S110  # an exception here would fail what the program is about to do
            pass

    return hook
