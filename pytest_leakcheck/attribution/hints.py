"""Give one line of advice for each known shape of leak.

A shape is a recognizable pattern in the cause of a leak (a `Culprit`) or in its survivors (`Held`). To add a shape, add
an entry to `SHAPES`, and a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.resources import find_resource


@dataclass(frozen=True, slots=True)
class Shape:
    """One known shape of leak: a condition, and the advice to the user what to change."""

    fits: Callable[[Culprit, Sequence[Held]], bool]
    advice: str


def _survivor_matches(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    """Return a condition that is met if the pattern matches the description of any survivor."""
    return lambda _culprit, held: any(re.search(pattern, one.what) for one in held)


def _call_path_matches(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    """Return a condition that is met if the pattern matches any frame of the call path, as ``file:function:call``.

    In a child process, the outer frames only show how the process was started, so they do not count.
    """

    def fits(culprit: Culprit, _held: Sequence[Held]) -> bool:
        where = culprit.where
        frames = where.path if where else ()
        if where and where.process:
            frames = where.path[where.path.index(where.site) :]
        return any(re.search(pattern, f"{frame.file}:{frame.function}:{frame.call}") for frame in frames)

    return fits


def _owner_holds(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    """Return a condition that is met if the pattern matches the description of what the owner holds."""
    return lambda culprit, _held: culprit.owner is not None and re.search(pattern, culprit.owner.holds) is not None


def _owner_matches(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    """Return a condition that is met if the pattern matches the owner's name, or any step of the path to the owner."""

    def fits(culprit: Culprit, _held: Sequence[Held]) -> bool:
        steps = culprit.owner.steps if culprit.owner else ()
        name = culprit.owner.name if culprit.owner else ""
        return any(re.search(pattern, text) for text in (name, *(f"{step.holder} {step.via}" for step in steps)))

    return fits


def _any_of(*fits: Callable[[Culprit, Sequence[Held]], bool]) -> Callable[[Culprit, Sequence[Held]], bool]:
    return lambda culprit, held: any(one(culprit, held) for one in fits)


def _for_handles(
    handles: str, fits: Callable[[Culprit, Sequence[Held]], bool]
) -> Callable[[Culprit, Sequence[Held]], bool]:
    """Return a condition that is met if `fits` is met and the resource has one of these kinds of handles."""
    kinds = handles.split()
    return lambda culprit, held: find_resource(culprit.resource).handles in kinds and fits(culprit, held)


def _cycle_matches(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    """Return a condition that is met if the pattern matches the type names of the cycle, separated by spaces."""
    return lambda culprit, _held: re.search(pattern, " ".join(culprit.cycle)) is not None


# The advice of the first shape that fits is used, so more specific shapes come first.
SHAPES: Final = (
    Shape(
        _cycle_matches(r"Container\b.*Stream"),
        "a PyAV container and its streams refer to each other: close() the container, or use `with av.open(...)`; "
        "closing or dropping an iterator over its frames does not close the container",
    ),
    Shape(
        _for_handles("children threads fds segments", _call_path_matches(r"torch/utils/data/dataloader\.py")),
        "a DataLoader iterator keeps its workers alive: use one loader for all epochs, or drop the iterator "
        "(with persistent_workers=True it lives as long as the loader does)",
    ),
    Shape(
        _owner_matches(r"suspended generator"),
        "a generator that is not exhausted keeps its local variables: close() it, or use contextlib.closing()",
    ),
    Shape(
        _owner_holds(r"CommitOperation"),
        "a huggingface_hub operation keeps the bytes of its file: call preupload_lfs_files() for each, which frees "
        "them, or pass a path",
    ),
    Shape(
        _any_of(_owner_holds(r"Tensor.*\bgraph\b"), _survivor_matches(r"Tensor.*with its graph")),
        "a tensor with a graph keeps the whole graph alive: store loss.item() or loss.detach()",
    ),
    Shape(
        _for_handles(
            "threads",
            _any_of(_survivor_matches(r"ThreadPoolExecutor"), _call_path_matches(r"concurrent/futures/thread\.py")),
        ),
        "an executor is not shut down: use `with ThreadPoolExecutor(...)`, call shutdown(), or share one executor",
    ),
    Shape(
        _for_handles(
            "children fds threads", _call_path_matches(r"(concurrent/futures/process|multiprocessing/pool)\.py")
        ),
        "a process pool is not shut down: use it in a `with` statement, or share one pool",
    ),
    Shape(
        _for_handles("segments", _call_path_matches(r"multiprocessing/shared_memory\.py")),
        "a shared-memory segment outlives the process: its creator must call unlink() after close()",
    ),
    Shape(
        _for_handles("segments", _call_path_matches(r"multiprocessing/(synchronize|context)\.py")),
        "a multiprocessing lock or semaphore is freed with its last reference: create it once, or drop it",
    ),
    Shape(
        _for_handles("children fds", _call_path_matches(r"subprocess\.py")),
        "a child process is not waited for: use `with subprocess.Popen(...)`, or wait() after terminate()",
    ),
    Shape(
        _for_handles("threads", _call_path_matches(r"threading\.py:Thread\.start")),
        "a thread does not end: signal it to stop, then join() it",
    ),
    Shape(
        _for_handles("files", _call_path_matches(r"tempfile\.py:(mkdtemp|mkstemp)")),
        "mkdtemp() and mkstemp() never remove what they create: use TemporaryDirectory() or NamedTemporaryFile(), "
        "or remove it yourself",
    ),
    Shape(
        _owner_matches(r"logging\.getLogger|\bLogger\b"),
        "a logging handler is added each time: add it once, or remove it when done",
    ),
    Shape(
        _owner_matches(r"lru_cache"),
        "an unbounded cache keeps every result: set maxsize, or clear it",
    ),
    Shape(
        _for_handles("tasks", lambda _culprit, _held: True),
        "an asyncio task is neither awaited nor cancelled: await it, or use asyncio.TaskGroup",
    ),
    Shape(
        _for_handles("fds", _call_path_matches(r":(open|socket|socketpair|pipe|create_connection)\(\)$")),
        "close() it, or use it in a `with` statement",
    ),
)


def hint_for(culprit: Culprit, held: Sequence[Held]) -> str:
    """Return the advice for the known shape of a cause; empty where no shape fits."""
    return next((shape.advice for shape in SHAPES if shape.fits(culprit, held)), "")
