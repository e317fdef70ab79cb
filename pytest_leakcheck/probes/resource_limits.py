"""Read the resource limits at which this process would fail, and lift one for the plugin's own files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pytest_leakcheck.probes.cgroups import groups_of
from pytest_leakcheck.probes.memory import PAGE


def read_limits(machine_memory: int | None = None) -> dict[str, int]:
    """Return the limits of ``fd``, ``heap`` and ``rss``, without those that are unknown or infinite.

    ``fd``: soft RLIMIT_NOFILE; others: the smallest of the cgroup limits and the machine's memory, in bytes.
    """
    limits: dict[str, int] = {}
    with contextlib.suppress(ImportError, OSError):
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            limits["fd"] = soft
    of_machine = _machine_memory() if machine_memory is None else machine_memory
    memory = [size for size in (of_machine, *(group.limit for group in groups_of())) if size]
    if memory:
        limits["heap"] = limits["rss"] = min(memory)
    return limits


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * PAGE
    except (ValueError, OSError, AttributeError):
        return 0


@contextlib.contextmanager
def room_for_files() -> Iterator[None]:
    """Raise the limit on file sizes while a report is written; a limit that the program sets meanwhile stays."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    except (ImportError, OSError):
        yield
        return
    if soft == hard:
        yield
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    try:
        yield
    finally:
        if resource.getrlimit(resource.RLIMIT_FSIZE) == (hard, hard):
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
