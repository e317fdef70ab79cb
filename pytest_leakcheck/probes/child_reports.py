"""Count what the garbage collectors of child processes release: descriptors and threads.

Forked children, and those that `multiprocessing` spawns or its fork server forks, get a callback of their collector. It
counts at the start and stop of each automatic collection, and appends a letter for each release to a file of all.
Cost: 15 us for each collection in a child.
"""

from __future__ import annotations

import atexit
import gc
import os
import tempfile
from array import array
from contextlib import suppress
from functools import cache
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.model.regular_file import open_regular
from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_folder import own_folder

# It runs in each child that is spawned, with its `file`; an error must not reach the child. `multiprocessing` pickles it,
# as it does all that it sends.
_INSTALL: Final = """
try:
    from pytest_leakcheck.probes.child_collectors import report_to
    report_to(file)
except Exception:
    pass
"""
_NAME: Final = "pytest_leakcheck_collectors"
_MAX_LETTERS: Final = 1 << 20
_DESCRIPTOR: Final = b"f"
_THREAD: Final = b"t"
# The file of this session, and the process that has created it.
_FILE: Final[list[tuple[str, int]]] = []
# The size of the file at the last reading, and, in a child, the descriptors and threads at the start of a collection.
_READ: Final = array("q", (0,))
_BEFORE: Final = array("q", (0, 0))


class _Reporting:
    """Unpickled in a spawned child, it makes that child report."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_INSTALL, {"file": _FILE[0][0]})


def watch_children() -> bool:
    """Make the children that this process starts from now on report; return whether this call has done so."""
    # A forked process that measures itself is no child.
    with suppress(ValueError):
        gc.callbacks.remove(_on_collection)
    if _FILE or not os.path.isdir("/proc/self/fd"):
        return False
    try:
        descriptor, file = tempfile.mkstemp(dir=own_folder())
    except OSError:
        # Without a descriptor that is left, what they release is not counted.
        return False
    os.close(descriptor)
    _FILE.append((file, os.getpid()))
    _READ[0] = 0
    # Each process of `multiprocessing` begins with a copy of its parent's configuration.
    vars(current_process())["_config"][_NAME] = _Reporting()
    _register_once()
    return True


def unwatch_children() -> None:
    """Undo `watch_children` in this process."""
    vars(current_process())["_config"].pop(_NAME, None)
    while _FILE:
        file, owner = _FILE.pop()
        # A forked child that ends must not remove it.
        if owner == os.getpid():
            with suppress(OSError):
                os.unlink(file)


@cache
def _register_once() -> None:
    os.register_at_fork(after_in_child=_install)
    atexit.register(unwatch_children)


def read_released() -> tuple[int, int]:
    """Return how many descriptors and threads the collectors of children have released since the last call."""
    with suppress(OSError, IndexError):
        size = os.stat(_FILE[0][0]).st_size
        if size != _READ[0]:
            with open_regular(Path(_FILE[0][0]), follow=False) as file:
                file.seek(_READ[0])
                letters = file.read(min(max(0, size - _READ[0]), _MAX_LETTERS))
            _READ[0] = size
            return letters.count(_DESCRIPTOR), letters.count(_THREAD)
    return 0, 0


def report_to(file: str) -> None:
    """Report the collections of this process, a spawned child."""
    _FILE[:] = [(file, 0)]
    _install()


def _install() -> None:
    if _FILE and _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def _on_collection(phase: str, _info: dict[str, Any]) -> None:
    # There may be no descriptor left, or no session any more.
    with suppress(OSError, IndexError):
        # Kernels before 6.2 do not report the number of descriptors as the size of the folder.
        fds = os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
        threads = os.stat("/proc/self/task").st_nlink
        if phase == "start":
            _BEFORE[0], _BEFORE[1] = fds, threads
        elif letters := _DESCRIPTOR * (_BEFORE[0] - fds) + _THREAD * (_BEFORE[1] - threads):
            descriptor = private(_FILE[0][0], os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, letters)
            finally:
                os.close(descriptor)
