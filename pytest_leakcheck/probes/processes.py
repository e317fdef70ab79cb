"""Count descriptors, threads and children of the process tree, and read command lines."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple, TypeAlias

from pytest_leakcheck.probes.base import Stateless, Unavailable
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.own_descriptors import OwnFile, open_own

# Flags of `waitid`: check for children without waiting, and do not reap one that has ended. 0 if
# there is no `waitid`.
_PEEK_FLAGS: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0
# How often a count is tried before it is not used: another thread may open or close a descriptor at
# the same moment.
_TRIES: Final = 5
_ZOMBIE: Final = b"Z"
_ENDED: Final = (_ZOMBIE, b"X", b"")
# That of a child which a container hides in /proc, no letter of the kernel.
_HIDDEN_STATE: Final = b"?"


class TreeCount(NamedTuple):
    """What a process tree has, by the names of the resources."""

    fd: int
    thread: int
    process: int


TREE: Final = TreeCount._fields


class LinuxTree:
    """Counts of descriptors, threads and child processes in the process tree, read from /proc.

    Resolution: one. Noise: none. Cost: 2.5 us without a child (two ``fstat`` of open directories,
    one ``waitid``), about 60 us more for each child. Scope: the process tree, with threads of C
    code. A child that has ended and was never waited for (a zombie) counts as a process, because it
    occupies a process id. An inherited descriptor counts once, for the process that opened it
    (`InheritedDescriptors`). Not counted: zombies below child processes, processes that end during
    the walk, processes of other users below children, daemons that have left the tree by a double
    fork, and Ray's own processes with what they start. Fallback: before kernel 6.2, the size of the
    directory is not the number of descriptors, so it is listed. `open` tries both numbers, because
    a sandbox may imitate /proc without them: a number that does not count a new descriptor is not
    used.
    """

    def __init__(self) -> None:
        self._fds: OwnFile
        self._tasks: OwnFile
        # Whether the size of the directory of descriptors is their number, and the links of the
        # directory of threads are the number of threads.
        self._sized = self._linked = True
        self._inherited = InheritedDescriptors()

    def open(self) -> None:
        try:
            self._fds, self._tasks = open_own("/proc/self/fd"), open_own("/proc/self/task")
        except FileNotFoundError:
            raise Unavailable("all counts are read from /proc, which is not mounted here") from None
        self._sized = self._counts_descriptors()
        if not (self._sized or self._counts_descriptors()):
            self.close()
            raise Unavailable("/proc/self/fd does not show a descriptor that was just opened")
        self._linked = any(
            self._tasks.status().st_nlink - 2 == len(os.listdir("/proc/self/task"))
            for _ in range(_TRIES)
        )

    def _counts_descriptors(self) -> bool:
        for _ in range(_TRIES):
            before = self.own_fds()
            descriptor = os.open(os.devnull, os.O_RDONLY)
            after = self.own_fds()
            os.close(descriptor)
            if after == before + 1:
                return True
        return False

    def own(self) -> tuple[int, int]:
        """Return the descriptors and threads of this process alone."""
        # First: if it must be opened again, its new descriptor is to be counted.
        threads = self._tasks.status().st_nlink - 2
        fds = self._fds.status().st_size if self._sized else len(os.listdir("/proc/self/fd")) - 1
        return fds, threads if self._linked else len(os.listdir("/proc/self/task"))

    def own_fds(self) -> int:
        """Return the descriptors of this process alone, in half the time that `own` takes."""
        return self._fds.status().st_size if self._sized else self.own()[0]

    def read(self) -> TreeCount:
        fds, threads = self.own()
        try:
            # This check takes 1 us, the walk below 11 to 260 us. WNOWAIT leaves an ended child for
            # the program to reap.
            os.waitid(os.P_ALL, 0, _PEEK_FLAGS)
        except ChildProcessError:
            return TreeCount(fds, threads, 0)
        root = os.getpid()
        children = {child: _state(child) or _state_if_hidden(child) for child in _children(root)}
        processes = sum(state in (_ZOMBIE, _HIDDEN_STATE) for state in children.values())
        alive = [
            child for child, state in children.items() if state not in (*_ENDED, _HIDDEN_STATE)
        ]
        for parent, pid in chain(zip(repeat(root), alive), *map(family, alive)):
            # The process may end between two of these lines, or belong to another user.
            with contextlib.suppress(OSError):
                folder = f"/proc/{pid}/task"
                tasks = os.stat(folder).st_nlink - 2 if self._linked else len(os.listdir(folder))
                its_fds = (
                    os.stat(f"/proc/{pid}/fd").st_size
                    if self._sized
                    else len(os.listdir(f"/proc/{pid}/fd"))
                )
                its_fds -= self._inherited.count(parent, pid, its_fds)
                fds, threads, processes = fds + its_fds, threads + tasks, processes + 1
        return TreeCount(fds, threads, processes)

    def close(self) -> None:
        self._fds.close()
        self._tasks.close()


# The number of processes that `InheritedDescriptors` remembers. The kernel numbers processes in the
# order of their start, so processes that run at the same time rarely share a place.
_SLOTS: Final = 4096
_STANDARD_STREAMS: Final = (0, 1, 2)


class InheritedDescriptors:
    """The number of descriptors that each process has inherited from its parent.

    A forked child has a copy of each descriptor, so one leak would count once more for each worker
    that is forked later. The count is taken when a child is first seen, and stays if the parent
    closes its copy; again if the child holds fewer, because it has closed some, or runs another
    program. The table has a fixed size, so counting allocates nothing that stays. Cost: 7 us for
    each descriptor of a new child, then 0.3 us per reading.
    """

    def __init__(self) -> None:
        self._pids = array("q", bytes(8 * _SLOTS))
        self._counts = array("q", bytes(8 * _SLOTS))

    def count(self, parent: int, pid: int, held: int) -> int:
        """Return how many of a process's descriptors are inherited from this parent."""
        slot = pid % _SLOTS
        if self._pids[slot] != pid or held < self._counts[slot]:
            self._pids[slot], self._counts[slot] = pid, min(held, _count_inherited(parent, pid))
        return self._counts[slot]


