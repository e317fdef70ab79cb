"""The counters of a whole tree of processes, from outside: lean enough for one reading per second, for days."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from typing import Final

from pytest_leakcheck.probes.processes import descendants, open_high
from pytest_leakcheck.watch.allowance import Allowance
from pytest_leakcheck.watch.events import Came, Event, Note, Reading, Sample

# Of so many processes three files are kept open; of the others they are opened each time, at twice the cost.
MOST_KEPT: Final = 96
# In a larger tree threads and memory are read with one sample in so many: they are two thirds of the cost.
SMALL: Final = 16
EVERY: Final = 8
# Of one core, to find processes that are new: 2 ms for a tree of 66.
_SEARCH: Final = 0.00005
_CREDIT: Final = 0.02
# Where the number of the last process has not moved, nothing was started: 3 us in place of the search.
_LAST: Final = "/proc/loadavg"
_ROUND: Final = 1000


class WatchError(Exception):
    """What was to be watched cannot be; the message says why."""


class Followed:
    """One process that is read again and again.

    Its files are kept open, so that a pid that is given to another process is never taken for it.

    Attributes:
        hidden: Its descriptors may not be read.
        last: Its counters when they were last read.
    """

    def __init__(self, pid: int, *, keep: bool) -> None:
        """Raises `OSError` where it is gone."""
        self.pid = pid
        self.hidden = False
        self.last = Reading(-1, 0, 0)
        self._kept = keep
        self._fds = self._tasks = self._statm = -1
        if keep:
            self._open()

    def read(self, page: int, *, sized: bool) -> Reading:
        """Its counters.

        Args:
            page: Bytes of one.
            sized: The kernel tells the number of descriptors as the size of their directory.

        Raises:
            OSError: It is gone.
        """
        if not self._kept:
            self._open()
        try:
            fds = self._count(sized)
            _all, resident, shared, *_rest = os.pread(self._statm, 128, 0).split()
            if resident == b"0":
                # A zombie: it has let go of everything.
                raise ProcessLookupError(errno.ESRCH, "ended")
            threads = os.fstat(self._tasks).st_nlink - 2
            self.last = Reading(fds, threads, (int(resident) - int(shared)) * page)
            return self.last
        finally:
            if not self._kept:
                self.close()

    def descriptors(self, sized: bool) -> int:
        """How many it has, -1 where that is hidden. Raises `OSError` where it is gone, which may show only in `read`."""
        if self._kept:
            return self._count(sized)
        try:
            with contextlib.suppress(PermissionError):
                self._fds = open_high(f"/proc/{self.pid}/fd")
            return self._count(sized)
        finally:
            self.close()

    def _count(self, sized: bool) -> int:
        if self._fds < 0:
            return -1
        return os.fstat(self._fds).st_size if sized else len(os.listdir(self._fds))

    @property
    def held(self) -> int:
        """Descriptors that this takes."""
        return sum(descriptor >= 0 for descriptor in (self._fds, self._tasks, self._statm))

    def close(self) -> None:
        for descriptor in (self._fds, self._tasks, self._statm):
            if descriptor >= 0:
                os.close(descriptor)
        self._fds = self._tasks = self._statm = -1

    def _open(self) -> None:
        try:
            self._statm = open_high(f"/proc/{self.pid}/statm")
            self._tasks = open_high(f"/proc/{self.pid}/task")
            with contextlib.suppress(PermissionError):
                self._fds = open_high(f"/proc/{self.pid}/fd")
            self.hidden = self._fds < 0
        except OSError:
            self.close()
            raise


class Tree:
    """A process and all below it.

    A process that was seen once is followed until it ends, also where it leaves the tree by a double fork.
    """

    def __init__(self, root: int) -> None:
        """Raises `WatchError` where there is no such process, or no /proc."""
        if not sys.platform.startswith("linux"):
            raise WatchError("only processes on Linux can be watched: their counters are read from /proc")
        self.root = root
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._sized = os.stat("/proc/self/fd").st_size > 0
        self._loadavg = open_high(_LAST)
        self._last = b""
        self._samples = self._threads = self._rss = 0
        self._search = Allowance(_SEARCH, _CREDIT)
        self._followed: dict[int, Followed] = {}
        self._keep = min(MOST_KEPT, _spare() // 3)
        self._news: list[Event] = []
        try:
            self._follow(root)
        except OSError as error:
            os.close(self._loadavg)
            raise WatchError(f"there is no process {root} ({error.strerror})") from None
        self._search.do(self._find)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are followed, the root first."""
        return tuple(self._followed)

    def sample(self, step: int | None = None, *, whole: bool = False) -> Sample:
        """Read all of them now; those that have ended since are followed no more.

        Args:
            step: Of the training.
            whole: Read all counters of each; else that is done where the tree is small, or something new in it, or in turn.
        """
        whole = self._look_for_new() or whole or len(self._followed) <= SMALL or self._samples % EVERY == 0
        self._samples += 1
        fds, gone = self._read(whole=whole)
        processes = {pid: one.last for pid, one in self._followed.items()} if whole else {}
        if (own := processes.get(os.getpid())) is not None:
            # A training that watches itself: what the watch holds is not the training's.
            processes[os.getpid()] = own._replace(fds=own.fds - self._held)
        if whole or gone:
            readings = [one.last for one in self._followed.values()]
            self._threads, self._rss = sum(one.threads for one in readings), sum(one.rss for one in readings)
        if os.getpid() in self._followed:
            fds -= self._held
        totals = {"fd": fds, "thread": self._threads, "process": max(0, len(self._followed) - 1), "rss": self._rss}
        return Sample(round(time.time() * _ROUND) / _ROUND, step, totals, processes, gone, whole)

    def _read(self, *, whole: bool) -> tuple[int, tuple[int, ...]]:
        """The descriptors of all, and who has ended and is followed no more."""
        fds, gone = 0, []
        for pid, one in self._followed.items():
            try:
                count = one.read(self._page, sized=self._sized).fds if whole else one.descriptors(self._sized)
            except (OSError, ValueError):
                gone.append(pid)
            else:
                # Those that may not be read are -1.
                fds += max(0, count)
        for pid in gone:
            self._followed.pop(pid).close()
        return fds, tuple(gone)

    @property
    def ended(self) -> bool:
        """Whether the root is gone."""
        return self.root not in self._followed

    def events(self) -> Iterator[Event]:
        """Who came, and what may not be read, since the last call."""
        news, self._news = self._news, []
        yield from news

    @property
    def _held(self) -> int:
        return 1 + sum(one.held for one in self._followed.values())

    def close(self) -> None:
        for one in self._followed.values():
            one.close()
        self._followed.clear()
        os.close(self._loadavg)

    def _look_for_new(self) -> bool:
        """Whether there is any of which nothing is known yet."""
        last = os.pread(self._loadavg, 128, 0).split()[-1]
        if last != self._last and self._search.due:
            self._last = last
            self._search.do(self._find)
        return bool(self._news)

    def _find(self) -> None:
        names = {}
        found = list(descendants(self.root))
        # Below those that have left the tree, too.
        for pid in self._followed.keys() - {self.root, *found}:
            found += descendants(pid)
        for pid in found:
            if pid in self._followed:
                continue
            with contextlib.suppress(OSError):
                self._follow(pid)
                names[pid] = name_of(pid)
        if names:
            self._news.append(Came(time.time(), names))

    def _follow(self, pid: int) -> None:
        if pid == os.getpid() and pid != self.root:
            return
        one = Followed(pid, keep=len(self._followed) < self._keep)
        self._followed[pid] = one
        if one.hidden:
            text = f"process {pid} ({name_of(pid)}): its descriptors may not be read, its memory is"
            self._news.append(Note(time.time(), text))


def name_of(pid: int) -> str:
    """What a process calls itself, up to 15 letters; a DataLoader of torch names its workers."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "gone"


def command_of(pid: int) -> str:
    """Its command line, shortened; the name where that may not be read."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(200).split(b"\0")
    except OSError:
        return name_of(pid)
    return " ".join(word.decode(errors="replace") for word in words if word) or name_of(pid)


def _spare() -> int:
    """How many descriptors this process may use for that: a half of what it may have."""
    import resource

    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_KEPT * 3 if soft == resource.RLIM_INFINITY else soft // 2
