"""Count entries in shared folders: shared memory and temporary files.

In a temporary folder that only the measured process uses (`PRIVATE_FOLDER`), every new entry
counts, at all levels. What Python creates elsewhere is known from audit events, and counts if a
budget names the resource. A folder that other processes use too does not record who created an
entry, and is not searched below its top level:

- An entry that Python in this process or in a child has created (`audit_events`), or that this
  process tree uses, counts.
- One of another user, or in use by another process, does not count.
- One of unknown origin counts until it raises a suspicion. Then it is set aside, and the verdict is
  not ``ok``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator

# The functions themselves: a test may replace those of the module.
from os import fstat, scandir
from typing import Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.audit_events import MadeElsewhere, MadeHere, MadeIn, is_left_out
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.memory import read_mappings
from pytest_leakcheck.probes.own_descriptors import open_own
from pytest_leakcheck.probes.own_folder import PREFIX
from pytest_leakcheck.probes.processes import descendants
from pytest_leakcheck.probes.ray_counters import is_loaded

# The names of a private temporary folder and of the folder around it: short, because the path of a
# socket has 107 bytes.
PRIVATE_NAME: Final = "t"
# The folder for ``tmp_path`` in a private one, as short as that of a plain session, and those of
# sessions within a test.
PYTEST_NAME: Final = "pytest"
_OF_PYTEST: Final = (f"{PYTEST_NAME}/", "pytest-of-")
# The folder of all sessions of Ray, with their logs.
_OF_RAY: Final = "ray/"
PRIVATE_FOLDER: Final = re.compile(rf".*/{PREFIX}[a-z0-9_]{{8}}/{PRIVATE_NAME}")
# Nanoseconds: longer than a tick of the kernel's clock, 10 ms at 100 Hz, and more on a virtual
# machine that waits for a CPU. A second change within one tick may leave the folder's time
# unchanged.
_CLOCK_TICK_NS: Final = 100_000_000
_REMOVED: Final = (FileNotFoundError, NotADirectoryError, PermissionError)
# A run of hexadecimal digits with at least one decimal digit, and the random end of a name made by
# `tempfile` or `multiprocessing`.
_HEX_NUMBER: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_RANDOM_END: Final = re.compile(r"[0-9a-z_]{1,8}(?=(\.[a-z]{1,4})?$)")


class MadeBeside:
    """Folders made in the shared temporary folder while this process does not use its private one.

    A fixture that a test set up in its logged run may hold one, and so may a module. A private
    folder counts them, too.
    """

    def __init__(self, path: str) -> None:
        """Begin; what is in the folder by now does not count."""
        self._path, self.made = path, MadeIn(path)
        self._earlier = dict.fromkeys(os.listdir(path))
        self.made.start()
        _BESIDE.append(self)

    def close(self) -> None:
        _BESIDE.remove(self)
        self.made.stop()

    def paths(self) -> Iterator[str]:
        with contextlib.suppress(OSError), scandir(self._path) as entries:
            for entry in entries:
                if entry.name not in self.made or entry.name in self._earlier:
                    continue
                ours = entry.name.startswith((PREFIX, *_OF_PYTEST)) or is_left_out(entry.path)
                if not ours and entry.is_dir(follow_symlinks=False):
                    yield entry.path


_BESIDE: Final[list[MadeBeside]] = []


class Folder:
    """``shm`` or ``disk``: entries added since the start that still exist.

    Entries that are known to be other processes' do not count. Resolution: one entry. Noise:
    entries of unknown origin. Cost: 1 us while nothing changes, otherwise one listing; a private
    folder with subfolders is listed each time. Scope: the machine, or this process tree if the
    folder is private. Fallback: without /dev/shm (macOS, Windows) ``shm`` is unavailable, and
    ``disk`` on Windows.
    """

    # Off if no budget names the resource: what is created outside the folder then does not count.
    named = True

    def __init__(self, resource: str, path: str, elsewhere: MadeElsewhere | None = None) -> None:
        self.resource = resource
        self.path = path
        self.elsewhere = elsewhere
        self.private = PRIVATE_FOLDER.fullmatch(path) is not None
        self._made = None if self.private else MadeHere()
        # The paths of other folders that are listed with a private one.
        self._beside: tuple[str, ...] = ()
        # Dicts in place of sets, because up to Python 3.13 a dict of strings and ints is no object
        # that is counted.
        self._start: dict[str, None] = {}
        # Entries of a shared folder that Python here has not created: of unknown origin, with the
        # row of their arrival; in use here; of other processes; of unknown origin, but set aside.
        self._unknown: dict[str, int] = {}
        self._used: dict[str, None] = {}
        self._theirs: dict[str, None] = {}
        self._aside: dict[str, None] = {}
        # Removed entries of unknown origin: from which row on each counted, and the first one in
        # which it no longer did.
        self._gone: list[tuple[int, int]] = []
        # The counts of `relist` and of `read`, in arrays, because ints would be memory blocks of
        # the plugin.
        self._count, self._read = array("q", (0,)), array("q", (0,))
        # The time of the last change that `is_due` and `read` have seen, and whether it was over by
        # then.
        self._listed, self._counted = array("q", (0, 0)), array("q", (0, 0))

    def open(self) -> None:
        """Record the current entries as the start state.

        Raise `Unavailable` if the folder cannot be listed.
        """
        try:
            scandir(self.path).close()
            self._file = open_own(self.path)
        except OSError as error:
            is_folder = sys.platform == "win32" and isinstance(error, PermissionError)
            why = "Windows opens no folder as a file" if is_folder else error
            raise Unavailable(f"{self.path} cannot be watched here ({why})") from None
        for listener in filter(None, (self._made, self.elsewhere)):
            listener.start()
        self.restart()

    def close(self) -> None:
        self._file.close()
        for listener in filter(None, (self._made, self.elsewhere)):
            listener.stop()

    def restart(self) -> None:
        """Take the current entries as the start state and forget everything else."""
        if self.private:
            self._beside = tuple(path for one in _BESIDE for path in one.paths())
            if self.elsewhere is not None:
                self.elsewhere.leave_to_listing(self._beside)
        others = self._unknown, self._used, self._theirs, self._aside, self._gone
        if self._has_changed(self._listed) or self._count[0] or any(others):
            self._start = dict.fromkeys(self._list())
        for entries in others:
            entries.clear()
        if self.elsewhere is not None:
            self.elsewhere.restart()
        self._count[0] = self._counted[1] = 0

    @property
    def count(self) -> int:
        """The number of entries that counted at the last listing."""
        return self._count[0]

    @property
    def known(self) -> int:
        """Those of `count` that are known to be the test's."""
        return self._count[0] - len(self._unknown)

    @property
    def aside(self) -> int:
        """The number of existing entries of unknown origin that no longer count."""
        # Without entries that were set aside, there is nothing to list for.
        return sum(1 for name in self._list() if name in self._aside) if self._aside else 0

    def read(self) -> int:
        """Return how many entries count now; cheap enough for every traced call."""
        if self._has_changed(self._counted) or self.has_elsewhere:
            self._read[0] = sum(1 for _ in self.names())
        return self._read[0]

    def is_due(self) -> bool:
        """Return whether entries may have changed since the last listing."""
        return self._has_changed(self._listed) or self.has_elsewhere

    @property
    def has_elsewhere(self) -> bool:
        """Whether an entry outside the folder may count."""
        return self.elsewhere is not None and self.elsewhere.any

    @property
    def uncounted(self) -> str:
        """A text on what exists outside the listing and does not count; empty if nothing does."""
        if self.elsewhere is None:
            return ""
        where = f"outside {'' if self.private else 'the top level of '}the temporary folder"
        if self.elsewhere.has_lost:
            return f"more new files {where} than could be noted"
        files = 0 if self.named else len(self.elsewhere.names())
        what = "1 new file is" if files == 1 else f"{files} new files are"
        return f"{what} {where}: {self.resource}_budget() counts such files" if files else ""

    def relist(self, row: int, *, waiting: bool = False) -> None:
        """List the folder; note entries of unknown origin that came or went since the row before.

        When `waiting`, the row before is corrected: what has gone since does not count there.
        """
        try:
            if self.elsewhere is not None:
                self.elsewhere.forget_removed()
            self._count[0] = (
                sum(1 for _ in self.names())
                if self.private
                else self._count_shared(row, row - waiting)
            )
        except OSError:
            # No descriptor is left to list it with.
            self._listed[1] = 0

    def _count_shared(self, row: int, gone: int) -> int:
        now = dict.fromkeys(self.names())
        for name in [name for name in self._unknown if name not in now]:
            self._gone.append((self._unknown.pop(name), gone))
        for name in [name for name in now if name not in self._unknown and not self._is_ours(name)]:
            if _belongs_to_other_user(f"{self.path}/{name}"):
                self._theirs[name] = None
                del now[name]
            else:
                self._unknown[name] = row
        return len(now)

    def names(self) -> Iterator[str]:
        """Yield the entries that count now, relative to the folder; those outside by their path."""
        for name in self._list():
            if name not in self._start and (
                self.private
                or not (name in self._theirs or name in self._aside)
                or self._is_ours(name)
            ):
                yield name
        if self.elsewhere is not None and self.named:
            yield from self.elsewhere.names()

    def path_of(self, name: str) -> str:
        """Return the path of an entry of `names`."""
        return os.path.join(self.path, name)

    def kinds(self) -> list[str]:
        """Return each counted entry's path with a name pattern, the same for similar names."""
        names = dict.fromkeys(self.names())
        tops = [os.path.split(_find_top(name, names)) for name in names]
        common = Counter(kind for _above, top in tops for kind in name_patterns(top))
        shown = "$TMPDIR" if self.private else self.path
        return [
            f"{above or shown}/{max(name_patterns(top), key=common.__getitem__)}{'' if name.endswith(top) else '/*'}"
            for (above, top), name in zip(tops, names, strict=True)
        ]

    def leave_out(self, last: int, *, set_aside: bool) -> list[range]:
        """Return, for each entry that must not count, which of the rows 0 to `last` counted it.

        These are those in use by other processes, and those of unknown origin that are gone. With
        `set_aside`, all others of unknown origin stop counting too. Entries in use here are no
        longer of unknown origin.
        """
        theirs = used_by_others(self.path, self._unknown) if self._unknown else frozenset()
        ours = used_here(self.path, self._unknown) - theirs if self._unknown else frozenset()
        ours |= {name for name in self._unknown if self._is_ours(name)}
        for name in ours:
            del self._unknown[name]
            self._used[name] = None
        left_out = list(self._unknown) if set_aside else list(theirs)
        for name in left_out:
            self._gone.append((self._unknown.pop(name), last + 1))
            (self._theirs if name in theirs else self._aside)[name] = None
        self._count[0] -= len(left_out)
        rows = [range(first, min(until, last + 1)) for first, until in self._gone]
        self._gone.clear()
        return rows

    @property
    def unknown(self) -> bool:
        """Whether entries of unknown origin count, or have counted until they were removed."""
        return bool(self._unknown or self._gone)

    def _has_changed(self, times: array[int]) -> bool:
        """Return whether entries may have changed since the last call or within the last 0.1 s."""
        try:
            # Another file that the program has put under this number has another time.
            if fstat(self._file.number).st_ctime_ns == times[0] and times[1]:
                return False
            status = self._file.status()
        except OSError:
            # The test has removed the folder.
            return True
        changed = times[0] = status.st_ctime_ns
        times[1] = status.st_nlink and clock.wall_time_ns() - changed > _CLOCK_TICK_NS
        return True

    def _is_ours(self, name: str) -> bool:
        return (
            name in self._used
            or name.startswith("/")
            or (self._made is not None and name in self._made)
        )

    def _list(self) -> Iterator[str]:
        """Yield the entries of a shared folder, or of a private one and those beside it."""
        # pytest removes what lies in its folders. Ray keeps a log for each worker.
        others = (*_OF_PYTEST, _OF_RAY) if is_loaded() else _OF_PYTEST
        # A private folder, and those beside it, are listed at all levels.
        folders = ["", *(f"{path}/" for path in self._beside)]
        if self._beside:
            # The time of the folder does not tell what changes elsewhere.
            self._listed[1] = self._counted[1] = 0
        while folders:
            above = folders.pop()
            # The test may have removed it, or have put a file in its place.
            with contextlib.suppress(*_REMOVED), scandir(self.path_of(above)) as entries:
                for entry in entries:
                    if self.private and not above and f"{entry.name}/".startswith(others):
                        continue
                    yield f"{above}{entry.name}"
                    if self.private and entry.is_dir(follow_symlinks=False):
                        folders.append(f"{above}{entry.name}/")
                        # The time of the folder does not tell what changes below it.
                        self._listed[1] = self._counted[1] = 0


