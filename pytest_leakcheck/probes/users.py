"""Who uses an entry of a folder that the whole machine shares: a process that has it open, or works in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator

from pytest_leakcheck.probes.processes import descendants


def used_by_others(folder: str, names: Collection[str]) -> frozenset[str]:
    """Which of these entries a process has in use that is neither this one nor below it.

    Cost: a link to read for each descriptor of each process of the same user, some 2 us each. Processes of others cannot
    be looked into, and without /proc none can.

    Args:
        folder: Where they lie.
        names: The entries.
    """
    own = {os.getpid(), *descendants(os.getpid())}
    wanted, prefix = frozenset(names), folder.rstrip("/") + "/"
    used = set()
    for pid in _others(own):
        for path in _used(pid):
            if path.startswith(prefix) and (name := path[len(prefix) :].partition("/")[0]) in wanted:
                used.add(name)
    return frozenset(used)


def _others(own: Collection[int]) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own)


def _used(pid: int) -> Iterator[str]:
    # It may end meanwhile, or be another user's.
    with contextlib.suppress(OSError):
        yield os.readlink(f"/proc/{pid}/cwd")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
