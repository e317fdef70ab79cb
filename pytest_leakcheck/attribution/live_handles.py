"""Which descriptors, threads, children, tasks and mappings there are, so that those that are new can be told and named.

Listing is kept apart from naming: what is listed at each change is cheap to read, and only survivors are described.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.resources import RESOURCES, Handles, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.processes import descendants, thread_ids

_NUMBERED: Final = re.compile(r"^(socket|pipe):\[\d+\]$")
_ANONYMOUS: Final = re.compile(r"^anon_inode:\[?([^\]]+)\]?$")
_COUNTER: Final = re.compile(r"\d+")
# Of what was mapped, a smaller part is not told.
_TOLD: Final = 0.1


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities behind the scarce counters at one moment.

    Attributes:
        fds: What each descriptor of this process points to, by number.
        threads: Names by the kernel's number.
        children: Command lines by pid.
        of_children: What the descriptors of live children point to, by pid and number.
        tasks: What asyncio tasks run, by identity.
        mappings: What is mapped, by address: the file or "" and the number of bytes.
    """

    fds: Mapping[int, str]
    threads: Mapping[int, str]
    children: Mapping[int, str]
    of_children: Mapping[tuple[int, int], str]
    tasks: Mapping[int, str] = field(default_factory=dict)
    mappings: Mapping[int, tuple[str, int]] = field(default_factory=dict)


def take_identities() -> Identities:
    """Read them now. Without /proc, threads are Python's, and there are no descriptors and children."""
    children = live_children()
    of_children = {(pid, fd): target for pid in children for fd, target in open_targets(str(pid)).items()}
    tasks = {id(task): _coroutine(task) for task in _tasks()}
    return Identities(open_targets(), running_threads(), children, of_children, tasks, _mappings())


def open_files() -> dict[int, str]:
    """What is open in this process by descriptor, with an identity that outlasts a change of name.

    Tear-down removes ``tmp_path``, and a file that is written beside its place is moved there: the same file either way.
    """
    return {fd: _identity_of(fd, target) for fd, target in open_targets().items()}


def _identity_of(fd: int, target: str) -> str:
    if not target.startswith("/"):
        # Of sockets and pipes the kernel tells the number of the inode.
        return target
    try:
        status = os.fstat(fd)
    except OSError:
        return target
    return f"{status.st_dev}:{status.st_ino}"


def running_threads() -> dict[int, str]:
    """The threads of this process by the kernel's number: Python's with their name and what they run, others so."""
    named = {thread.native_id or 0: _thread(thread) for thread in threading.enumerate()}
    if not sys.platform.startswith("linux"):
        return named
    return {number: named.get(number) or _thread_of_c(number) for number in map(int, thread_ids())}


def live_children() -> dict[int, str]:
    """The command lines of all live processes below this one."""
    return {pid: _command(pid) for pid in descendants(os.getpid())} if sys.platform.startswith("linux") else {}


def alive_tasks() -> frozenset[int]:
    """The asyncio tasks that `probes.libraries.Tasks` counts, by identity."""
    return frozenset(map(id, _tasks()))


