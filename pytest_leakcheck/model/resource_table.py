"""List the resources that a budget can bound: one row of traits (`resources.Resource`) each.

The table is plain data, because a run without ``--leakcheck`` reads it for its markers and must import nothing else.
``base`` names a row of `BASES`, whose traits the row extends or overrides. ``instrument`` names the class or function
in `probes` that reads the resource; it takes no arguments. The process tree and the shared folders have none, because
`runner.instruments` opens them.
"""

from __future__ import annotations

from typing import Any, Final

BASES: Final[dict[str, dict[str, Any]]] = {
    "handle": {"unit": "count", "scarce": True, "made_of": "handles"},
    "tree": {
        "unit": "count",
        "scarce": True,
        "made_of": "handles",
        "scope": "process tree",
        "of_block": True,
        "in_phases": True,
    },
    "folder": {
        "unit": "count",
        "scarce": True,
        "made_of": "handles",
        "scope": "machine",
        "of_block": True,
        "verb": "made",
    },
    "python": {"unit": "count", "exhausts": "memory", "in_python": True, "includes_harness": True},
    "memory": {"unit": "bytes", "made_of": "memory", "exhausts": "memory", "limit": " of memory"},
}

# The rows are in display order, which is also the order of judgment, except that child processes are judged first.
# Countable resources lead, because a process runs out of these first.
ROWS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "fd",
        "base": "tree",
        "plural": "descriptors",
        "handles": "fds",
        "verb": "opened",
        "exhausts": "descriptors",
        "limit": " (ulimit -n)",
        "ceiling": True,
    },
    {
        "name": "thread",
        "base": "tree",
        "plural": "threads",
        "handles": "threads",
        "verb": "started",
        "exhausts": "threads",
        "ends_by_itself": True,
    },
    {
        "name": "process",
        "base": "tree",
        "plural": "child processes",
        "handles": "children",
        "verb": "started",
        "exhausts": "threads",
        "ends_by_itself": True,
    },
    {"name": "shm", "base": "folder", "plural": "shared-memory entries", "handles": "segments"},
    {"name": "disk", "base": "folder", "plural": "temporary files", "handles": "files"},
    {
        "name": "task",
        "base": "handle",
        "plural": "asyncio tasks",
        "instrument": "library_counters:Tasks",
        "handles": "tasks",
        "verb": "started",
        "ends_by_itself": True,
        "in_phases": True,
    },
    # Tolerance: glibc counts a block freed into a thread's cache as used until the cache is flushed. In 60 clean series
    # of torch, pandas and PyAV loops, a tolerance of 16 bytes per iteration for this drift caused no false alarm.
    # Slack: the interpreter occasionally allocates a block of about 1 KiB (at the 1,024th call of a function).
    # per_tracer: a tracer of coverage.py 7 was measured to retain 620 to 670 bytes.
    {
        "name": "heap",
        "base": "memory",
        "plural": "bytes in use",
        "instrument": "native_heap:Heap",
        "tolerance": 16.0,
        "grain": 32,
        "slack": 4096,
        "in_python": True,
        "includes_harness": True,
        "thread_caches": True,
        "witness": True,
        "in_phases": True,
        "paced": True,
        "per_tracer": 1024,
    },
    {
        "name": "object",
        "base": "python",
        "plural": "gc objects",
        "instrument": "python_objects:Objects",
        "peak": False,
        "made_of": "objects",
        "witness": True,
        "per_tracer": 8,
    },
    # Tolerance: pandas and pyarrow grow by 0.15 to 0.25 blocks per iteration, small caches by less.
    {
        "name": "block",
        "base": "python",
        "plural": "Python blocks",
        "instrument": "python_objects:Blocks",
        "tolerance": 0.5,
        "slack": 64,
        "made_of": "blocks",
        "paced": True,
        "per_tracer": 16,
    },
    {
        "name": "arrow",
        "base": "memory",
        "plural": "bytes in Arrow's pool",
        "instrument": "library_counters:ArrowPool",
        "grain": 64,
        "buffers_only": True,
        "in_phases": True,
    },
    # scarce: the memory of live tensors is counted exactly, and runs out first of all memory. grain: allocators round
    # up to multiples of 512 bytes.
    {
        "name": "vram",
        "base": "memory",
        "plural": "bytes on the device",
        "instrument": "accelerators:open_vram",
        "scarce": True,
        "grain": 512,
        "exhausts": "device",
        "limit": " of device memory",
        "ceiling": True,
        "buffers_only": True,
        "in_phases": True,
    },
    # grain: a mapping is at least one page. resolution: allocators map and unmap about a megabyte at a time.
    {
        "name": "mmap",
        "base": "memory",
        "plural": "mapped bytes",
        "instrument": "memory:Mapped",
        "tolerance": 2048.0,
        "grain": 4096,
        "resolution": 1 << 20,
        "handles": "mappings",
        "verb": "mapped",
        "in_phases": True,
        "paced": True,
    },
    # resolution: the allocator decides when to return pages, and kernels before 6.17 count pages in batches of up to 64
    # per CPU. tolerance: 1 KiB per iteration is a quarter of a page. default_rate: without a budget, resident memory is
    # judged only for what no exact counter shows (arenas of other allocators, pages of mappings that are touched
    # later), and only for growth above 1 MiB per iteration.
    {
        "name": "rss",
        "base": "memory",
        "plural": "resident bytes",
        "instrument": "memory:Rss",
        "tolerance": 1024.0,
        "grain": 4096,
        "resolution": 64 * 4096,
        "default_rate": 1 << 20,
        "ceiling": True,
        "in_python": True,
        "counts_small": True,
        "exact_counter": "heap",
        "paced": True,
    },
)
