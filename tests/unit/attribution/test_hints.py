"""Each known shape is recognised by what a finding knows, and its advice is gone when the shape is."""

from __future__ import annotations

import pytest

from pytest_leakcheck.attribution.hints import SHAPES, hint_for
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Remainder, Site, Step

TEST = Site("/project/test_decode.py", 12, "test_decode", "work()")


def made(resource: str, file: str, function: str, call: str = "") -> Culprit:
    path = (TEST, Site(file, 7, function, call))
    return Culprit(resource, CreationPath(path, TEST))


def held_by(resource: str, holder: str, via: str, holds: str = "", name: str = "case._KEPT") -> Culprit:
    return Culprit(resource, owner=Owner(name, "module case", (Step(holder, via, suspect=True),), holds, 1.0))


CASES = {
    "PyAV's cycle": (Culprit("fd", cycle=("InputContainer", "VideoStream")), "close() the container"),
    "TensorFlow's graph": (held_by("heap", "Graph", "._py_funcs_used_in_graph"), "tf.compat.v1.reset_default_graph()"),
    "DataLoader": (
        made("process", "/v/torch/utils/data/dataloader.py", "_MultiProcessingDataLoaderIter"),
        "one loader",
    ),
    "suspended generator": (held_by("fd", "suspended generator frames()", "local clip"), "contextlib.closing"),
    "commit operations": (held_by("heap", "list", "[19]", "CommitOperationAdd"), "preupload_lfs_files"),
    "graph": (held_by("heap", "list", "[19]", "Tensor (1,) float32 cpu with its graph"), "loss.detach()"),
    "executor": (
        made("thread", "/l/concurrent/futures/thread.py", "ThreadPoolExecutor._adjust_thread_count"),
        "shutdown()",
    ),
    "pool": (made("process", "/l/multiprocessing/pool.py", "Pool.__init__"), "process pool"),
    "segment": (made("shm", "/l/multiprocessing/shared_memory.py", "SharedMemory.__init__"), "unlink()"),
    "semaphore": (made("shm", "/l/multiprocessing/synchronize.py", "SemLock.__init__"), "lock or semaphore"),
    "child": (made("process", "/l/subprocess.py", "Popen._execute_child"), "wait()"),
    "pipe": (made("fd", "/l/subprocess.py", "Popen._get_handles", "os.pipe()"), "a pipe to a child process"),
    "thread": (made("thread", "/l/threading.py", "Thread.start", "start_new_thread()"), "join()"),
    "temporary": (made("disk", "/l/tempfile.py", "mkdtemp", "mkdir()"), "TemporaryDirectory"),
    "handler": (held_by("object", "list of 9", "[8]", name="logging.getLogger('a').handlers"), "add it once"),
    "cache": (held_by("object", "lru_cache of lookup", ""), "maxsize"),
    "task": (Culprit("task"), "TaskGroup"),
    "actor": (Culprit("ray_actor"), "ray.kill()"),
    "placement group": (Culprit("ray_placement_group"), "remove_placement_group()"),
    "object": (Culprit("plasma"), "drop the ObjectRef"),
    "open": (made("fd", "/project/decode.py", "frames", "open()"), "with"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_known_shape_gets_its_advice(name: str) -> None:
    culprit, advice = CASES[name]
    assert advice in hint_for(culprit, ())


def test_how_a_child_process_was_started_is_no_shape_of_what_leaks_in_it() -> None:
    loader = Site("/v/torch/utils/data/dataloader.py", 7, "_MultiProcessingDataLoaderIter")
    work = Site("/project/decode.py", 3, "frames", "open()")
    here = Culprit("fd", CreationPath((TEST, loader, work), work))
    assert "one loader" in hint_for(here, ())
    there = Culprit("fd", CreationPath((TEST, loader, work), work, process="child process python"))
    assert hint_for(there, ()).startswith("close() it")


def test_the_line_of_a_child_process_tells_the_shape_without_its_objects() -> None:
    opened = Site("/project/decode.py", 3, "frames")
    there = Culprit(
        "fd", CreationPath((TEST, opened), opened, process="child process python"), source="self.c = av.open(path)"
    )
    assert "close() the container" in hint_for(there, ())


def test_every_shape_has_a_case() -> None:
    assert len(CASES) == len(SHAPES)
    assert {hint_for(culprit, ()) for culprit, _advice in CASES.values()} == {shape.advice for shape in SHAPES}


def test_what_is_held_may_show_the_shape() -> None:
    assert "shutdown()" in hint_for(Culprit("thread"), (Remainder("ThreadPoolExecutor-N_N (_worker)", 4),))


@pytest.mark.parametrize(
    "culprit",
    [
        Culprit("fd"),
        Culprit("thread"),
        Culprit("heap", cycle=("Window",)),
        made("fd", "/project/decode.py", "frames", "reopen()"),
        made("object", "/l/tempfile.py", "mkdtemp", "mkdir()"),
        # A pool runs the job that opens a file or starts a thread, and a descriptor of a child is no pipe.
        made("thread", "/l/concurrent/futures/thread.py", "_WorkItem.run", "job()"),
        made("thread", "/l/multiprocessing/pool.py", "mapstar", "job()"),
        made("fd", "/l/concurrent/futures/process.py", "_process_worker", "_CallItem.run()"),
        made("fd", "/l/subprocess.py", "Popen._execute_child", "os.pipe()"),
        # Loggers and filters are no handlers, and a project has loggers and handlers of its own.
        held_by("object", "dict of 9", "[a str of 5]", name="Logger.manager.loggerDict"),
        held_by("object", "list of 9", "[8]", name="logging.getLogger('a').filters"),
        held_by("object", "list of 9", "[8]", name="logging.getLogger('a').handlers[0].buffer"),
        held_by("object", "Logger", ".handlers", name="case.LOG.handlers"),
        held_by("heap", "module case", "._KEPT", "bytearray, 4,039 B"),
        held_by("heap", "list", "[19]", "Tensor (1,) float32 cpu"),
    ],
)
def test_no_advice_is_given_where_no_shape_fits(culprit: Culprit) -> None:
    assert hint_for(culprit, (Remainder("reader-N", 4),)) == ""