def _count_inherited(parent: int, pid: int) -> int:
    """Count descriptors equal to one of the parent in number and target."""
    of_parent = open_targets(str(parent))
    # pytest may have moved the standard streams.
    files = {target for target in of_parent.values() if target.startswith("/")}
    return sum(
        of_parent.get(number) == target or (number in _STANDARD_STREAMS and target in files)
        for number, target in open_targets(str(pid)).items()
    )


class PortableTree(Stateless):
    """``fd``, ``thread`` and ``process`` through psutil, on platforms without /proc.

    Resolution: one. Noise: none on macOS; on Windows handles are counted, whose number fluctuates.
    Cost: about 1 ms. Inherited descriptors count for the child too, because psutil cannot tell them
    apart.
    """

    def open(self) -> None:
        import psutil

        self._me = psutil.Process()
        self._psutil_error = psutil.Error
        # Windows has handles instead of descriptors.
        name = "num_handles" if sys.platform == "win32" else "num_fds"
        self._descriptors: Callable[[Any], int] = getattr(psutil.Process, name)

    def own(self) -> tuple[int, int]:
        return self._descriptors(self._me), self._me.num_threads()

    def own_fds(self) -> int:
        return self._descriptors(self._me)

    def read(self) -> TreeCount:
        fds, threads = self.own()
        processes = 0
        for child in self._me.children(recursive=True):
            with contextlib.suppress(self._psutil_error):
                if child.status() == "zombie":
                    processes += child.ppid() == self._me.pid
                    continue
                its_fds, its_threads = self._descriptors(child), child.num_threads()
                fds, threads, processes = fds + its_fds, threads + its_threads, processes + 1
        return TreeCount(fds, threads, processes)


# The probe of this platform; `own` is for `CollectorWatch`.
Tree: TypeAlias = LinuxTree | PortableTree


def process_tree() -> Tree:
    """Return the process-tree probe for this platform."""
    return LinuxTree() if sys.platform.startswith("linux") else PortableTree()


