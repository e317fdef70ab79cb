"""Read the resource limits at which this process would fail, and lift one for the plugin's own files."""

from __future__ import annotations

import contextlib
import os
import sys
from contextlib import AbstractContextManager, nullcontext

from pytest_leakcheck.probes.cgroups import groups_of
from pytest_leakcheck.probes.memory import PAGE
from pytest_leakcheck.probes.own_descriptors import raised_limit

if sys.platform != "win32":
    # The function itself: a test may replace that of the module.
    from resource import RLIMIT_FSIZE, getrlimit


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


def room_for_files() -> AbstractContextManager[None]:
    """Raise the limit on file sizes while a report is written."""
    if sys.platform == "win32":
        return nullcontext()
    soft, hard = getrlimit(RLIMIT_FSIZE)
    return nullcontext() if soft == hard else raised_limit(RLIMIT_FSIZE, hard)
