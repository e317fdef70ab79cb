"""Who uses an entry of a folder that the whole machine shares: a process that has it open or mapped, or works in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator

from pytest_leakcheck.probes.processes import descendants


def used_by_others(folder: str, names: Collection[str]) -> frozenset[str]:
    """Which of these entries a process has open or mapped, or works in, that is neither this one nor below it.

    Cost: a link to read for each descriptor of each process of the same user, some 2 us each, and its mappings. Processes of others cannot
    be looked into, and without /proc none can.

    Args:
        folder: Where they lie.
        names: The entries.
    """
    return _found(folder, names, (used for pid in _others(_own()) for used in (_used(pid), _mapped(pid, folder))))


def used_here(folder: str, names: Collection[str]) -> frozenset[str]:
    """Which of these entries this process or one below it has open or mapped, or works in."""
    return _found(folder, names, (used for pid in _own() for used in (_used(pid), _mapped(pid, folder))))


def _found(folder: str, names: Collection[str], used: Iterable[Iterable[str]]) -> frozenset[str]:
    wanted, prefix = frozenset(names), folder.rstrip("/") + "/"
    below = (path[len(prefix) :].partition("/")[0] for paths in used for path in paths if path.startswith(prefix))
    return frozenset(name for name in below if name in wanted)


def _own() -> set[int]:
    return {os.getpid(), *descendants(os.getpid())}


def _mapped(pid: int, folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        maps = file.read()
        # Hardly any process has one mapped, and some have thousands of lines.
        if os.fsencode(folder) in maps:
            yield from (os.fsdecode(line[at:]) for line in maps.splitlines() if (at := line.find(b"/")) > 0)


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