def thread_ids() -> frozenset[str]:
    """Return the ids of this process's threads; without /proc, only those known to `threading`."""
    try:
        return frozenset(os.listdir("/proc/self/task"))
    except OSError:
        # One that is being started has no id yet.
        return frozenset(
            str(thread.native_id) for thread in threading.enumerate() if thread.native_id
        )


def others_run() -> bool:
    """Return whether another thread of this process runs or awaits a CPU; False without /proc."""
    own = threading.get_native_id()
    return any(
        _state(f"self/task/{number}") == b"R" for number in thread_ids() if number != str(own)
    )


def descendants(pid: int) -> Iterator[int]:
    """Yield the live descendants of a process, parents before children, without zombies."""
    return (child for _parent, child in family(pid))


def own_tree() -> list[int]:
    """Return this process, its children not yet waited for, and the live descendants of these."""
    me = os.getpid()
    try:
        os.waitid(os.P_ALL, 0, _PEEK_FLAGS)
    except (AttributeError, ChildProcessError):
        return [me]
    return [me, *descendants(me), *zombies()]


def count_tasks(pid: int) -> int:
    """Return the number of threads of a process; 1 if it has ended, 0 if it is gone."""
    try:
        return max(1, os.stat(f"/proc/{pid}/task").st_nlink - 2)
    except OSError:
        return 0


def zombies() -> list[int]:
    """Return the children of this process that have ended and were not waited for."""
    return [child for child in _children(os.getpid()) if _state(child) == _ZOMBIE]


def family(pid: int) -> Iterator[tuple[int, int]]:
    """Yield each live descendant of a process, after its parent."""
    for child in _children(pid):
        if _state(child) not in _ENDED:
            yield pid, child
            yield from family(child)


