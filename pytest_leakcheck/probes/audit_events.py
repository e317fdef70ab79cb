"""Record which folder entries this process creates, from audit events (`_PATH_ARGUMENT_INDEX`).

CPython raises them before the creation; that of `os.truncate` is for new shared memory.
`os.mkfifo`, semaphores and C code raise none, so entries made here may be missing. An audit hook
can never be removed, so there is only one per process, which returns at once while nothing listens.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, Final, Self

# The size of the filter (see `MadeHere`), one byte for each slot.
_SLOTS: Final = 1 << 19
# For each audit event, the index of the argument that holds the path of the new entry.
_PATH_ARGUMENT_INDEX: Final = {
    "open": 0,
    "os.mkdir": 0,
    "os.rename": 1,
    "os.link": 1,
    "os.symlink": 1,
    "os.truncate": 0,
    "socket.bind": 1,
    "sqlite3.connect": 0,
}
# The audit events of the start of a program.
_STARTS: Final = frozenset({"subprocess.Popen", "os.posix_spawn"})
# What lies below is counted by other probes, or is no file.
_NO_FILES: Final = ("/dev/", "/proc/", "/sys/")
_LEFT_OUT: Final[list[str]] = []
# The size of the buffer of `MadeElsewhere`, and of its head: the number of bytes in use, and
# whether that was too small.
_TEXT_SIZE: Final = 1 << 20
_LOST: Final = 8
_HEAD_SIZE: Final = 9


def leave_out(prefix: str) -> None:
    """Count nothing whose path has this prefix, because the program that makes it removes it."""
    if prefix not in _LEFT_OUT:
        _LEFT_OUT.append(prefix)


def is_left_out(path: str) -> bool:
    """Return whether a path has such a prefix."""
    return os.path.realpath(path).startswith(tuple(_LEFT_OUT))


class Listener:
    """Is told the path of each entry that is about to be created."""

    def start(self) -> None:
        """Start recording."""
        _watching.append(self)
        # If another hook refuses this one, no creation is ever recorded.
        if not _hooks:
            _hooks.append(_make_hook())
            sys.addaudithook(_hooks[0])

    def stop(self) -> None:
        _watching.remove(self)

    def note(self, path: str) -> None:
        raise NotImplementedError

    def note_of_child(self, path: str) -> None:
        """Be told, afterwards, of an entry that a child has created which was not forked."""

    def note_start(self) -> None:
        """Be told that this process is about to start a program."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


def note_of_child(path: str) -> None:
    """Tell all listeners."""
    for listener in _watching:
        listener.note_of_child(path)


def _resident(size: int, *, shared: bool = True) -> mmap.mmap:
    # Its pages become resident here, and not while a test is measured.
    memory = (
        mmap.mmap(-1, size)
        if shared
        else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    )
    memory[:] = bytes(size)
    return memory


class MadeHere(Listener):
    """The names of entries that this process and its children have created since `start`.

    They go into a preallocated Bloom filter, two slots per name, so memory does not grow while a
    test is measured. Only the last part of each path is stored, so any path to the folder will do.
    A name by another process is mistaken for one made here with a probability of at most (2k /
    524,288)^2, where k is the number of names.
    """

    def __init__(self) -> None:
        self._marks = _resident(_SLOTS)

    def stop(self) -> None:
        super().stop()
        self._marks.close()

    def move(self, *, shared: bool) -> None:
        """Move the names into other memory, which forked children share or get copies of."""
        marks = _resident(_SLOTS, shared=shared)
        marks[:] = self._marks[:]
        self._marks.close()
        self._marks = marks

    def note(self, path: str) -> None:
        number = hash(os.path.basename(path.rstrip("/")))
        self._marks[number % _SLOTS] = self._marks[(number >> 32) % _SLOTS] = 1

    def note_of_child(self, path: str) -> None:
        self.note(path)

    def __contains__(self, name: str) -> bool:
        number = hash(name)
        return bool(self._marks[number % _SLOTS] and self._marks[(number >> 32) % _SLOTS])