def watched_paths() -> dict[str, str]:
    """Return, by resource, the folder of shared memory and the temporary folder.

    The former also holds named semaphores.
    """
    return {"shm": "/dev/shm", "disk": tempfile.gettempdir()}  # noqa: S108 - only watched


def watched_folders() -> tuple[Folder, ...]:
    """Return what watches each of these folders."""
    paths = watched_paths()
    elsewhere = MadeElsewhere(
        paths["disk"], whole=PRIVATE_FOLDER.fullmatch(paths["disk"]) is not None
    )
    return Folder("shm", paths["shm"]), Folder("disk", paths["disk"], elsewhere)


def _find_top(name: str, names: Container[str]) -> str:
    """Return the topmost counted folder that an entry is in; the entry itself if it is in none."""
    if not name.startswith("/"):
        return name.partition("/")[0]
    while (above := os.path.dirname(name)) in names:
        name = above
    return name


def name_patterns(name: str) -> tuple[str, str]:
    """Return two patterns of a name: without its numbers, and without its random suffix.

    Names that are generated alike have equal patterns.
    """
    return _HEX_NUMBER.sub("#", name), _RANDOM_END.sub("*", name)


def _belongs_to_other_user(path: str) -> bool:
    try:
        return hasattr(os, "geteuid") and os.lstat(path).st_uid != os.geteuid()
    except OSError:
        # The entry is gone, as the next listing will show.
        return False


