"""List, count, recognize and describe handles: units of a resource with an identity.

Bytes have no identity. Handles are listed at each change of their number, so a listing must be
cheap. Expensive details, such as the peer of a socket or the age of a process, are read only for
survivors: new handles that still exist at the end.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import mmap
import os
import re
import select
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_own, path_to_await
from pytest_leakcheck.attribution.inspection import MAX_PARTS, is_c, is_shared, module_of, walk
from pytest_leakcheck.attribution.ray_records import describe_new
from pytest_leakcheck.model.culprit import Remainder, short_file
from pytest_leakcheck.model.recording import Fullest
from pytest_leakcheck.model.resources import DESCRIPTORS, RESOURCES, Handles, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folders import Folder, name_patterns
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.memory import parse_mappings, read_maps
from pytest_leakcheck.probes.processes import (
    family,
    read_command_line,
    show_command,
    thread_ids,
    zombies,
)
from pytest_leakcheck.probes.ray_counters import (
    find_core_worker,
    list_actors,
    list_placement_groups,
    list_refs,
    look_at_cluster,
)
from pytest_leakcheck.probes.runtime_counters import list_tasks

_TARGET_KIND: Final = re.compile(r"^(socket|pipe)(?=:\[\d+\]$)|^anon_inode:\[?([^\]]+)\]?$")
# What the description of a connected socket begins with.
_PEER: Final = "socket to "
_DIGITS: Final = re.compile(r"\d+")
_NUMBERS_AND_TEXT: Final = re.compile(r"\d+|\D+")
# A new descriptor is looked for among this many free numbers, the lowest ones.
_MOST_FREE: Final = 32
_DESCRIPTORS_FOLDER: Final = Path("/proc/self/fd")
_TASKS: Final = Path("/proc/self/task")
_CHILDREN_OF_THREAD: Final = Path("/proc/thread-self/children")
# Handles of Ray whose description is all that is known.
_NAMED_OF_RAY: Final[tuple[Handles, ...]] = ("ray_placement_groups", "ray_workers")
# Minimum share of the newly mapped bytes that a file must have to be reported.
_MIN_MAPPING_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Identities:
    """The handles that exist at one moment: descriptions by number, native id, pid or ``id()``.

    Those of Ray have ids of their own.
    """

    fds: Mapping[int, str]
    threads: Mapping[int, str]
    children: Mapping[int, str]
    # The descriptors of children, by pid and number.
    of_children: Mapping[tuple[int, int], str]
    tasks: Mapping[int, str] = field(default_factory=dict)
    # The text of ``/proc/self/maps``, which takes longer to parse than to read.
    maps: bytes = b""
    ray_refs: Mapping[str, str] = field(default_factory=dict)
    ray_actors: Mapping[str, str] = field(default_factory=dict)
    ray_placement_groups: Mapping[str, str] = field(default_factory=dict)
    ray_objects: Mapping[str, str] = field(default_factory=dict)
    ray_workers: Mapping[int, str] = field(default_factory=dict)


def take_identities() -> Identities:
    """List all handles now; without /proc, only tasks and the threads that Python knows."""
    children = live_children()
    of_children = {
        (pid, fd): target for pid in children for fd, target in open_targets(str(pid)).items()
    }
    found = Identities(
        open_targets(), running_threads(), children, of_children, live_tasks(), read_maps()
    )
    return found if find_core_worker() is None else _with_ray(found)


def _with_ray(found: Identities) -> Identities:
    """Add what Ray's cluster has; nothing if it does not answer, as while it shuts down."""
    with contextlib.suppress(Exception):
        cluster = look_at_cluster()
        return replace(
            found,
            ray_refs=list_refs(),
            ray_actors=list_actors(),
            ray_placement_groups=list_placement_groups(),
            ray_objects=cluster.objects,
            ray_workers=dict.fromkeys(cluster.workers, "worker of Ray"),
        )
    return found