def _tasks() -> Iterator[Any]:
    tasks: Any = sys.modules.get("asyncio.tasks")
    sets = (getattr(tasks, name, None) or () for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks"))
    return (task for some in sets for task in list(some))


def new_handles(before: Identities, after: Identities, resource: str) -> frozenset[int]:
    """The numbers of the descriptors, threads, processes or tasks that are new; a number that is used again counts."""
    kind = find_resource(resource).handles
    then: Mapping[int, str] = getattr(before, kind)
    now: Mapping[int, str] = getattr(after, kind)
    return frozenset(number for number, what in now.items() if then.get(number) != what)


def survivors(before: Identities, after: Identities) -> dict[str, tuple[Held, ...]]:
    """What is new, by resource; a number that was reused for another target counts as new."""
    fds = group(describe_fd(fd, target) for fd, target in after.fds.items() if before.fds.get(fd) != target)
    for pid in before.children.keys() & after.children.keys():
        # What a child had from its start is the child's doing no more than the leak of a child is one of descriptors.
        new_there = (
            target
            for (whose, fd), target in after.of_children.items()
            if whose == pid and before.of_children.get((pid, fd)) != target
        )
        note = f"in child {after.children[pid]}"
        fds += tuple(replace(one, note=note) for one in group(map(describe_target, new_there)))
    threads = [name for number, name in after.threads.items() if number not in before.threads]
    started = {pid: command for pid, command in after.children.items() if pid not in before.children}
    found: dict[Handles, tuple[Held, ...]] = {
        "fds": tuple(sorted(fds, key=lambda one: -one.count)),
        "threads": group(_COUNTER.sub("N", name) for name in threads),
        "children": _with_age(started),
        "tasks": group(what for task, what in after.tasks.items() if task not in before.tasks),
        "mappings": _by_file(before.mappings, after.mappings),
    }
    return {name: found[resource.handles] for name, resource in RESOURCES.items() if resource.handles in found}


def group(kinds: Iterable[str]) -> tuple[Held, ...]:
    """Count equal descriptions, most frequent first."""
    return tuple(Held(what, count) for what, count in Counter(kinds).most_common())


def describe_target(target: str) -> str:
    """What a descriptor points to, without the numbers that differ from one to the next."""
    if match := _NUMBERED.match(target):
        return match[1]
    if match := _ANONYMOUS.match(target):
        return match[1]
    if target.startswith("/memfd:"):
        return f"memfd {target[7:]}"
    return target


def describe_fd(fd: int, target: str) -> str:
    """As `describe_target`; a socket of this process with whom it talks to."""
    return _socket(fd) if target.startswith("socket:") else describe_target(target)


def _socket(fd: int) -> str:
    import socket

    try:
        # Of a copy: the original must not be closed with the object.
        with socket.socket(fileno=os.dup(fd)) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                return "socket"
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return f"socket listening on {copy.getsockname()[0]}"
            host, port, *_ = copy.getpeername()
            return f"socket to {host}:{port}"
    except OSError:
        return "socket"


def _thread(thread: threading.Thread) -> str:
    target: Any = getattr(thread, "_target", None)
    function = getattr(target, "__qualname__", "")
    # Unnamed threads have it in their name already: Thread-1 (work).
    return (
        thread.name
        if not function or f"({getattr(target, '__name__', '')})" in thread.name
        else f"{thread.name} ({function})"
    )


def _thread_of_c(number: int) -> str:
    """One that Python knows nothing of; it has the name of the program, unless the library gave it one."""
    name, program = _comm(f"self/task/{number}"), _comm("self")
    return "thread of a C library" if name in ("", program) else f"{name} (thread of a C library)"


def _comm(process: str) -> str:
    try:
        with open(f"/proc/{process}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        words = _words(str(pid))
    except OSError:
        return "gone"
    if words == _words("self"):
        # A fork; a DataLoader of torch calls its workers by a name of theirs.
        return f"{_comm(str(pid))} (forked)"
    return " ".join(words) or "just started"


def _words(process: str) -> list[str]:
    """The command line."""
    with open(f"/proc/{process}/cmdline", "rb") as file:
        return [word.decode(errors="replace") for word in file.read(200).split(b"\0") if word]


def _with_age(children: Mapping[int, str]) -> tuple[Held, ...]:
    began: dict[str, float] = {}
    for pid, command in children.items():
        began[command] = min(_began(pid), began.get(command, time.time()))
    return tuple(
        Held(one.what, one.count, f"the oldest for {time.time() - began[one.what]:.1f} s")
        for one in group(children.values())
    )


def _coroutine(task: Any) -> str:
    return f"task of {getattr(task.get_coro(), '__qualname__', 'a coroutine')}()"


def _mappings() -> dict[int, tuple[str, int]]:
    """By their first address. The kernel joins neighbours without a file into one."""
    found: dict[int, tuple[str, int]] = {}
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            addresses, _rights, _offset, _device, _inode, *path = line.split(maxsplit=5)
            first, last = (int(number, 16) for number in addresses.split("-"))
            found[first] = (path[0].rstrip() if path else "", last - first)
    return found


def _by_file(before: Mapping[int, tuple[str, int]], after: Mapping[int, tuple[str, int]]) -> tuple[Held, ...]:
    """What has come, also by growing, under a file's name; without what is but a small part of it."""
    gained: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for at, (file, size) in after.items():
        earlier, size_then = before.get(at, ("", 0))
        more = size - size_then if earlier == file else size
        if more > 0:
            name = file or "memory without a file"
            gained[name] += more
            count[name] += 1
    least = _TOLD * gained.total()
    return tuple(
        Held(name, count[name], f"{format_amount(size, 'bytes')} in all")
        for name, size in gained.most_common()
        if size >= least
    )


def _began(pid: int) -> float:
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return time.time()