def _children(pid: int) -> Iterator[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children = file.read().split()
        except OSError:
            continue
        yield from (child for child in map(int, children) if not _is_of_ray(child))


def _is_of_ray(pid: int) -> bool:
    """Return whether a process belongs to Ray's own, which start with it, and end with it.

    Below them are its workers, which `ray_counters` counts. Before Ray is loaded, there is none.
    """
    file = getattr(sys.modules.get("ray"), "__file__", None)
    if file is None:
        return False
    # The interpreter and its options come before the script.
    words = read_command_line(str(pid))[:3]
    return any(word.startswith(os.path.dirname(file) + os.sep) for word in words)


def _state(pid: int | str) -> bytes:
    """Return the kernel's letter for the state of a process or thread; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The process name is in parentheses and may contain any byte, even a parenthesis. The
            # state follows the last closing parenthesis.
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def _state_if_hidden(child: int) -> bytes:
    """Return `_HIDDEN_STATE` if /proc hides a child (``hidepid``); empty if it was waited for."""
    try:
        os.waitid(os.P_PID, child, _PEEK_FLAGS)
    except ChildProcessError:
        return b""
    return _HIDDEN_STATE


# Of a command line, reports show this much.
_MAX_COMMAND_CHARACTERS: Final = 200
_HIDDEN: Final = "…"
# The programs whose values of options are shown, if the option is one of these.
_OUR_PROGRAMS: Final = frozenset({"pytest", "py.test", "pytest_leakcheck", "pytest-leakcheck"})
_OUR_OPTION: Final = re.compile(
    "-[kmnpr]|--(?:leakcheck-[a-z-]+|capture|color|dist|durations|import-mode|maxfail|numprocesses|tb|timeout|verbosity)"
)
_PYTHON: Final = re.compile(r"(?:python|pypy)w?[\d.]*t?(?:\.exe)?", re.IGNORECASE)
_PROGRAM: Final = re.compile(r"[\w./+~-]*")
_MODULE: Final = re.compile(r"[A-Za-z_][\w.]*")
_SCRIPT: Final = re.compile(r"[\w./+~-]+\.(?:jar|jl|js|pl|py|pyz|rb|sh)")
# What `multiprocessing` starts its processes with.
_OF_MULTIPROCESSING: Final = re.compile(r"from multiprocessing\.\w+ import \w+(?=;)")
_LONG_OPTION: Final = re.compile(r"(--[A-Za-z][\w.-]{0,64})(?:=.*)?", re.DOTALL | re.ASCII)
# Flags of Python and of pytest, also several in one word. To another short option, its value may be
# attached.
_FLAGS: Final = re.compile("-[vqsxluBEIOS]+")
_HOST: Final = re.compile(r"[\w.-]+(?::\d+)?|\[[\da-fA-F:.]+\](?::\d+)?", re.ASCII)


def read_command_line(process: str) -> list[str]:
    """Read a command line's words, with secrets; empty if the process is gone or just starting."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return [word.decode(errors="replace") for word in file.read().split(b"\0") if word]
    except OSError:
        return []


def show_command(words: Sequence[str], folder: str = "") -> str:
    """Return a command line as in reports: shortened, and with only the words of `mask_secrets`."""
    return " ".join(mask_secrets(words, folder))[:_MAX_COMMAND_CHARACTERS]


def mask_secrets(words: Sequence[str], folder: str = "") -> list[str]:
    """Return the words of a command line that cannot be secret, with ``…`` in place of all others.

    Shown are the program, a script or module, the names of options, files that exist (as seen from
    `folder`) and test ids in them, and the scheme and host of a URL. The value of an option is
    shown only for `_OUR_PROGRAMS`, and there only for a few options.
    """
    if not words:
        return []
    program = words[0] if os.path.exists(words[0]) else _show_start(_PROGRAM, words[0])
    shown, option = [program], ""
    is_python = _PYTHON.fullmatch(os.path.basename(program)) is not None
    ours = os.path.basename(program) in _OUR_PROGRAMS
    for word in words[1:]:
        if option and is_python and option in ("-m", "-c"):
            ours, is_python = option == "-m" and word in _OUR_PROGRAMS, False
            text, option = _show_start(_MODULE if option == "-m" else _OF_MULTIPROCESSING, word), ""
        elif word.startswith("-"):
            ours = ours and word != "--"
            text = _show_option(word, ours)
            option = "" if "=" in word or _FLAGS.fullmatch(word) else word
        elif option and ours and _OUR_OPTION.fullmatch(option):
            text, option = word, ""
        else:
            text = _show_argument(word, folder, option)
            if is_python and text == word:
                ours, is_python = os.path.basename(word) in _OUR_PROGRAMS, False
            option = ""
        if text != _HIDDEN or shown[-1] != _HIDDEN:
            shown.append(text)
    return shown


def _show_start(pattern: re.Pattern[str], word: str) -> str:
    match = pattern.match(word)
    start = match[0] if match is not None else ""
    return start if start == word else start + _HIDDEN


def _show_option(word: str, ours: bool) -> str:
    name = word.partition("=")[0]
    if len(word) <= 2 or _FLAGS.fullmatch(word) or (ours and _OUR_OPTION.fullmatch(name)):
        return word
    if match := _LONG_OPTION.fullmatch(word):
        return word if match[1] == word else f"{match[1]}={_HIDDEN}"
    if ours and not word.startswith("--") and _OUR_OPTION.fullmatch(word[:2]):
        return word
    return f"--{_HIDDEN}" if word.startswith("--") else word[:2] + _HIDDEN


def _show_argument(word: str, folder: str, option: str) -> str:
    """Show a word that is no option; after one, whose value it may be, only if it is a path."""
    scheme, separator, rest = word.partition("://")
    if separator:
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
        path, host = rest[len(authority) :], authority.rpartition("@")[2]
        # After a password with a "/", the host would be a part of it.
        is_plain = scheme.isalnum() and "@" not in path and _HOST.fullmatch(host)
        return (
            f"{scheme}://{host}{'/' + _HIDDEN if path.strip('/') else path}"
            if is_plain
            else _HIDDEN
        )
    file = word.partition("::")[0]
    if _SCRIPT.fullmatch(word) and not option:
        return word
    is_path = not option or file.endswith(".py") or os.path.basename(file) != file
    return word if is_path and file and os.path.exists(os.path.join(folder, file)) else _HIDDEN