def open_files(
    process: str = "self", known: Mapping[int, str] = MappingProxyType({})
) -> dict[int, str]:
    """List the open descriptors of a process, each with the identity of its file.

    A file keeps its identity if it is moved or removed. Descriptors that are `known` are not read
    again.
    """
    found = open_targets(process, known)
    # The target of a socket or pipe contains the inode number.
    for fd in [fd for fd, target in found.items() if target.startswith("/")]:
        with contextlib.suppress(OSError):
            status = os.fstat(fd) if process == "self" else os.stat(f"/proc/{process}/fd/{fd}")  # noqa: PTH116
            found[fd] = _identity(status)
    return found


def _identity(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}"


class ChangedFiles:
    """Lists the open descriptors of this process as they were a moment ago, with what has changed.

    To list 2,000 takes 3 ms, too long for each change. A new descriptor has the lowest free number,
    so this looks at these numbers and at those that were new before, and lists all only if their
    number is not as counted.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        """Take a function that counts the open descriptors."""
        self._count = count
        self._uncounted = len(open_files()) - count()
        self._recent: set[int] = set()
        self._listed: Mapping[int, str] = {}

    def __call__(self, known: Mapping[int, str]) -> Mapping[int, str]:
        """Return the listing that follows this one, as `open_files` does."""
        if known is not self._listed:
            self._recent.clear()
        found = {fd: what for fd, what in known.items() if fd not in self._recent}
        found |= {fd: what for fd in self._recent if (what := _describe_file(fd))}
        wanted = self._count() + self._uncounted
        # A thread that waits in ``accept`` has reserved a number that no listing shows.
        for fd in itertools.islice(
            itertools.filterfalse(found.__contains__, itertools.count()), _MOST_FREE
        ):
            if len(found) >= wanted:
                break
            if what := _describe_file(fd):
                found[fd] = what
        if len(found) != wanted:
            found = open_files("self", known)
        self._recent = {fd for fd in self._recent.union(found.keys() - known.keys()) if fd in found}
        self._listed = found
        return found


def _describe_file(fd: int) -> str:
    """Return what a descriptor of this process points to, as `open_files` does; empty if closed."""
    with contextlib.suppress(OSError):
        target = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - at each change
        return _identity(os.fstat(fd)) if target.startswith("/") else target
    return ""


def running_threads() -> dict[int, str]:
    """Describe this process's threads by native id; on Linux, also those not started by Python."""
    named = {thread.native_id or 0: _describe_thread(thread) for thread in threading.enumerate()}
    return {
        number: named.get(number) or _describe_native_thread(number)
        for number in map(int, thread_ids())
    }


def live_children() -> dict[int, str]:
    """Describe this process's live descendants, by command line, and its zombies; keys are pids."""
    # In this order, so that a child that ends between the two is not missed.
    alive = {pid: _describe_process(pid, parent) for parent, pid in family(os.getpid())}
    return alive | {
        pid: f"zombie of {read_process_name(str(pid))}, never waited for" for pid in zombies()
    }


def live_tasks() -> dict[int, str]:
    """Describe each task that `probes.runtime_counters.Tasks` counts, by ``id()``."""
    return {
        id(task): f"task of {getattr(task.get_coro(), '__qualname__', 'a coroutine')}()"
        for task in list_tasks()
    }


def new_handles(before: Identities, after: Identities, resource: str) -> frozenset[Any]:
    """Return the numbers (keys in `Identities`) of new handles.

    A reused number with another description is included; entries of folders are not.
    """
    return frozenset(_new_of(find_resource(resource).handles, before, after))


def _new_of(kind: Handles, before: Identities, after: Identities) -> dict[Any, str]:
    then: Mapping[Any, str] = getattr(before, kind, {})
    now: Mapping[Any, str] = getattr(after, kind, {})
    return {number: what for number, what in now.items() if then.get(number) != what}


