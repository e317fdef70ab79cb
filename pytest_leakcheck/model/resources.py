"""The resources that can be bounded: one row each, with what a budget and a report need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.units import Unit

# How a reading came about: by an instrument, summed up from what was asked for, of a model, or of work that was not done.
Kind: TypeAlias = Literal["measured", "accounted", "simulated", "predicted"]
# Kinds of handles. The entries of a folder are segments or files; the others are attributes of `identity.Identities`.
Handles: TypeAlias = Literal["", "fds", "threads", "children", "tasks", "segments", "files", "mappings"]
# What a unit of the resource is, for the search for its owner.
MadeOf: TypeAlias = Literal["handles", "objects", "blocks", "memory", "anything"]
Exhausts: TypeAlias = Literal["", "descriptors", "threads", "memory", "device"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A counter that a test may be held to.

    Attributes:
        name: The word used alike in markers (``<name>_budget``), code, JSON, report and docs.
        unit: ``"count"`` or ``"bytes"``.
        plural: What the report calls several of it.
        scarce: An exact counter of things that run out (descriptors, threads, processes). It has no noise, so it is
            judged after few iterations; the others are judged on a horizon, since caches fill (see `judge.growth`).
        tolerance: Growth per iteration that is never called a leak, in the unit of the resource: what the counter
            itself wanders by on clean code.
        resolution: Levels closer than this cannot be told apart, in the unit of the resource.
        grain: The least that it can grow by, in the unit of the resource.
        slack: A level that is exceeded by no more than this is not held against a test: what the interpreter and the
            allocator make for themselves, once in a while.
        default: Judged when a test carries ``leakcheck`` and names no resources.
        scope: What the counter covers: this process, its whole tree, or the machine (a folder that others use too).
        peak: It can be read at each call, so that a peak inside a test is seen.
        made_of: What one of it is: a handle, an object, a block, a byte of memory, or anything.
        handles: Which kind of handles it counts, or has behind its bytes; empty where they cannot be told apart.
        verb: How one of it comes to be.
        exhausts: What the system runs out of as it grows; empty for nothing that it reports.
        ceiling: A ceiling can be set for it (``leakcheck_ceiling``).
        in_python: Python's allocators may have handed it out, so allocations of Python are traced.
        buffers_only: Memory of the buffers of arrays and tensors alone; no Python object is part of it.
        counts_small: Memory that includes the small blocks of Python's own allocator.
        thread_caches: The blocks that the C library keeps for each thread count as in use.
        exact_counter: The resource that tells exactly whether memory of the process grows; empty where this one does.
        ends_by_itself: One of it may end a little later without anybody's doing, so it is waited for.
        of_test: Given by the test itself (`leakcheck.gauge`): read only while its body runs, and each rank has its own.
        of_block: Held to 0 by ``leakcheck.budget()`` without levels.
        witness: Read in every repetition, judged or not, for a line beside a red ("seen, not judged").
        in_phases: It can be read at any moment, so each phase of an iteration shows what it adds.
        paced: Too expensive to be read in every row (`runner.pacing`); judged over many rows.
        includes_harness: Exact enough to show the harness's own work, which is subtracted.
        per_tracer: How much of it coverage.py keeps for each thread at most, in its unit.
        per_waiting_thread: How much more of it a thread may hold while it waits than it did at the start, in its unit.
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
    made_of: MadeOf = "anything"
    handles: Handles = ""
    verb: str = "allocated"
    exhausts: Exhausts = ""
    ceiling: bool = False
    in_python: bool = False
    buffers_only: bool = False
    counts_small: bool = False
    thread_caches: bool = False
    exact_counter: str = ""
    ends_by_itself: bool = False
    of_test: bool = False
    of_block: bool = False
    witness: bool = False
    in_phases: bool = False
    paced: bool = False
    includes_harness: bool = False
    per_tracer: int = 0
    per_waiting_thread: int = 0

    @property
    def of_tree(self) -> bool:
        """Whether child processes have a part in it."""
        return self.scope == "process tree"

    @property
    def is_memory(self) -> bool:
        """Whether it is memory of the process or of a device, in bytes, blocks or objects."""
        return self.exhausts in ("memory", "device")

    @property
    def in_python_bytes(self) -> bool:
        """Whether it counts the bytes that Python's allocators may have handed out."""
        return self.in_python and self.unit == "bytes"


