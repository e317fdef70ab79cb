"""List the resources that a budget can bound: one row of traits (`resources.Resource`) each.

The table is plain data, because a run without ``--leakcheck`` reads it for its markers and must
import nothing else. ``instrument`` names the class or function in `probes` that reads the resource;
it takes no arguments. The process tree and the shared folders have none, because `runner.readings`
opens them.
"""

from __future__ import annotations

from typing import Any, Final


def _row(
    base: dict[str, Any], name: str, plural: str, flags: str, instrument: str, **traits: Any
) -> dict[str, Any]:
    """Return the traits of a resource; `flags` are the traits that are true."""
    own = {
        "name": name,
        "plural": plural,
        "instrument": instrument,
        **dict.fromkeys(flags.split(), True),
    }
    return {**base, **own, **traits}


def marker_form(name: str, unit: str, *, peak: bool) -> str:
    """Return the signature of the mark that bounds a resource, with an example level."""
    example = "0" if unit == "count" else '"1 MiB"'
    options = (
        f"per_iteration=0, {f'peak={example}, ' if peak else ''}over=N, unclosed='fail', reason=''"
    )
    return f"{name}_budget({example}, *, {options})"


_HANDLE: Final = {"unit": "count", "scarce": True, "made_of": "handles", "verb": "started"}
_TREE: Final = _HANDLE | {"scope": "process tree", "in_phases": True, "exhausts": "threads"}
_FILE: Final = _TREE | {"verb": "opened", "exhausts": "descriptors", "limit": " (ulimit -n)"}
_FOLDER: Final = _HANDLE | {"scope": "machine", "verb": "made"}
_RAY: Final = {"scope": "Ray cluster", "peak": False, "verb": "made"}
_RAY_HANDLE: Final = _HANDLE | _RAY
_PYTHON: Final = {"unit": "count", "exhausts": "memory", "in_python": True}
_MEMORY: Final = {"unit": "bytes", "made_of": "memory", "exhausts": "memory", "limit": " of memory"}
_DEVICE: Final = _MEMORY | {"exhausts": "device", "limit": " of device memory"}
_HEAP: Final = _MEMORY | {"tolerance": 16.0, "grain": 32, "slack": 4096}
# grain: a mapping is at least one page.
_MAPPED: Final = _MEMORY | {"tolerance": 2048.0, "grain": 4096, "resolution": 1 << 20}
_RESIDENT: Final = _MEMORY | {
    "tolerance": 1024.0,
    "grain": 4096,
    "resolution": 64 * 4096,
    "default_rate": 1 << 18,
}
_OBJECTS, _BLOCKS = "runtime_counters:Objects", "runtime_counters:Blocks"

# The rows are in display order, which is also the order of judgment, except that child processes
# are judged first. Countable resources lead, because a process runs out of these first.
ROWS: Final = (
    _row(_FILE, "fd", "descriptors", "", "", handles="fds"),
    _row(_TREE, "thread", "threads", "ends_by_itself", "", handles="threads"),
    _row(_TREE, "process", "child processes", "ends_by_itself", "", handles="children"),
    _row(_FOLDER, "shm", "shared-memory entries", "", "", handles="segments"),
    _row(_FOLDER, "disk", "temporary files", "", "", handles="files"),
    _row(
        _HANDLE,
        "task",
        "asyncio tasks",
        "ends_by_itself in_phases",
        "runtime_counters:Tasks",
        handles="tasks",
    ),
    # Ray's counters lag a little: a reference is dropped when the task that uses it has ended. An
    # actor comes before the references, objects and workers that it brings.
    _row(
        _RAY_HANDLE,
        "ray_actor",
        "Ray actors",
        "ends_by_itself paced",
        "ray_counters:Actors",
        handles="ray_actors",
    ),
    _row(
        _RAY_HANDLE,
        "ray_placement_group",
        "Ray placement groups",
        "ends_by_itself paced",
        "ray_counters:PlacementGroups",
        handles="ray_placement_groups",
    ),
    _row(
        _RAY_HANDLE,
        "ray_ref",
        "Ray references",
        "ends_by_itself",
        "ray_counters:Refs",
        handles="ray_refs",
    ),
    _row(
        _RAY_HANDLE,
        "ray_object",
        "Ray objects",
        "ends_by_itself paced",
        "ray_counters:Objects",
        handles="ray_objects",
    ),
    _row(
        _RAY_HANDLE,
        "ray_worker",
        "Ray workers",
        "ends_by_itself paced",
        "ray_counters:Workers",
        handles="ray_workers",
    ),
    _row(
        _RAY,
        "plasma",
        "bytes of Ray objects",
        "ends_by_itself paced",
        "ray_counters:Plasma",
        unit="bytes",
        handles="ray_objects",
    ),
    # Tolerance: glibc counts a block freed into a thread's cache as used until the cache is
    # flushed. In 60 clean series of torch, pandas and PyAV loops, a tolerance of 16 bytes per
    # iteration for this drift caused no false alarm. Slack: the interpreter occasionally allocates
    # a block of about 1 KiB (at the 1,024th call of a function).
    _row(_HEAP, "heap", "bytes in use", "in_python in_phases paced", "native_heap:Heap"),
    _row(_PYTHON, "object", "gc objects", "", _OBJECTS, peak=False, made_of="objects"),
    # Tolerance: pandas and pyarrow grow by 0.15 to 0.25 blocks per iteration, small caches by less.
    _row(
        _PYTHON,
        "block",
        "Python blocks",
        "paced",
        _BLOCKS,
        tolerance=0.5,
        slack=64,
        made_of="blocks",
    ),
    _row(
        _MEMORY,
        "arrow",
        "bytes in Arrow's pool",
        "buffers_only in_phases",
        "runtime_counters:ArrowPool",
        grain=64,
    ),
    # scarce: the memory of live tensors is counted exactly, and runs out first of all memory.
    # grain: allocators round up to multiples of 512 bytes.
    _row(
        _DEVICE,
        "vram",
        "bytes on the device",
        "scarce buffers_only in_phases",
        "accelerators:open_vram",
        grain=512,
    ),
    # resolution: allocators map and unmap about a megabyte at a time.
    _row(
        _MAPPED,
        "mmap",
        "mapped bytes",
        "in_phases paced",
        "memory:Mapped",
        handles="mappings",
        verb="mapped",
    ),
    # resolution: the allocator decides when to return pages, and kernels before 6.17 count pages in
    # batches of up to 64 per CPU. tolerance: 1 KiB per iteration is a quarter of a page.
    # default_rate: without a budget, resident memory is judged only for what no exact counter shows
    # (arenas of other allocators, pages of mappings that are touched later), and only for growth
    # above 256 KiB per iteration.
    _row(_RESIDENT, "rss", "resident bytes", "in_python paced", "memory:Rss"),
    # No default: a reading takes some 10 ms beside large libraries.
    _row(
        {"unit": "count", "scarce": True, "slack": 16, "verb": "changed"},
        "reference",
        "references to one object",
        "",
        "reference_counts:References",
        made_of="references",
        default=False,
        peak=False,
    ),
)