def survivors(before: Identities, after: Identities) -> dict[str, tuple[Remainder, ...]]:
    """Describe the new handles, by name of the resource.

    A descriptor number that is reused for another target counts too.
    """
    fds = group_files(
        describe_fd(fd, target) for fd, target in after.fds.items() if before.fds.get(fd) != target
    )
    for pid in before.children.keys() & after.children.keys():
        # The descriptors of a new child are part of the leak of that child.
        new_there = (
            target
            for (whose, fd), target in after.of_children.items()
            if whose == pid and before.of_children.get((pid, fd)) != target
        )
        note = f"in child {after.children[pid]}"
        fds += tuple(
            replace(one, note=note) for one in group_files(map(describe_target, new_there))
        )
    threads = [name for number, name in after.threads.items() if number not in before.threads]
    started = {
        pid: command for pid, command in after.children.items() if pid not in before.children
    }
    of_ray: tuple[Handles, ...] = ("ray_refs", "ray_objects", "ray_actors")
    found: dict[Handles, tuple[Remainder, ...]] = {
        **{kind: describe_new(_new_of(kind, before, after)) for kind in of_ray},
        **{kind: group(_new_of(kind, before, after).values()) for kind in _NAMED_OF_RAY},
        "fds": tuple(sorted(fds, key=lambda one: -one.count)),
        "threads": group(_DIGITS.sub("N", name) for name in threads),
        "children": _group_with_age(started),
        "tasks": _new_tasks_by_await(before.tasks, after.tasks),
        "mappings": _new_mappings_by_file(before.maps, after.maps),
    }
    return {
        name: found[resource.handles]
        for name, resource in RESOURCES.items()
        if resource.handles in found
    }


def find_fullest(before: Identities, after: Identities) -> Fullest | None:
    """Return the child that gained most descriptors; None if this process gained as many."""
    new = [
        pid
        for (pid, fd), target in after.of_children.items()
        if before.of_children.get((pid, fd)) != target
    ]
    gained = Counter(pid for pid in new if pid in before.children)
    own = len(new_handles(before, after, DESCRIPTORS))
    if not gained or own >= max(gained.values()):
        return None
    pid, most = gained.most_common(1)[0]
    held = sum(whose == pid for whose, _fd in after.of_children)
    return Fullest(after.children[pid], held, most, own + gained.total())


def group(kinds: Iterable[str]) -> tuple[Remainder, ...]:
    """Count equal descriptions, most frequent first."""
    return tuple(Remainder(what, count) for what, count in Counter(kinds).most_common())


def group_files(targets: Iterable[str]) -> tuple[Remainder, ...]:
    """Count descriptions of descriptors.

    Files of one folder, or peers of one host, form a group if their names do.
    """
    counts = Counter(targets)
    patterns = {name: _path_patterns(name) for name in counts if name.startswith(("/", "memfd "))}
    # A client has a port of its own; one with several sockets is a server.
    peers = (name for name, count in counts.items() if name.startswith(_PEER) and count == 1)
    patterns |= {name: (f"{name.rpartition(':')[0]}:*",) for name in peers}
    common = Counter(pattern for several in patterns.values() for pattern in set(several))
    members: dict[str, list[str]] = {}
    for name in counts:
        best = max(patterns.get(name, ()), key=common.__getitem__, default=name)
        members.setdefault(best if common[best] > 1 else name, []).append(name)
    grouped = Counter(
        {
            _mark_differences(names, best): sum(map(counts.__getitem__, names))
            for best, names in members.items()
        }
    )
    return tuple(Remainder(what, count) for what, count in grouped.most_common())


def _mark_differences(names: Sequence[str], pattern: str) -> str:
    """Put ``*`` for each number in which names differ; return the pattern if more differs."""
    parts = [_NUMBERS_AND_TEXT.findall(name) for name in names]
    if len({len(one) for one in parts}) > 1:
        return pattern
    columns = [set(column) for column in zip(*parts, strict=True)]
    if any(len(column) > 1 and not all(map(str.isdecimal, column)) for column in columns):
        return pattern
    return "".join("*" if len(column) > 1 else next(iter(column)) for column in columns)


