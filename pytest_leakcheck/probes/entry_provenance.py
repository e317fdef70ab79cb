"""Find the origin of each entry of a shared folder: this process tree, somewhere else, or unknown."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from pytest_leakcheck.probes.audit_events import MadeHere
from pytest_leakcheck.probes.fanotify import Children, Makers, is_here, is_stranger
from pytest_leakcheck.probes.processes import thread_ids

Origin: TypeAlias = Literal["here", "elsewhere", "unknown"]


class Provenance:
    """A record of who created the entries of one folder.

    `own`: by Python in this process or a forked child, including removed ones, except by earlier threads; `Folder` adds
    those in use by this process tree. `native`: by this process tree outside Python. `by_earlier_thread`: by threads
    from before the test. `makers`: the kernel's reports (fanotify); None where there are none.
    """

    # Dicts in place of sets, because the plugin counts the objects that the garbage collector tracks. Up to Python
    # 3.13, these do not include a dict of strings and ints.
    def __init__(self, path: str) -> None:
        self._path = path
        self.own: dict[str, None] = {}
        self.native: dict[str, None] = {}
        self.by_earlier_thread: dict[str, None] = {}
        self._made: MadeHere | None = None
        self.makers: Makers | None = None
        self.children = Children()
        # The process ids of the creators of entries that are not listed yet, by name.
        self._pending: dict[str, int] = {}

    def follow(self) -> None:
        """Start recording which entries this process creates and, where the kernel allows it, other processes."""
        self._made = MadeHere()
        self._made.start(map(int, thread_ids()))
        with contextlib.suppress(OSError):
            self.makers = Makers(self._path)

    def close(self) -> None:
        if self._made is not None:
            self._made.stop()
            self._made = None

    def restart(self) -> None:
        self.own.clear()
        self.native.clear()
        self.by_earlier_thread.clear()
        self._pending.clear()
        self.children = Children()

    def take_makers(self, new: Collection[str]) -> dict[str, int]:
        """Return the process id of each new entry's creator, by entry name, where the kernel has reported it."""
        if self.makers is None:
            return {}
        made = self._pending | self.makers.take()
        # The kernel reports an entry only after it exists, so ask again if the report of an entry is missing.
        return made if all(name in made for name in new) else made | self.makers.take()

    def attribute(self, name: str, makers: Mapping[str, int]) -> Origin:
        """Return the origin of a new entry; ``makers`` is the result of `take_makers`."""
        self.native.pop(name, None)
        if self._made is not None and self._made.by_earlier_thread(name):
            self.by_earlier_thread[name] = None
        if self._made is not None and name in self._made:
            self.own[name] = None
            return "here"
        return (
            "elsewhere" if self._belongs_to_other_user(name) or self._is_by_other_process(name, makers) else "unknown"
        )

    def listed(self, now: Collection[str], makers: Mapping[str, int]) -> None:
        """Prepare for the next listing of the folder; keep creators of entries that this one (``now``) lacks."""
        if self._made is not None:
            self._made.listed()
        self._pending = {name: process for name, process in makers.items() if name not in now}

    def _is_by_other_process(self, name: str, makers: Mapping[str, int]) -> bool:
        """Return whether a process outside this tree certainly created it; record this tree's entries in `native`."""
        if name not in makers:
            return False
        if is_stranger(makers[name], self.children):
            return True
        if is_here(makers[name]):
            self.native[name] = None
        return False

    def _belongs_to_other_user(self, name: str) -> bool:
        if not hasattr(os, "geteuid"):
            return False
        try:
            return os.lstat(f"{self._path}/{name}").st_uid != os.geteuid()
        except OSError:
            # The entry is gone, as the next listing will show.
            return False
