"""Descriptors of our own: at high numbers, and with room for them when a leak has used up all others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

# The kernel's table of descriptors grows to the highest number, 8 bytes each.
_HIGH: Final = 4000

_ROOM: Final = 64


def open_high(path: str) -> int:
    """Open for reading under a high number: a program that closes a descriptor twice hits a low one."""
    return lift(os.open(path, os.O_RDONLY))


def lift(low: int) -> int:
    """Move a descriptor to a high number; the low one is closed."""
    import fcntl
    import resource

    try:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = _HIGH if soft == resource.RLIM_INFINITY else max(3, min(soft - 8, _HIGH))
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, lowest)
    finally:
        os.close(low)


@contextlib.contextmanager
def room_for_descriptors() -> Iterator[None]:
    """A leak may have used up every descriptor; to look into that, and to say so, takes a few."""
    try:
        import resource
    except ImportError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # Without opening it. There may be more than are allowed, where the limit was set later.
        held = os.stat("/proc/self/fd").st_size
    except OSError:
        held = 0
    raised = max(soft, held) + _ROOM
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised if hard == resource.RLIM_INFINITY else min(raised, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