def _path_patterns(path: str) -> tuple[str, ...]:
    folder, slash, name = path.rpartition("/")
    return tuple(f"{folder}{slash}{pattern.replace('#', '*')}" for pattern in name_patterns(name))


def describe_target(target: str) -> str:
    """Describe what a descriptor points to, without the inode number of a socket or pipe."""
    if match := _TARGET_KIND.match(target):
        return match[1] or match[2]
    if target.startswith("/memfd:"):
        return f"memfd {target[7:]}"
    return target


def describe_fd(fd: int, target: str) -> str:
    """Describe what a descriptor of this process points to, with the peer of a socket."""
    return _describe_socket(fd) if target.startswith("socket:") else describe_target(target)


def _describe_socket(fd: int) -> str:
    try:
        # Use a duplicate descriptor, because closing the socket object must not close the original.
        with socket.socket(fileno=os.dup(fd)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return "socket"
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return f"socket listening on {copy.getsockname()[0]}"
            host, port, *_ = copy.getpeername()
            return f"{_PEER}{host}:{port}"
    except OSError:
        return "socket"


def _describe_thread(thread: threading.Thread) -> str:
    target: Any = getattr(thread, "_target", None)
    function = getattr(target, "__qualname__", "")
    # Python puts the function into the default name of a thread: Thread-1 (work).
    is_named = not function or f"({getattr(target, '__name__', '')})" in thread.name
    return thread.name if is_named else f"{thread.name} ({function})"


def _describe_native_thread(number: int) -> str:
    """Describe a thread of a C library; unless that names it, it has the name of the program."""
    name, program = read_process_name(f"self/task/{number}"), read_process_name("self")
    return "thread of a C library" if name in ("", program) else f"{name} (thread of a C library)"


def read_process_name(process: str) -> str:
    """Return the name that the kernel has for a process or thread; empty if it is gone."""
    try:
        with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _describe_process(pid: int, parent: int) -> str:
    words = read_command_line(str(pid))
    if not words:
        return read_process_name(str(pid)) or "gone"
    if words == read_command_line(str(parent)):
        # This process was forked. Its process name may differ from its parent's, as with a torch
        # DataLoader worker.
        return f"{read_process_name(str(pid))} (forked)"
    return show_command(words, f"/proc/{pid}/cwd")


def _group_with_age(children: Mapping[int, str]) -> tuple[Remainder, ...]:
    """Group processes by command line, each group with the age of its oldest process."""
    import psutil

    now = clock.wall_time()
    began: list[tuple[float, str]] = []
    for pid, command in children.items():
        # A container may hide /proc/stat, which psutil reads for the time.
        with contextlib.suppress(psutil.Error, OSError):
            began.append((psutil.Process(pid).create_time(), command))
    oldest = {command: start for start, command in sorted(began, reverse=True)}
    return tuple(
        replace(remainder, note=f"the oldest for {now - oldest[remainder.what]:.1f} s")
        if remainder.what in oldest
        else remainder
        for remainder in group(children.values())
    )


def _new_tasks_by_await(
    before: Mapping[int, str], after: Mapping[int, str]
) -> tuple[Remainder, ...]:
    """Group the new tasks by what they run, and by the line of the program at which they wait."""
    awaits = {id(task): _describe_await(task) for task in list_tasks()}
    counts = Counter(
        (what, awaits.get(task, "")) for task, what in after.items() if task not in before
    )
    return tuple(Remainder(what, count, note) for (what, note), count in counts.most_common())


def _describe_await(task: Any) -> str:
    if task.done():
        return "ended"
    path = path_to_await(task.get_coro())
    at = next((site for site in reversed(path) if is_own(site.file)), path[-1] if path else None)
    return f"waiting in {at.function}(), {short_file(at.file)}:{at.line}" if at is not None else ""


def _new_mappings_by_file(before: bytes, after: bytes) -> tuple[Remainder, ...]:
    """Sum newly mapped bytes by file, with growth of earlier mappings; leave out small shares."""
    gained: Counter[str] = Counter()
    count: Counter[str] = Counter()
    # The kernel merges adjacent mappings without a file, so new memory may only make an earlier
    # mapping larger.
    earlier = {one.start: one for one in parse_mappings(before)}
    for mapping in parse_mappings(after):
        known = earlier.get(mapping.start)
        more = mapping.end - (
            known.end if known is not None and known.path == mapping.path else mapping.start
        )
        if more > 0:
            name = mapping.path or "memory without a file"
            gained[name] += more
            count[name] += 1
    most = (pair for pair in gained.most_common() if pair[1] >= _MIN_MAPPING_SHARE * gained.total())
    return tuple(
        Remainder(name, count[name], f"{format_amount(size, 'bytes')} in all")
        for name, size in most
    )


# Deepest level of the parts of an entry that are its own: itself, its dict, its attributes in that.
MAX_OWN_DEPTH: Final = 3
# Minimum share of the expected handles that the sampled entries must stand for.
_MIN_HANDLE_SHARE: Final = 0.8
# Number of entries to sample; `stand_for` inspects up to twice as many.
SAMPLE_SIZE: Final = 24
# Modules whose objects may hold memory but no handles.
_MEMORY_ONLY_MODULES: Final = frozenset({"builtins", "numpy", "pandas", "pyarrow", "torch"})
# Standard library modules with types written in C whose objects keep file descriptors that they do
# not expose.
_STDLIB_WITH_DESCRIPTORS: Final = frozenset({"sqlite3", "_dbm", "_gdbm"})


@dataclass(frozen=True, slots=True)
class HandleKind:
    """One kind of handle."""

    # A number that changes when a handle appears or disappears; it is cheap.
    count: Callable[[], int]
    # The description of each handle, by identity; another description under the same one means
    # another handle.
    list_now: Callable[[], Mapping[Any, str]]
    # Whether the description is the size of the handle, so that the growth is that of the sum of
    # the sizes.
    sized: bool = False
    # Whether `traced_children` can trace these handles in child processes too.
    in_children: bool = False
    # Whether these are entries of a folder, which child processes may create as well.
    in_folder: bool = False
    # As `list_now`, but it reads no handle again that the given listing has; None if that would
    # save nothing.
    list_more: Callable[[Mapping[Any, str]], Mapping[Any, str]] | None = None


# Those that no /proc is needed for.
_LISTED_ANYWHERE: Final[Mapping[str, Callable[[], Mapping[Any, str]]]] = {
    "tasks": live_tasks,
    "ray_refs": list_refs,
    "ray_placement_groups": list_placement_groups,
}


def things_of(
    resource: str, count: Callable[[], int], folder: Folder | None = None
) -> HandleKind | None:
    """Return the kind of handle that a resource counts, perhaps in a folder.

    None if no such handle can be listed here.
    """
    kind = find_resource(resource).handles
    # Without /proc, these are only counted: a listing of `threading` leaves out threads that are
    # being started.
    if kind == "fds" and _DESCRIPTORS_FOLDER.exists():
        return HandleKind(count, open_files, in_children=True, list_more=ChangedFiles(count))
    if kind == "threads" and _TASKS.exists():
        return HandleKind(count, lambda: dict.fromkeys(running_threads(), ""))
    if kind == "children" and _CHILDREN_OF_THREAD.exists():
        return HandleKind(_hash_children_of_thread, lambda: dict.fromkeys(live_children(), ""))
    if kind in _LISTED_ANYWHERE:
        return HandleKind(count, _LISTED_ANYWHERE[kind])
    if folder is not None:
        return HandleKind(count, lambda: dict.fromkeys(folder.names(), folder.path), in_folder=True)
    return None


def pieces_of(device: Vram) -> HandleKind | None:
    """Return the devices' allocations as a kind of handle; None if a device does not list them."""
    if device.pieces() is None:
        return None
    return HandleKind(
        device.read,
        lambda: {key: str(size) for key, size in (device.pieces() or {}).items()},
        sized=True,
    )


def _hash_children_of_thread() -> int:
    """Return a number that changes with this thread's children; to walk the tree takes too long."""
    with _CHILDREN_OF_THREAD.open("rb", buffering=0) as file:
        return hash(file.read())


def stand_for(
    entries: Sequence[tuple[object, ...]],
    identities: Collection[Hashable],
    *,
    are_numbers: bool = False,
) -> bool:
    """Return whether entries of a container (tuples of their parts) stand for most of the handles.

    A sample of the entries decides. An entry stands for a handle if it contains its number or name,
    or the object itself. An object of a type written in C cannot be inspected, so that one such
    object suffices, unless the handles are mere numbers, which Python code has got. The entries may
    include some that are older.
    """
    sample = entries[:: max(1, len(entries) // SAMPLE_SIZE)]
    wanted = min(len(sample) * min(1.0, len(identities) / max(1, len(entries))), len(identities))
    # Only numbers and names can be recognized.
    known = frozenset(key for key in identities if isinstance(key, (int, str)))
    found: set[Hashable] = set()
    for entry in sample:
        levels = walk(
            [part for part in entry if not is_shared(part)],
            lambda part: not is_shared(part),
            MAX_PARTS,
        )
        for depth, level in enumerate(levels, start=1):
            for part in level.values():
                # An mmap duplicates the descriptor that it was made from, and does not expose the
                # number of the copy.
                is_hidden = is_opaque_handle(type(part)) or type(part) is mmap.mmap
                if is_hidden and depth <= MAX_OWN_DEPTH and not are_numbers:
                    return True
                found |= handles_of(part, known, by_value=True)
    return len(found) >= _MIN_HANDLE_SHARE * wanted > 0


def handles_of(
    obj: object, identities: Collection[Hashable], *, by_value: bool = False
) -> set[Hashable]:
    """Return the given handles that an object itself is.

    With `by_value`, also those whose number or name it is.
    """
    found: set[Hashable] = {id(obj), _descriptor_of(obj), _name_of_semaphore(obj)}
    if by_value and type(obj) is int:
        found.add(obj)
    elif by_value and type(obj) is str:
        found.update(name for name in identities if type(name) is str and _is_name_of(obj, name))
    return found.intersection(identities)


def _is_name_of(text: Any, name: str) -> bool:
    """Return whether a text is the name of a folder entry, its path, or a path below it."""
    return bool(text == name or text.endswith(f"/{name}") or f"/{name}/" in text)


def _name_of_semaphore(obj: Any) -> str:
    """Return the name of a semaphore in /dev/shm; empty if it has none, and for other objects."""
    name = getattr(obj, "name", None) if type(obj).__module__ == "_multiprocessing" else None
    return f"sem.{name.lstrip('/')}" if name else ""


def _descriptor_of(obj: Any) -> int:
    """Return the descriptor of a file, socket or epoll object; -1 if closed, and for others."""
    kind = type(obj)
    try:
        if kind is io.FileIO:
            return int(obj.fileno())
        if issubclass(kind, socket.socket):
            return int(socket.socket.fileno(obj))
        if hasattr(select, "epoll") and kind is select.epoll:
            return int(obj.fileno())
    except (ValueError, OSError):
        pass
    return -1


def is_opaque_handle(kind: type) -> bool:
    """Return whether a type is in C, and its objects may keep handles that cannot be inspected."""
    # `module_of` bypasses the metaclass, which may override attribute access.
    top = str(module_of(kind)).partition(".")[0]
    if (
        top in sys.stdlib_module_names and top not in _STDLIB_WITH_DESCRIPTORS
    ) or top in _MEMORY_ONLY_MODULES:
        return False
    # If a `class` statement made the type, the parts of its objects can be inspected, so no handle
    # is hidden.
    return is_c(kind)
