"""The path from a root to an object: how far it is looked for, and what is left as it was."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from leaks import Item
from pytest_leakcheck.attribution.heap.reference_paths import (
    FORK_FUNCTIONS,
    describe_owner,
    find_paths,
    kept_by_interpreter,
    module_name,
    running_frames,
    variables_of_frame,
)


class Graph:
    """What a library has one of, and what all that is built refers to."""

    def __init__(self) -> None:
        self.registered: list[object] = []


class Built:
    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


@pytest.fixture
def root() -> Iterator[dict[str, object]]:
    module = ModuleType("case_of_roots")
    yield vars(module)
    module.__dict__.clear()


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_many_of_one_kind_do_not_hide_the_way_out(root: dict[str, object], *, first: bool) -> None:
    graph = Graph()
    if first:
        root["stack"] = [(graph,)]
    built = [Built(graph) for _ in range(500)]
    graph.registered.extend(built)
    if not first:
        root["stack"] = [(graph,)]
    gc.collect()
    (path,) = find_paths([graph.registered], {id(built)})
    assert path, "no way was found"
    assert path[0] is root
    del root["stack"]
    (path,) = find_paths([graph.registered], {id(built)})
    # Only this test's own names are left.
    assert not path or path[0] is not root


@pytest.fixture
def _in_order() -> Iterator[None]:
    """Objects are listed in the order in which they are made: a collection changes that."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def path_to(target: object) -> tuple[object, ...]:
    """Return the path to an object that has one."""
    (path,) = find_paths([target], {id(sys._getframe())})
    assert path
    return path


def is_found(target: object, root: dict[str, object]) -> bool:
    """Whether the path begins at a module; it may else begin at a frame of this test."""
    return path_to(target)[0] is root


@pytest.mark.parametrize(("levels", "found"), [(13, True), (14, False)])
def test_a_root_is_looked_for_on_14_levels(root: dict[str, object], levels: int, *, found: bool) -> None:
    target = Item()
    holder: list[object] = [target]
    for _ in range(levels - 1):
        holder = [holder]
    root["held"] = holder
    del holder
    assert is_found(target, root) is found


@pytest.mark.usefixtures("_in_order")
@pytest.mark.parametrize(("place", "found"), [(12, True), (28, False)])
def test_on_each_level_16_objects_are_followed(root: dict[str, object], place: int, *, found: bool) -> None:
    target = Item()
    holders = [{f"key_{number}": target} for number in range(40)]
    root["held"] = holders[place]
    others = tuple(holders)
    del holders
    assert others
    assert is_found(target, root) is found


@pytest.mark.usefixtures("_in_order")
@pytest.mark.parametrize(("others", "found"), [(15_000, True), (30_000, False)])
def test_of_what_refers_to_an_object_20_000_are_looked_at(others: int, *, found: bool) -> None:
    target = Item()
    kept = [[target] for _ in range(others)]
    module = ModuleType("case_of_many")
    vars(module)["held"] = target
    assert is_found(target, vars(module)) is found
    kept.clear()


@pytest.mark.parametrize(("place", "name"), [(7, FORK_FUNCTIONS), (8, "")])
def test_the_functions_for_forks_are_known_by_one_of_the_first_eight(place: int, name: str) -> None:
    assert kept_by_interpreter([*[print] * place, threading._after_fork]) == name  # type: ignore[attr-defined]


def test_a_search_keeps_no_variable_of_a_frame_alive() -> None:
    item = Item()
    gone = weakref.ref(item)
    path = path_to(item)
    assert path[0] is sys._getframe()
    del item, path
    assert gone() is None


def traced(found: list[object]) -> None:
    item = Item()
    found.append(1)
    found.append(item)


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["this_thread", "another_thread"])
def test_reading_variables_leaves_them_to_a_frame_whose_trace_function_runs(*, is_elsewhere: bool) -> None:
    """Up to Python 3.12, the variables are set from the copy that is read, once the trace function returns."""
    begun, ended, found = threading.Event(), threading.Event(), list[object]()

    def follow(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code is traced.__code__:
            begun.set()
            if is_elsewhere:
                ended.wait()
            else:
                variables_of_frame(frame)
        return follow

    def work() -> None:
        before = sys.gettrace()
        sys.settrace(follow)
        try:
            traced(found)
        finally:
            sys.settrace(before)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    if is_elsewhere:
        for frame in running_frames():
            variables_of_frame(frame)
        ended.set()
    thread.join()
    assert [type(one) for one in found] == [int, Item]


TASKS: list[asyncio.Task[None]] = []


def test_a_task_is_found_by_the_callbacks_that_it_keeps() -> None:
    loop = asyncio.new_event_loop()
    TASKS.append(loop.create_task(asyncio.sleep(3600)))
    kept: list[object] = []
    TASKS[0].add_done_callback(lambda _task: None)
    TASKS[0].add_done_callback(kept.append)
    try:
        path = path_to(kept)
        assert ".TASKS[0]._callbacks[0]" in describe_owner(path, kept, "").name
    finally:
        TASKS.pop().cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@pytest.mark.parametrize("variables", [0, 2])
def test_a_copy_of_the_running_context_is_not_what_the_interpreter_holds(variables: int) -> None:
    # A task has such a copy, which shares the table of variables with the original.
    def tell() -> tuple[str, str]:
        for number in range(variables):
            contextvars.ContextVar[int](str(number)).set(number)
        copies = contextvars.copy_context(), contextvars.copy_context()
        told = kept_by_interpreter(copies[0]), kept_by_interpreter(running)
        assert len(contextvars.copy_context()) == variables
        return told

    running = contextvars.Context()
    assert running.run(tell) == ("", "context of the running thread")


@pytest.mark.parametrize("copies", [0, 3])
def test_what_a_variable_of_the_running_context_holds_is_found(copies: int) -> None:
    # Tasks have such copies. Telling which context runs replaces the table that all of them share.
    def tell() -> tuple[str, list[tuple[str, str]]]:
        variable = contextvars.ContextVar[list[Item]]("kept")
        variable.set([])
        # The copies are listed first, because the collector lists what is young first.
        gc.collect()
        kept = [contextvars.copy_context() for _ in range(copies)]
        path = path_to(variable.get())
        assert len(kept) == copies
        owner = describe_owner(path, variable.get(), "")
        return owner.name, [(step.holder, step.via) for step in owner.steps]

    name = "context of the running thread"
    shown, steps = contextvars.Context().run(tell)
    assert shown == f"{name} variable 'kept'"
    assert steps == [(name, "variable 'kept'")]


def test_a_copy_of_the_globals_of_a_module_is_not_the_module(root: dict[str, object]) -> None:
    # As doctest makes one; a module that is no longer in `sys.modules` is still one.
    assert (module_name(vars(threading)), module_name(root)) == ("threading", "case_of_roots")
    for copy in (dict(vars(threading)), dict(root)):
        assert module_name(copy) == ""
    copied = {**vars(threading), "kept": []}
    root["tests"] = [copied]
    path = path_to(copied["kept"])
    assert describe_owner(path, copied["kept"], "").name.startswith("case_of_roots.tests[0][")
