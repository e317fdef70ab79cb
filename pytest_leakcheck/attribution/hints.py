"""Give one line of advice for each known shape of leak.

A shape is a pattern in the cause (`Culprit`) or the survivors (`Remainder`) of a leak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.attribution.heap.object_kinds import WITH_GRAPH
from pytest_leakcheck.attribution.heap.reference_paths import SUSPENDED
from pytest_leakcheck.model.culprit import Culprit, Remainder


@dataclass(frozen=True, slots=True)
class Shape:
    """One known shape of leak, and the advice to the user what to change.

    It fits if the resource has one of these kinds of `handles` (any if empty), and if one of the
    patterns, if there are any, matches: `path` matches ``file:function:call`` of a frame, `owner`
    the owner's name or a step to it, and `source` the line to change, which is known of a child
    process as well.
    """

    advice: str
    handles: str = ""
    path: str = ""
    owner: str = ""
    holds: str = ""
    cycle: str = ""
    survivor: str = ""
    source: str = ""

    def fits(self, culprit: Culprit, held: Sequence[Remainder]) -> bool:
        if self.handles and culprit.traits.handles not in self.handles.split():
            return False
        owner = culprit.owner
        texts = {
            self.path: _iter_frames(culprit),
            self.owner: (owner.name, *(f"{step.holder} {step.via}" for step in owner.steps))
            if owner
            else (),
            self.holds: (owner.holds,) if owner else (),
            self.cycle: (" ".join(culprit.cycle),),
            self.survivor: (one.what for one in held),
            self.source: (culprit.source,),
        }
        texts.pop("", None)
        return not texts or any(
            re.search(pattern, text) for pattern, some in texts.items() for text in some
        )


def _iter_frames(culprit: Culprit) -> Iterator[str]:
    where = culprit.where
    frames = where.path if where else ()
    if where and where.process:
        # In a child process, the outer frames only show how the process was started.
        frames = where.path[where.path.index(where.site) :]
    return (f"{frame.file}:{frame.function}:{frame.call}" for frame in frames)


# The advice of the first shape that fits is used, so more specific shapes come first.
SHAPES: Final = (
    Shape(
        "a PyAV container and its streams refer to each other: close() the container, or use `with av.open(...)`; "
        "closing or dropping an iterator over its frames does not close the container",
        cycle=r"Container\b.*Stream",
        source=r"\bav\.open\(",
    ),
    Shape(
        "TensorFlow's default graph keeps the Python functions of each tf.data pipeline: build one pipeline for all "
        "epochs, or call tf.compat.v1.reset_default_graph() after each (keras.backend.clear_session() does so only if Keras "
        "runs on TensorFlow)",
        owner=r"_py_funcs_used_in_graph",
    ),
    Shape(
        "a DataLoader iterator keeps its workers alive: use one loader for all epochs, or drop the iterator "
        "(with persistent_workers=True it lives as long as the loader does)",
        "children threads fds segments",
        path=r"torch/utils/data/dataloader\.py",
    ),
    Shape(
        "a generator that is not exhausted keeps its local variables: close() it, or use contextlib.closing()",
        owner=f"{SUSPENDED} generator",
    ),
    Shape(
        "a huggingface_hub operation keeps the bytes of its file: call preupload_lfs_files() for each, which frees "
        "them, or pass a path",
        holds=r"CommitOperation",
    ),
    Shape(
        "a tensor with a graph keeps the whole graph alive: store loss.item() or loss.detach()",
        holds=r"Tensor.*\bgraph\b",
        survivor=f"Tensor.*{WITH_GRAPH}",
    ),
    Shape(
        "an executor is not shut down: use `with ThreadPoolExecutor(...)`, call shutdown(), or share one executor",
        "threads",
        path=r"concurrent/futures/thread\.py:ThreadPoolExecutor\._adjust_thread_count",
        survivor=r"ThreadPoolExecutor",
    ),
    Shape(
        "a process pool is not shut down: use it in a `with` statement, or share one pool",
        "children fds threads",
        path=r"(concurrent/futures/process|multiprocessing/pool)\.py:\w*Pool",
    ),
    Shape(
        "a shared-memory segment outlives the process: its creator must call unlink() after close()",
        "segments",
        path=r"multiprocessing/shared_memory\.py",
    ),
    Shape(
        "a multiprocessing lock or semaphore is freed with its last reference: create it once, or drop it",
        "segments",
        path=r"multiprocessing/(synchronize|context)\.py",
    ),
    Shape(
        "a child process is not waited for: use `with subprocess.Popen(...)`, or wait() after terminate()",
        "children",
        path=r"subprocess\.py",
    ),
    Shape(
        "a pipe to a child process is not closed: use `with subprocess.Popen(...)`, or close() it",
        "fds",
        path=r"subprocess\.py:Popen\._get_handles",
    ),
    Shape(
        "a thread does not end: signal it to stop, then join() it",
        "threads",
        path=r"threading\.py:Thread\.start",
    ),
    Shape(
        "mkdtemp() and mkstemp() never remove what they create: use TemporaryDirectory() or NamedTemporaryFile(), "
        "or remove it yourself",
        "files",
        path=r"tempfile\.py:(mkdtemp|mkstemp)",
    ),
    Shape(
        "a logging handler is added each time: add it once, or remove it when done",
        owner=r"^logging\.getLogger\(.*\)\.handlers$",
    ),
    Shape("an unbounded cache keeps every result: set maxsize, or clear it", owner=r"lru_cache"),
    Shape(
        "an asyncio task is neither awaited nor cancelled: await it, or use asyncio.TaskGroup",
        "tasks",
    ),
    Shape(
        "an actor lives until its last handle is dropped, and a detached one until ray.kill(): call that when done",
        "ray_actors",
    ),
    Shape(
        "a placement group does not end with its handle: call remove_placement_group()",
        "ray_placement_groups",
    ),
    Shape(
        "Ray keeps an object as long as any process has a reference to it: drop the ObjectRef, in actors too",
        "ray_refs ray_objects",
    ),
    Shape(
        "close() it, or use it in a `with` statement",
        "fds",
        path=r":(open|socket|socketpair|pipe|create_connection)\(\)$",
    ),
)


def hint_for(culprit: Culprit, held: Sequence[Remainder]) -> str:
    """Return the advice for the known shape of a cause; empty where no shape fits."""
    return next((shape.advice for shape in SHAPES if shape.fits(culprit, held)), "")
