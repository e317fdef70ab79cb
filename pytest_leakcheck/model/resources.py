"""Define the table of resources that a budget can bound, one row each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.units import Unit

# How a reading was obtained: measured by an instrument, summed up from the requests of the program, taken from a model of
# a device, or predicted for work that was not done.
Kind: TypeAlias = Literal["measured", "accounted", "simulated", "predicted"]
# Kinds of handles. Entries of a watched folder are segments or files; the others are attributes of `live_handles.Identities`.
Handles: TypeAlias = Literal["", "fds", "threads", "children", "tasks", "segments", "files", "mappings"]
# What one unit of the resource is; the search for the owner depends on it.
MadeOf: TypeAlias = Literal["handles", "objects", "blocks", "memory", "anything"]
# What the system runs out of when a resource grows.
Exhausts: TypeAlias = Literal["", "descriptors", "threads", "memory", "device"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A counter that a budget can bound.

    Attributes:
        name: The name used in markers (``<name>_budget``), code, JSON, reports and docs.
        unit: ``"count"`` or ``"bytes"``.
        plural: The name of several units in reports.
        scarce: The counter is exact, and the resource runs out (descriptors, threads, processes, device memory). Without
            noise it is judged after few iterations; the others are judged over a horizon, since caches fill (see
            `judge.judge_series`).
        tolerance: Growth per iteration that is never called a leak, in the unit of the resource: the drift of the counter
            on clean code.
        resolution: Levels closer than this cannot be distinguished, in the unit of the resource.
        grain: The smallest possible increase, in the unit of the resource.
        slack: The amount by which a level may be exceeded without a verdict against the test, in the unit of the
            resource: occasional allocations of the interpreter and the allocator themselves.
        default: Judged if a test carries ``leakcheck`` and names no resources.
        scope: What the counter covers: this process, its process tree, or the machine (a folder that other processes also
            use).
        peak: The counter can be read at each call, so that a peak within a test is measured.
        made_of: What one unit is: a handle, an object, a block, a byte of memory, or anything.
        handles: The kind of handles that it counts, or that its bytes belong to; empty if they cannot be distinguished.
        verb: The past participle for the creation of one unit.
        exhausts: What the system runs out of as the resource grows; empty if there is no error that reports it.
        ceiling: The mark ``leakcheck_ceiling`` can limit it.
        in_python: Python's allocators may have allocated it, so Python allocations are traced.
        buffers_only: Only buffers of arrays and tensors count, no Python objects.
        counts_small: The memory includes the small blocks of Python's own allocator.
        thread_caches: Freed blocks that the C library keeps for each thread count as in use.
        exact_counter: The resource that shows exactly whether the memory of the process grows; empty if this one does.
        ends_by_itself: A unit may end by itself with a delay, so the harness waits for it.
        of_test: Defined by the test (`leakcheck.gauge`): read only while its body runs, separately for each rank.
        of_block: Bounded by 0 in ``leakcheck.budget()`` without levels.
        witness: Read in every repetition, judged or not, to report it next to a failing verdict ("seen, not judged").
        in_phases: It can be read at any moment, so the amount added by each phase of an iteration is reported.
        paced: Too expensive to read after every iteration (`runner.pacing`), so judged over many iterations.
        includes_harness: Exact enough to show the allocations of the harness, which are subtracted.
        per_tracer: The most that coverage.py retains for each thread, in the unit of the resource.
        per_waiting_thread: The most that a waiting thread may hold in addition to its holdings at the start, in the unit of
            the resource.
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
        """Whether child processes are counted."""
        return self.scope == "process tree"

    @property
    def is_memory(self) -> bool:
        """Whether it is memory of the process or of a device, in bytes, blocks or objects."""
        return self.exhausts in ("memory", "device")

    @property
    def in_python_bytes(self) -> bool:
        """Whether it counts bytes that Python's allocators may have allocated."""
        return self.in_python and self.unit == "bytes"


