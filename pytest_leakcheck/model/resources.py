"""Define the traits of a resource that a budget can bound, and look resources up by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resource_table import ROWS
from pytest_leakcheck.model.units import Unit

# Measured by an instrument, summed up from the requests of the program, taken from a model of a
# device, or predicted for work that was not done.
Kind: TypeAlias = Literal["measured", "accounted", "simulated", "predicted"]
# Units that can be identified one by one. Entries of a watched folder are segments or files; the
# others are attributes of `handles.Identities`.
Handles: TypeAlias = Literal[
    "",
    "fds",
    "threads",
    "children",
    "tasks",
    "ray_actors",
    "ray_placement_groups",
    "ray_refs",
    "ray_objects",
    "ray_workers",
    "segments",
    "files",
    "mappings",
]
# What one unit of the resource is; the search for the object that retains it depends on this.
MadeOf: TypeAlias = Literal["handles", "objects", "blocks", "memory", "references", "anything"]
# What the system runs out of when a resource grows.
Exhausts: TypeAlias = Literal["", "descriptors", "threads", "memory", "device"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A counter that a budget can bound.

    Attributes:
        name: The name used in markers (``<name>_budget``), code, JSON, reports and docs.
        unit: Of its amounts.
        plural: The name of several units in reports.
        scarce: The counter is exact, and the resource runs out, so it is judged after few
            iterations. The others are judged over a longer horizon, because caches fill (see
            `judge.judge_series`).
        tolerance: Growth per iteration that is never called a leak, in the unit of the resource:
            the drift of the counter on clean code.
        resolution: Levels closer than this cannot be distinguished, in the unit of the resource.
        grain: The smallest possible increase, in the unit of the resource.
        slack: The amount by which a level may be exceeded without a verdict against the test, in
            the unit of the resource, for occasional allocations of the interpreter and the
            allocator themselves.
        default: Judged if a test carries the mark ``leakcheck`` and names no resources.
        default_rate: Growth per iteration that is allowed if the resource is judged by default, in
            its unit. If above 0, only growth that no exact counter shows is then judged.
        scope: What the counter covers: this process, its process tree, the machine (a folder that
            other processes also use), or its cluster of Ray.
        peak: The counter can be read at each function call, so that a peak within a test is
            measured.
        made_of: What one unit is.
        handles: The kind of handles that it counts, or that its bytes belong to; empty if they
            cannot be distinguished.
        verb: The past participle for the creation of one unit.
        exhausts: What the system runs out of as the resource grows; empty if there is no error that
            reports it.
        limit: What follows the amount of its limit in reports, to tell which limit it is; may be
            empty.
        in_python: Python's allocators may have allocated it, so Python allocations are traced.
        buffers_only: Only buffers of arrays and tensors count, no Python objects.
        ends_by_itself: A unit may end by itself with a delay, so the plugin waits for that.
        in_phases: It can be read at any moment, so the amount added by each phase of an iteration
            is reported.
        paced: Too expensive to read after every iteration, so judged over many iterations.
        instrument: What reads it, as ``module:name`` of a class or function in `probes`; empty if
            it is read otherwise.
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
    default_rate: int = 0
    scope: str = "this process"
    peak: bool = True
    made_of: MadeOf = "anything"
    handles: Handles = ""
    verb: str = "allocated"
    exhausts: Exhausts = ""
    limit: str = ""
    in_python: bool = False
    buffers_only: bool = False
    ends_by_itself: bool = False
    in_phases: bool = False
    paced: bool = False
    instrument: str = ""

    @property
    def of_tree(self) -> bool:
        """Whether child processes are counted."""
        return self.scope == "process tree"

    @property
    def of_cluster(self) -> bool:
        """Whether it is of Ray, and may be in any process of its cluster."""
        return self.scope == "Ray cluster"

    @property
    def is_pooled(self) -> bool:
        """Whether programs pool its units (descriptors, threads): a pool grows until it is full."""
        return self.scarce and self.unit == "count" and self.made_of != "references"

    @property
    def step(self) -> int:
        """The least increase sure to show, in its unit; allocators may hide smaller ones."""
        return max(self.grain, self.resolution)

    @property
    def is_memory(self) -> bool:
        """Whether it is memory of the process or of a device, in bytes, blocks or objects."""
        return self.exhausts in ("memory", "device")

    @property
    def counts_python(self) -> bool:
        """Whether it counts exactly what Python allocates, so also what the plugin allocates."""
        return self.in_python and not self.resolution

    @property
    def in_python_bytes(self) -> bool:
        """Whether it counts bytes that Python's allocators may have allocated."""
        return self.in_python and self.unit == "bytes"


RESOURCES: Final[dict[str, Resource]] = {row["name"]: Resource(**row) for row in ROWS}
# Names that code outside the probes refers to. Everything else about a resource is in its row.
DESCRIPTORS: Final = "fd"
THREADS: Final = "thread"
# Child processes are judged before their descriptors and threads.
CHILDREN: Final = "process"
HEAP: Final = "heap"
OBJECTS: Final = "object"
BLOCKS: Final = "block"
DEVICE_MEMORY: Final = "vram"
DISK: Final = "disk"
MAPPED: Final = "mmap"
REFERENCES: Final = "reference"
# Its peak also uses the kernel's high-water mark, and includes child processes, observed from the
# supervising process.
RESIDENT: Final = "rss"

# A user-defined counter. It is exact, and its units are expected not to accumulate.
_GAUGE_RESOURCE: Final = Resource("gauge", "count", "units", scarce=True)
GAUGE_PREFIX: Final = "gauge:"


def find_resource(name: str) -> Resource:
    """Return a resource by its name, or raise `KeyError`; all ``gauge:<name>`` share one."""
    return _GAUGE_RESOURCE if name.startswith(GAUGE_PREFIX) else RESOURCES[name]


class OfResource:
    """A value that is about one resource, which it names."""

    __slots__ = ()

    resource: str

    @property
    def traits(self) -> Resource:
        return find_resource(self.resource)

    def check(self) -> None:
        """Raise `InputError` for a value from a file if there is no such resource."""
        check_resource(self.resource)


def check_resource(name: str, field: str = "resource") -> None:
    """Raise `InputError`, which begins with the name of the field, if there is no such resource."""
    if name not in RESOURCES and not name.startswith(GAUGE_PREFIX):
        raise InputError(
            f"{field}: expected one of {', '.join(RESOURCES)} or {GAUGE_PREFIX}NAME, got {name!r}"
        )


def exhausting(what: Exhausts) -> tuple[str, ...]:
    """List the resources whose growth exhausts the given system resource."""
    return tuple(name for name, resource in RESOURCES.items() if what and resource.exhausts == what)


def added_rows() -> dict[str, Resource]:
    """Return the resources that the project has added, by name."""
    own = {row["name"] for row in ROWS}
    return {name: resource for name, resource in RESOURCES.items() if name not in own}


@contextmanager
def with_rows_of(rows: Mapping[str, Resource]) -> Iterator[None]:
    """Add another project's missing `added_rows` to `RESOURCES` while a report is rendered."""
    new = [name for name in rows if name not in RESOURCES]
    RESOURCES.update((name, rows[name]) for name in new)
    try:
        yield
    finally:
        for name in new:
            del RESOURCES[name]
