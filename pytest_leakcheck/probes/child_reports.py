"""Read what children report: what their collectors release, and what they put in shared folders.

Forked children, and those that `multiprocessing` spawns or its fork server forks, get a callback of
their collector. It counts descriptors and threads at the start and stop of each automatic
collection, and appends a letter for each release to a file of all. Cost: 15 us for each collection
in a child. Children that are not forked append the paths that they create, which forked ones note
in memory that they share (`audit_events`).
"""

from __future__ import annotations

import atexit
import gc
import os
import tempfile
from array import array
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.model.regular_file import open_regular
from pytest_leakcheck.probes.audit_events import Listener, note_of_child
from pytest_leakcheck.probes.child_start import run_in_children, stop_in_children
from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_descriptors import count_open
from pytest_leakcheck.probes.own_folder import own_folder

# It runs in each child that is not forked, with its `file`.
_INSTALL: Final = """
from pytest_leakcheck.probes.child_reports import report_to
report_to(file)
"""
_NAME: Final = "reports"
# The most bytes to read at once.
_MOST_READ: Final = 1 << 20
_DESCRIPTOR: Final = b"f"
_THREAD: Final = b"t"
# The end of a report: a byte that no path has.
_END: Final = b"\0"
# The file of this session, and the process that has created it.
_FILE: Final[list[tuple[str, int]]] = []
# The size of the file at the last reading, and, in a child, the descriptors and threads at the
# start of a collection.
_READ: Final = array("q", (0,))
_BEFORE: Final = array("q", (0, 0))


def watch_children() -> bool:
    """Make the children that start from now on report; return whether this call has done so."""
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
    run_in_children(_NAME, _INSTALL, file=file)
    _register_once()
    return True


def unwatch_children() -> None:
    """Undo `watch_children` in this process."""
    stop_in_children(_NAME)
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


def read_reports() -> tuple[int, int]:
    """Note what children have created; return what their collectors have released.

    These are the numbers of descriptors and threads since the last call.
    """
    with suppress(OSError, IndexError):
        size = os.stat(_FILE[0][0]).st_size
        if size != _READ[0]:
            with open_regular(Path(_FILE[0][0]), follow=False) as file:
                file.seek(_READ[0])
                text = file.read(min(max(0, size - _READ[0]), _MOST_READ))
            # The last report may be cut off.
            whole = text[: text.rfind(_END) + len(_END)]
            _READ[0] += len(whole)
            reports = whole.split(_END)
            for path in (one for one in reports if one.startswith(b"/")):
                note_of_child(os.fsdecode(path))
            return reports.count(_DESCRIPTOR), reports.count(_THREAD)
    return 0, 0


class _Reporter(Listener):
    """Reports the entries that this process, a child, creates in shared folders."""

    def __init__(self) -> None:
        self._folders = ("/dev/shm", tempfile.gettempdir())  # noqa: S108 - only compared

    def note(self, path: str) -> None:
        if os.path.dirname(path) in self._folders:
            _report([os.fsencode(path)])


def report_to(file: str) -> None:
    """Report what this process, a child, creates, and what its collector releases."""
    _FILE[:] = [(file, 0)]
    _install()
    _Reporter().start()


def _report(reports: list[bytes]) -> None:
    # There may be no descriptor left, or no session any more.
    with suppress(OSError, IndexError):
        descriptor = private(_FILE[0][0], os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, b"".join(one + _END for one in reports))
        finally:
            os.close(descriptor)


def _install() -> None:
    if _FILE and _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def _on_collection(phase: str, _info: dict[str, Any]) -> None:
    with suppress(OSError):
        fds, threads = count_open(), os.stat("/proc/self/task").st_nlink
        if phase == "start":
            _BEFORE[0], _BEFORE[1] = fds, threads
        elif letters := [_DESCRIPTOR] * (_BEFORE[0] - fds) + [_THREAD] * (_BEFORE[1] - threads):
            _report(letters)
