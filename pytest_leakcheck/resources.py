"""The resources that can be bounded: one row each, with what a budget and a report need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.units import Unit

# How a reading came about: by an instrument, summed up from what was asked for, of a model, or of work that was not done.
Kind: TypeAlias = Literal["measured", "accounted", "simulated", "predicted"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A counter that a test may be held to.

    Attributes:
        name: The word used alike in markers (``<name>_budget``), code, JSON, report and docs.
        unit: ``"count"`` or ``"bytes"``.
        plural: What the report calls several of it.
        scarce: An exact counter of things that run out (descriptors, threads, processes). It has no noise, so it is
            judged after few iterations; the others are judged on a horizon, since caches fill (see `ratchet`).
        tolerance: Growth per iteration that is never called a leak, in the unit of the resource: what the counter
            itself wanders by on clean code.
        resolution: Levels closer than this cannot be told apart, in the unit of the resource.
        grain: The least that it can grow by, in the unit of the resource.
        slack: A level that is exceeded by no more than this is not held against a test: what the interpreter and the
            allocator make for themselves, once in a while.
        default: Judged when a test carries ``leakcheck`` and names no resources.
        scope: What the counter covers: this process, its whole tree, or the machine (a folder that others use too).
        peak: It can be read at each call, so that a peak inside a test is seen.
    """

    name: str
    unit: Unit
    plural: str
    scarce: bool = False
    tolerance: float = 0.0
    resolution: int = 0
    grain: int = 1
    slack: int = 0
    default: bool = True
    scope: str = "this process"
    peak: bool = True


# In the order in which they are shown and, but for children, judged: what is scarce kills a process first.
RESOURCES: Final[dict[str, Resource]] = {
    resource.name: resource
    for resource in (
        Resource("fd", "count", "descriptors", scarce=True, scope="process tree"),
        Resource("thread", "count", "threads", scarce=True, scope="process tree"),
        Resource("process", "count", "child processes", scarce=True, scope="process tree"),
        Resource("shm", "count", "shared-memory entries", scarce=True, scope="machine"),
        Resource("disk", "count", "temporary files", scarce=True, scope="machine"),
        Resource("task", "count", "asyncio tasks", scarce=True),
        # glibc counts a block that is freed into a thread's cache as used until it is flushed: over 60 clean series of
        # torch, pandas and PyAV loops, 16 bytes per iteration bounded that wandering with no false alarm.
        # The interpreter itself makes a block of about a KiB once in a while (a function called for the 1,024th time).
        Resource("heap", "bytes", "bytes in use", tolerance=16.0, grain=32, slack=4096),
        Resource("object", "count", "gc objects", peak=False),
        # pandas and pyarrow creep by 0.15 to 0.25 blocks per iteration, small caches by less.
        Resource("block", "count", "Python blocks", tolerance=0.5, slack=64),
        Resource("arrow", "bytes", "bytes in Arrow's pool", grain=64),
        # What live tensors occupy. Exact, and the scarcest of all memory; allocators give it out by 512 bytes.
        Resource("vram", "bytes", "bytes on the device", scarce=True, grain=512),
        # A mapping is a page at least; allocators map and unmap by the megabyte.
        Resource("mmap", "bytes", "mapped bytes", tolerance=2048.0, grain=4096, resolution=1 << 20),
        # Pages are returned when the allocator likes. Kernels before 6.17 also count them in batches of up to 64 pages
        # per CPU, hence the resolution; 1 KiB per iteration is a quarter page.
        Resource("rss", "bytes", "resident bytes", tolerance=1024.0, grain=4096, resolution=64 * 4096, default=False),
    )
}

# A counter of the user's own: exact, and of things that should not pile up.
_GAUGE: Final = Resource("gauge", "count", "units", scarce=True)
GAUGE_PREFIX: Final = "gauge:"


def find_resource(name: str) -> Resource:
    """The row of a resource, or the one that serves every ``gauge:<name>``.

    Raises:
        KeyError: No such resource.
    """
    return _GAUGE if name.startswith(GAUGE_PREFIX) else RESOURCES[name]