_handle: Final = partial(Resource, unit="count", scarce=True, made_of="handles")
_of_tree: Final = partial(_handle, scope="process tree", of_block=True, in_phases=True)
_of_folder: Final = partial(_handle, scope="machine", of_block=True, verb="made")
_of_python: Final = partial(Resource, unit="count", exhausts="memory", in_python=True, includes_harness=True)
_memory: Final = partial(Resource, unit="bytes", made_of="memory", exhausts="memory")

# In the order in which they are shown and, but for children, judged: what is scarce kills a process first.
RESOURCES: Final[dict[str, Resource]] = {
    resource.name: resource
    for resource in (
        _of_tree("fd", plural="descriptors", handles="fds", verb="opened", exhausts="descriptors", ceiling=True),
        _of_tree(
            "thread", plural="threads", handles="threads", verb="started", exhausts="threads", ends_by_itself=True
        ),
        _of_tree(
            "process",
            plural="child processes",
            handles="children",
            verb="started",
            exhausts="threads",
            ends_by_itself=True,
        ),
        _of_folder("shm", plural="shared-memory entries", handles="segments"),
        _of_folder("disk", plural="temporary files", handles="files"),
        _handle("task", plural="asyncio tasks", handles="tasks", verb="started", ends_by_itself=True, in_phases=True),
        # glibc counts a block that is freed into a thread's cache as used until it is flushed: over 60 clean series of
        # torch, pandas and PyAV loops, 16 bytes per iteration bounded that wandering with no false alarm.
        # The interpreter itself makes a block of about a KiB once in a while (a function called for the 1,024th time).
        # Of a tracer of coverage 7, 620 to 670 bytes were measured.
        _memory(
            "heap",
            plural="bytes in use",
            tolerance=16.0,
            grain=32,
            slack=4096,
            in_python=True,
            includes_harness=True,
            thread_caches=True,
            witness=True,
            in_phases=True,
            paced=True,
            per_tracer=1024,
        ),
        # A waiting thread holds its locals, and what it waits for: tqdm's monitor, which looks around every 10 seconds,
        # holds 2 to 6 objects more afterwards.
        _of_python(
            "object",
            plural="gc objects",
            peak=False,
            made_of="objects",
            witness=True,
            per_tracer=8,
            per_waiting_thread=8,
        ),
        # pandas and pyarrow creep by 0.15 to 0.25 blocks per iteration, small caches by less.
        _of_python(
            "block", plural="Python blocks", tolerance=0.5, slack=64, made_of="blocks", paced=True, per_tracer=16
        ),
        _memory("arrow", plural="bytes in Arrow's pool", grain=64, buffers_only=True, in_phases=True),
        # What live tensors occupy. Exact, and the scarcest of all memory; allocators give it out by 512 bytes.
        _memory(
            "vram",
            plural="bytes on the device",
            scarce=True,
            grain=512,
            exhausts="device",
            ceiling=True,
            buffers_only=True,
            in_phases=True,
        ),
        # A mapping is a page at least; allocators map and unmap by the megabyte.
        _memory(
            "mmap",
            plural="mapped bytes",
            tolerance=2048.0,
            grain=4096,
            resolution=1 << 20,
            handles="mappings",
            verb="mapped",
            in_phases=True,
            paced=True,
        ),
        # Pages are returned when the allocator likes. Kernels before 6.17 also count them in batches of up to 64 pages
        # per CPU, hence the resolution; 1 KiB per iteration is a quarter page.
        _memory(
            "rss",
            plural="resident bytes",
            tolerance=1024.0,
            grain=4096,
            resolution=64 * 4096,
            default=False,
            ceiling=True,
            in_python=True,
            counts_small=True,
            exact_counter="heap",
            paced=True,
        ),
    )
}
# The one whose own counter is the number of child processes: they are judged before what they hold.
CHILDREN: Final = "process"
# The one whose peak is the kernel's own mark, and includes what children are seen to have from outside.
RESIDENT: Final = "rss"

# A counter of the user's own: exact, and of things that should not pile up.
_GAUGE: Final = Resource("gauge", "count", "units", scarce=True, of_test=True)
GAUGE_PREFIX: Final = "gauge:"


def find_resource(name: str) -> Resource:
    """The row of a resource, or the one that serves every ``gauge:<name>``.

    Raises:
        KeyError: No such resource.
    """
    return _GAUGE if name.startswith(GAUGE_PREFIX) else RESOURCES[name]


def exhausting(what: Exhausts) -> tuple[str, ...]:
    """List the resources that grow towards the same end."""
    return tuple(name for name, resource in RESOURCES.items() if what and resource.exhausts == what)
