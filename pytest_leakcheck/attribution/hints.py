"""Known shapes of leaks, each with one line of advice. A new one is a row of `SHAPES` and a test."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.model.culprit import Culprit, Held
from pytest_leakcheck.model.resources import find_resource


@dataclass(frozen=True, slots=True)
class Shape:
    """One known shape.

    Attributes:
        fits: Whether a finding has it.
        advice: What to do.
    """

    fits: Callable[[Culprit, Sequence[Held]], bool]
    advice: str


def _held(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    return lambda _culprit, held: any(re.search(pattern, one.what) for one in held)


def _made_in(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    def fits(culprit: Culprit, _held: Sequence[Held]) -> bool:
        frames = culprit.where.path if culprit.where else ()
        return any(re.search(pattern, f"{frame.file}:{frame.function}:{frame.call}") for frame in frames)

    return fits


def _holds(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    return lambda culprit, _held: culprit.owner is not None and re.search(pattern, culprit.owner.holds) is not None


def _held_by(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    def fits(culprit: Culprit, _held: Sequence[Held]) -> bool:
        steps = culprit.owner.steps if culprit.owner else ()
        name = culprit.owner.name if culprit.owner else ""
        return any(re.search(pattern, text) for text in (name, *(f"{step.holder} {step.via}" for step in steps)))

    return fits


def _any(*fits: Callable[[Culprit, Sequence[Held]], bool]) -> Callable[[Culprit, Sequence[Held]], bool]:
    return lambda culprit, held: any(one(culprit, held) for one in fits)


def _of(handles: str, fits: Callable[[Culprit, Sequence[Held]], bool]) -> Callable[[Culprit, Sequence[Held]], bool]:
    kinds = handles.split()
    return lambda culprit, held: find_resource(culprit.resource).handles in kinds and fits(culprit, held)


def _cycle(pattern: str) -> Callable[[Culprit, Sequence[Held]], bool]:
    return lambda culprit, _held: re.search(pattern, " ".join(culprit.cycle)) is not None


# The first that fits is given: the more special come first.
SHAPES: Final = (
    Shape(
        _cycle(r"Container\b.*Stream"),
        "a container of PyAV and its streams refer to each other: close() it, or use it as `with av.open(...)`; "
        "closing or dropping an iterator over its frames does not close it",
    ),
    Shape(
        _of("children threads fds segments", _made_in(r"torch/utils/data/dataloader\.py")),
        "a DataLoader's iterator keeps its workers: keep one loader for all epochs, or drop the iterator "
        "(with persistent_workers=True it lives as long as the loader does)",
    ),
    Shape(
        _held_by(r"suspended generator"),
        "a generator that is not run to its end keeps its locals: close() it, or use contextlib.closing()",
    ),
    Shape(
        _holds(r"CommitOperation"),
        "an operation of huggingface_hub keeps the bytes of its file: preupload_lfs_files() each, which frees them, "
        "or give it a path",
    ),
    Shape(
        _any(_holds(r"Tensor.*\bgraph\b"), _held(r"Tensor.*with its graph")),
        "a tensor with its history keeps the whole graph: keep loss.item(), or loss.detach()",
    ),
    Shape(
        _of("threads", _any(_held(r"ThreadPoolExecutor"), _made_in(r"concurrent/futures/thread\.py"))),
        "an executor is not shut down: `with ThreadPoolExecutor(...)`, or shutdown(), or one for all calls",
    ),
    Shape(
        _of("children fds threads", _made_in(r"(concurrent/futures/process|multiprocessing/pool)\.py")),
        "a pool of processes is not shut down: use it in a `with` statement, or one for all calls",
    ),
    Shape(
        _of("segments", _made_in(r"multiprocessing/shared_memory\.py")),
        "a segment of shared memory outlives the process: whoever made it calls unlink() after close()",
    ),
    Shape(
        _of("segments", _made_in(r"multiprocessing/(synchronize|context)\.py")),
        "a lock or semaphore of multiprocessing is freed with its last reference: make it once, or drop it",
    ),
    Shape(
        _of("children fds", _made_in(r"subprocess\.py")),
        "a child process is not waited for: `with subprocess.Popen(...)`, or wait() after terminate()",
    ),
    Shape(
        _of("threads", _made_in(r"threading\.py:Thread\.start")),
        "a thread is never told to end: give it a signal to stop, and join() it",
    ),
    Shape(
        _of("files", _made_in(r"tempfile\.py:(mkdtemp|mkstemp)")),
        "what mkdtemp() and mkstemp() make is never removed by itself: TemporaryDirectory() and NamedTemporaryFile() "
        "are, or remove it",
    ),
    Shape(
        _held_by(r"logging\.getLogger|\bLogger\b"),
        "a handler is added each time: add it once, or remove it when done",
    ),
    Shape(
        _held_by(r"lru_cache"),
        "a cache without a bound keeps all that was ever asked for: give it a maxsize, or clear it",
    ),
    Shape(
        _of("tasks", lambda _culprit, _held: True),
        "a task is neither awaited nor cancelled: await it, or use asyncio.TaskGroup",
    ),
    Shape(
        _of("fds", _made_in(r":(open|socket|socketpair|pipe|create_connection)\(\)$")),
        "close() it, or use it in a `with` statement",
    ),
)


def hint_for(culprit: Culprit, held: Sequence[Held]) -> str:
    """The advice for a known shape; empty where none fits."""
    return next((shape.advice for shape in SHAPES if shape.fits(culprit, held)), "")
