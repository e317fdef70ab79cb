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
    """Who created the entries of one folder.

    Attributes:
        own: Entries that Python created in this process, including removed ones.
        native: Entries created in this process tree outside Python.
        by_earlier_thread: Entries of threads that ran before the test.
        makers: The kernel's reports of who creates entries (fanotify); None where it does not give any.
        children: The processes below this one, as far as they are known.
    """

    # Dicts in place of sets: up to Python 3.13 the garbage collector does not track a dict of strings and ints.
    def __init__(self, path: str) -> None:
        self._path = path
        self.own: dict[str, None] = {}
        self.native: dict[str, None] = {}
        self.by_earlier_thread: dict[str, None] = {}
        self._made: MadeHere | None = None
        self.makers: Makers | None = None
        self.children = Children()
        # The creators of entries that are not listed yet.
        self._pending: dict[str, int] = {}

    def follow(self) -> None:
        """Start recording which entries this process creates.

        Entries of other processes are recorded too, where the kernel allows it.
        """
        self._made = MadeHere()
        self._made.start(map(int, thread_ids()))
        with contextlib.suppress(OSError):
            self.makers = Makers(self._path)

    def close(self) -> None:
        """Stop recording creators."""
        if self._made is not None:
            self._made.stop()
            self._made = None

    def restart(self) -> None:
        """Forget all entries."""
        self.own.clear()
        self.native.clear()
        self.by_earlier_thread.clear()
        self._pending.clear()
        self.children = Children()

    def take_makers(self, new: Collection[str]) -> dict[str, int]:
        """Return the creator of each new entry by name, as far as the kernel has reported it."""
        if self.makers is None:
            return {}
        made = self._pending | self.makers.take()
        # The kernel's report follows the entry, so ask again if one is missing.
        return made if all(name in made for name in new) else made | self.makers.take()

    def attribute(self, name: str, makers: Mapping[str, int]) -> Origin:
        """Return the origin of a new entry.

        Args:
            name: The entry.
            makers: The result of `take_makers`.
        """
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
        """Take note that the folder was listed.

        Args:
            now: All its entries.
            makers: The result of `take_makers`; those of entries that are not listed yet are kept.
        """
        if self._made is not None:
            self._made.listed()
        self._pending = {name: process for name, process in makers.items() if name not in now}

    def _is_by_other_process(self, name: str, makers: Mapping[str, int]) -> bool:
        """Return whether a process outside this process tree certainly created the entry.

        An entry that this process tree created is recorded in `native`.
        """
        if name not in makers:
            return False
        if is_stranger(makers[name], self.children):
            return True
        if is_here(makers[name]):
            self.native[name] = None
        return False

    def _belongs_to_other_user(self, name: str) -> bool:
        """Return whether the entry belongs to another user."""
        if not hasattr(os, "geteuid"):
            return False
        try:
            return os.lstat(f"{self._path}/{name}").st_uid != os.geteuid()
        except OSError:
            # The entry is gone; the next listing shows it.
            return False