def used_by_others(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the entries in use by this user's processes except this one and its descendants."""
    # By /proc. Cost: about 2 us for each descriptor of each process of the same user, and the time
    # to read their mappings.
    with contextlib.suppress(OSError):
        processes = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        return _find_used(folder, names, processes - _own_processes())
    return frozenset()


def used_here(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the entries that are in use by this process or a descendant."""
    return _find_used(folder, names, _own_processes())


def _find_used(folder: str, names: Collection[str], processes: Iterable[int]) -> frozenset[str]:
    prefix, inodes = folder.rstrip("/") + "/", {}
    for name in names:
        with contextlib.suppress(OSError):
            inodes[os.lstat(prefix + name).st_ino] = name
    used: set[str] = set()
    for pid in processes:
        mapped = [
            mapping
            for mapping in read_mappings(str(pid), os.fsencode(prefix))
            if mapping.path.startswith(prefix)
        ]
        used.update(path[len(prefix) :] for path in _open_paths(pid) if path.startswith(prefix))
        # By inode, too: `sem_open` maps a semaphore, and then renames it.
        used.update(
            name
            for mapping in mapped
            for name in (mapping.path[len(prefix) :], inodes.get(mapping.inode, ""))
        )
    return frozenset(path.partition("/")[0] for path in used).intersection(names)


def _own_processes() -> set[int]:
    return {os.getpid(), *descendants(os.getpid())}


def _open_paths(pid: int) -> Iterator[str]:
    # The process may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        yield os.readlink(f"/proc/{pid}/cwd")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
