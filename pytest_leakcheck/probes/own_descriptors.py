"""Keep the plugin's descriptors at high numbers, and make room for them when the program has used up all others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

# The lowest descriptor number of the plugin, if the limit allows it. It is not higher, because the kernel's descriptor
# table grows to the highest number in use, by 8 bytes per number.
_LOWEST_HIGH_NUMBER: Final = 4000
# The high numbers below the limit. One measurement takes nine of them, on Linux with fanotify.
_HIGH_NUMBERS: Final = 24
# The number of descriptors that `room_for_descriptors` allows in addition.
_SPARE_DESCRIPTORS: Final = 64


def open_high(path: str) -> int:
    """Open a file for reading under a high descriptor number.

    If the program closes one of its descriptors twice, the second call hits a low number, so it cannot close this file.
    """
    return lift(os.open(path, os.O_RDONLY))


def lift(low: int) -> int:
    """Move a descriptor to a high number and close the low one."""
    import fcntl
    import resource

    try:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = (
            _LOWEST_HIGH_NUMBER
            if soft == resource.RLIM_INFINITY
            else max(3, min(soft - _HIGH_NUMBERS, _LOWEST_HIGH_NUMBER))
        )
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, lowest)
    finally:
        os.close(low)


@contextlib.contextmanager
def room_for_descriptors() -> Iterator[None]:
    """Raise the descriptor limit temporarily, if fewer than 64 descriptors are left.

    A leak may have used up every descriptor, and reporting it takes a few. If the program sets the limit in the
    meantime, its limit stays.
    """
    try:
        import resource
    except ImportError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # This reads the number of open descriptors without opening one; before Linux 6.2, it is 0. The number exceeds
        # the limit if the program has lowered the limit since.
        held = os.stat("/proc/self/fd").st_size
    except OSError:
        held = 0
    if soft == resource.RLIM_INFINITY or 0 < held <= soft - _SPARE_DESCRIPTORS:
        yield
        return
    wanted = max(soft, held) + _SPARE_DESCRIPTORS
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    try:
        yield
    finally:
        if resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, hard):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