class MadeIn(MadeHere):
    """The names of those that they have created in one folder, and that did not exist there."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folders = (folder, os.path.realpath(folder))

    def note(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.dirname(path) in self._folders and not os.path.lexists(path):
            super().note(path)


class MadeElsewhere(Listener):
    """The paths that this process and its forked children have created outside the listed folder.

    What existed before is not new, and what Python compiles does not count. The paths stay in
    preallocated memory, which forked children share, so that no object is kept while a test is
    measured.
    """

    def __init__(self, folder: str, *, whole: bool) -> None:
        """Leave out the top level of the listed folder; if that is listed `whole`, all levels."""
        self._text = _resident(_TEXT_SIZE)
        self._listed = (folder, os.path.realpath(folder))
        inside = [f"{one}/" for one in self._listed if whole]
        self._left_out: tuple[str, ...] = (*inside, *_NO_FILES, *_LEFT_OUT)

    def restart(self) -> None:
        """Forget all paths."""
        self._text[:_HEAD_SIZE] = bytes(_HEAD_SIZE)

    def leave_to_listing(self, folders: Collection[str]) -> None:
        """Note nothing below these folders, because they are listed at all levels."""
        self._left_out += tuple(
            f"{prefix}/" for path in folders for prefix in {path, os.path.realpath(path)}
        )

    def note(self, path: str) -> None:
        path = os.path.abspath(path)
        if path.startswith(self._left_out) or os.path.dirname(path) in self._listed:
            return
        if "/__pycache__/" not in f"{path}/" and not os.path.lexists(path):
            self._append(os.fsencode(path) + b"\0")

    def _append(self, text: bytes) -> None:
        begin = self._end
        end = begin + len(text)
        if end > _TEXT_SIZE:
            self._text[_LOST] = 1
            return
        self._text[begin:end] = text
        self._text[:_LOST] = end.to_bytes(_LOST, "little")

    @property
    def _end(self) -> int:
        return max(_HEAD_SIZE, int.from_bytes(self._text[:_LOST], "little"))

    @property
    def any(self) -> bool:
        """Whether a noted entry may still exist."""
        return self._end > _HEAD_SIZE

    @property
    def has_lost(self) -> bool:
        """Whether there were more paths than the memory holds."""
        return self._text[_LOST] != 0

    def names(self) -> dict[str, None]:
        """Return the paths of those that exist."""
        noted = dict.fromkeys(self._text[_HEAD_SIZE : self._end].split(b"\0")[:-1])
        return dict.fromkeys(os.fsdecode(path) for path in noted if os.path.lexists(path))

    def forget_removed(self) -> None:
        """Forget what does not exist at the end of an iteration; earlier, it may yet be created."""
        if self.any:
            text = b"".join(os.fsencode(path) + b"\0" for path in self.names())
            self._text[:_LOST] = bytes(_LOST)
            self._append(text)


_watching: Final[list[Listener]] = []
_hooks: Final[list[Callable[[str, tuple[Any, ...]], None]]] = []


def _find_path(event: str, args: tuple[Any, ...]) -> Any:
    """Return the path of the new entry; empty if there is none."""
    path = args[_PATH_ARGUMENT_INDEX[event]]
    if event == "open" and not args[2] & os.O_CREAT:
        return ""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}") if event == "os.truncate" else ""
    return path


def _make_hook() -> Callable[[str, tuple[Any, ...]], None]:
    # Locals, because the interpreter still raises events after it has cleared the globals of its
    # modules.
    watching, named, starts, find_path = (
        _watching,
        {*_PATH_ARGUMENT_INDEX, *_STARTS},
        _STARTS,
        _find_path,
    )

    def hook(event: str, args: tuple[Any, ...]) -> None:
        # For all other events, the hook returns without calling a function: see
        # `_run_in_one_piece`.
        if not watching or event not in named:
            return
        try:
            if event in starts:
                for listener in watching:
                    listener.note_start()
            elif path := find_path(event, args):
                for listener in watching:
                    listener.note(os.fsdecode(path))
        except Exception:  # noqa: BLE001, S110  # an exception here would fail what the program is about to do
            pass

    if sys.version_info[:2] == (3, 11):
        assert isinstance(hook, FunctionType)
        _run_in_one_piece(hook)
    return hook


def _run_in_one_piece(hook: FunctionType) -> None:
    """Let no other thread run before the hook's first call."""
    # ``RESUME`` lets one run if its argument is below 2. While `sys.settrace` or `sys.setprofile`
    # raises its audit event, CPython 3.11 refuses both in other threads with a RuntimeError
    # (`_PyEval_SetTrace`, Python/ceval.c). Under coverage, each new thread calls `sys.settrace`; it
    # then dies before it runs anything, and its pool hangs. Imported here because only this version
    # of Python needs it.
    import opcode

    code = bytearray(hook.__code__.co_code)
    at = next(at for at in range(0, len(code), 2) if code[at] == opcode.opmap["RESUME"])
    code[at + 1] = 2
    hook.__code__ = hook.__code__.replace(co_code=bytes(code))