_handle_resource: Final = partial(Resource, unit="count", scarce=True, made_of="handles")
_tree_resource: Final = partial(_handle_resource, scope="process tree", of_block=True, in_phases=True)
_folder_resource: Final = partial(_handle_resource, scope="machine", of_block=True, verb="made")
_python_resource: Final = partial(Resource, unit="count", exhausts="memory", in_python=True, includes_harness=True)
_memory_resource: Final = partial(Resource, unit="bytes", made_of="memory", exhausts="memory")

# In display order, which is also the order of judgement except that child processes are judged first. Countable resources
# lead, since a process dies of these first.
RESOURCES: Final[dict[str, Resource]] = {
    resource.name: resource
    for resource in (
        _tree_resource("fd", plural="descriptors", handles="fds", verb="opened", exhausts="descriptors", ceiling=True),
        _tree_resource(
            "thread", plural="threads", handles="threads", verb="started", exhausts="threads", ends_by_itself=True
        ),
        _tree_resource(
            "process",
            plural="child processes",
            handles="children",
            verb="started",
            exhausts="threads",
            ends_by_itself=True,
        ),
        _folder_resource("shm", plural="shared-memory entries", handles="segments"),
        _folder_resource("disk", plural="temporary files", handles="files"),
        _handle_resource(
            "task", plural="asyncio tasks", handles="tasks", verb="started", ends_by_itself=True, in_phases=True
        ),
        # Tolerance: glibc counts a block freed into a thread's cache as used until the cache is flushed; in 60 clean series
        # of torch, pandas and PyAV loops, 16 bytes per iteration bounded this drift without a false alarm.
        # Slack: the interpreter occasionally allocates a block of about 1 KiB (at the 1,024th call of a function).
        # per_tracer: a tracer of coverage 7 was measured to retain 620 to 670 bytes.
        _memory_resource(
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
        # per_waiting_thread: a waiting thread holds its locals and the object that it waits for. The monitor thread of tqdm,
        # which wakes up every 10 seconds, holds 2 to 6 more objects afterwards.
        _python_resource(
            "object",
            plural="gc objects",
            peak=False,
            made_of="objects",
            witness=True,
            per_tracer=8,
            per_waiting_thread=8,
        ),
        # Tolerance: pandas and pyarrow grow by 0.15 to 0.25 blocks per iteration, small caches by less.
        _python_resource(
            "block", plural="Python blocks", tolerance=0.5, slack=64, made_of="blocks", paced=True, per_tracer=16
        ),
        _memory_resource("arrow", plural="bytes in Arrow's pool", grain=64, buffers_only=True, in_phases=True),
        # Memory of live tensors: exact, and the first memory to run out. Allocators round up to multiples of 512 bytes.
        _memory_resource(
            "vram",
            plural="bytes on the device",
            scarce=True,
            grain=512,
            exhausts="device",
            ceiling=True,
            buffers_only=True,
            in_phases=True,
        ),
        # A mapping is at least one page; allocators map and unmap about a megabyte at a time, hence the resolution.
        _memory_resource(
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
        # The allocator decides when to return pages. Kernels before 6.17 also count pages in batches of up to 64 per CPU,
        # hence the resolution. The tolerance of 1 KiB per iteration is a quarter of a page.
        _memory_resource(
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
# The resource that counts child processes. It is judged before the descriptors and threads of these processes.
CHILDREN: Final = "process"
# The resource whose peak uses the kernel's high-water mark and includes child processes, observed from their supervisor.
RESIDENT: Final = "rss"

# A user-defined counter. It is exact, and its units are expected not to accumulate.
_GAUGE_RESOURCE: Final = Resource("gauge", "count", "units", scarce=True, of_test=True)
GAUGE_PREFIX: Final = "gauge:"


def find_resource(name: str) -> Resource:
    """Return the row of a resource; all names ``gauge:<name>`` share one row.

    Raises:
        KeyError: There is no such resource.
    """
    return _GAUGE_RESOURCE if name.startswith(GAUGE_PREFIX) else RESOURCES[name]


def exhausting(what: Exhausts) -> tuple[str, ...]:
    """List the resources whose growth exhausts the given system resource."""
    return tuple(name for name, resource in RESOURCES.items() if what and resource.exhausts == what)
