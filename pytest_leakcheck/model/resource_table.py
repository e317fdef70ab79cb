"""List the resources that a budget can bound: one row of traits (`resources.Resource`) each.

The table is plain data, because a run without ``--leakcheck`` reads it for its markers and must import nothing else.
``instrument`` names the class or function in `probes` that reads the resource; it takes no arguments. The process tree
and the shared folders have none, because `runner.instruments` opens them.
"""

from __future__ import annotations

from typing import Any, Final


def _row(base: dict[str, Any], name: str, plural: str, flags: str = "", **traits: Any) -> dict[str, Any]:
    """Return the traits of a resource; `flags` are the traits that are true."""
    return {"name": name, "plural": plural, **base, **traits, **dict.fromkeys(flags.split(), True)}


_HANDLE: Final = {"unit": "count", "scarce": True, "made_of": "handles"}
_TREE: Final = _HANDLE | {"scope": "process tree", "in_phases": True}
_FOLDER: Final = _HANDLE | {"scope": "machine", "verb": "made"}
_PYTHON: Final = {"unit": "count", "exhausts": "memory", "in_python": True}
_MEMORY: Final = {"unit": "bytes", "made_of": "memory", "exhausts": "memory", "limit": " of memory"}

# The rows are in display order, which is also the order of judgment, except that child processes are judged first.
# Countable resources lead, because a process runs out of these first.
ROWS: Final = (
    _row(_TREE, "fd", "descriptors", handles="fds", verb="opened", exhausts="descriptors", limit=" (ulimit -n)"),
    _row(_TREE, "thread", "threads", "ends_by_itself", handles="threads", verb="started", exhausts="threads"),
    _row(_TREE, "process", "child processes", "ends_by_itself", handles="children", verb="started", exhausts="threads"),
    _row(_FOLDER, "shm", "shared-memory entries", handles="segments"),
    _row(_FOLDER, "disk", "temporary files", handles="files"),
    _row(
        _HANDLE,
        "task",
        "asyncio tasks",
        "ends_by_itself in_phases",
        handles="tasks",
        verb="started",
        instrument="library_counters:Tasks",
    ),
    # Tolerance: glibc counts a block freed into a thread's cache as used until the cache is flushed. In 60 clean series
    # of torch, pandas and PyAV loops, a tolerance of 16 bytes per iteration for this drift caused no false alarm.
    # Slack: the interpreter occasionally allocates a block of about 1 KiB (at the 1,024th call of a function).
    _row(
        _MEMORY,
        "heap",
        "bytes in use",
        "in_python in_phases paced",
        tolerance=16.0,
        grain=32,
        slack=4096,
        instrument="native_heap:Heap",
    ),
    _row(_PYTHON, "object", "gc objects", peak=False, made_of="objects", instrument="python_objects:Objects"),
    # Tolerance: pandas and pyarrow grow by 0.15 to 0.25 blocks per iteration, small caches by less.
    _row(
        _PYTHON,
        "block",
        "Python blocks",
        "paced",
        tolerance=0.5,
        slack=64,
        made_of="blocks",
        instrument="python_objects:Blocks",
    ),
    _row(
        _MEMORY,
        "arrow",
        "bytes in Arrow's pool",
        "buffers_only in_phases",
        grain=64,
        instrument="library_counters:ArrowPool",
    ),
    # scarce: the memory of live tensors is counted exactly, and runs out first of all memory. grain: allocators round
    # up to multiples of 512 bytes.
    _row(
        _MEMORY,
        "vram",
        "bytes on the device",
        "scarce buffers_only in_phases",
        grain=512,
        exhausts="device",
        limit=" of device memory",
        instrument="accelerators:open_vram",
    ),
    # grain: a mapping is at least one page. resolution: allocators map and unmap about a megabyte at a time.
    _row(
        _MEMORY,
        "mmap",
        "mapped bytes",
        "in_phases paced",
        tolerance=2048.0,
        grain=4096,
        resolution=1 << 20,
        handles="mappings",
        verb="mapped",
        instrument="memory:Mapped",
    ),
    # resolution: the allocator decides when to return pages, and kernels before 6.17 count pages in batches of up to 64
    # per CPU. tolerance: 1 KiB per iteration is a quarter of a page. default_rate: without a budget, resident memory is
    # judged only for what no exact counter shows (arenas of other allocators, pages of mappings that are touched
    # later), and only for growth above 1 MiB per iteration.
    _row(
        _MEMORY,
        "rss",
        "resident bytes",
        "in_python paced",
        tolerance=1024.0,
        grain=4096,
        resolution=64 * 4096,
        default_rate=1 << 20,
        instrument="memory:Rss",
    ),
)
