from __future__ import annotations

import ctypes
import gc
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pluggy
import pytest

from pytest_leakcheck.attribution.tracing import call_tree
from pytest_leakcheck.attribution.tracing.call_tree import CallTree
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.native_heap import Heap
from traced import ROUNDS, Counter, followed, marked, trace, tree_of, within

HERE = __file__
# Large enough that what an allocator keeps for itself does not matter.
SIZE = 100_000

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]


@pytest.fixture
def heap() -> Iterator[Callable[[], int]]:
    probe = Heap()
    try:
        probe.open()
    except Unavailable as error:
        pytest.skip(str(error))
    yield probe.read
    probe.close()


def allocate(size: int) -> int:
    return int(libc.malloc(size))  # here


def outer(held: list[int], *, leaks: bool) -> None:
    block = allocate(SIZE)  # kept
    libc.free(allocate(3 * SIZE))
    if leaks:
        held.append(block)
    else:
        libc.free(block)


def test_memory_that_c_keeps_is_traced_to_its_function(heap: Callable[[], int]) -> None:
    held: list[int] = []

    def work() -> None:
        outer(held, leaks=True)

    culprit = followed(heap, work, slope=SIZE)
    sites = within(culprit.path, HERE)
    # Of two calls of one function, the one that is not undone.
    assert sites[-2] == (marked(outer, "# kept"), "outer", "allocate()")
    assert sites[-1][1] == "allocate"
    assert culprit.why == ""
    for block in held:
        libc.free(block)


def simply(held: list[int]) -> None:
    held.append(allocate(SIZE))


def test_what_is_given_back_is_no_growth(heap: Callable[[], int]) -> None:
    held: list[int] = []
    tree = tree_of(heap, lambda: outer(held, leaks=False))
    assert sum(tree.own) < ROUNDS * SIZE / 2


def copied(held: list[int], *, leaks: bool) -> bytes:
    block = allocate(SIZE)  # block
    copy = ctypes.string_at(block, SIZE)
    if leaks:
        held.append(block)
    else:
        libc.free(block)
    return copy


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a call of ctypes makes an event")
@pytest.mark.parametrize("leaks", [True, False])
def test_a_copy_of_what_c_keeps_is_not_named(heap: Callable[[], int], *, leaks: bool) -> None:
    held: list[int] = []

    def work() -> None:
        copied(held, leaks=leaks)

    tree = CallTree(heap)
    # All of them in one line: the call paths are compared.
    for python in (False, True):
        with tree.measuring_python() if python else nullcontext():
            trace(tree, work, ROUNDS)
    assert leaks == (sum(tree.own) > ROUNDS * SIZE / 2)
    if leaks:
        # Both calls have gained as much.
        assert within(tree.explain(ROUNDS * SIZE).path, HERE)[-1][1] == "allocate"
    for block in held:
        libc.free(block)


def make(counter: Counter) -> None:
    counter.value += 100


def drop(counter: Counter) -> None:
    counter.value -= 99


def make_and_drop(counter: Counter) -> None:
    make(counter)
    drop(counter)


def test_what_remains_of_the_only_call_that_makes_is_made_there() -> None:
    counter = Counter()
    culprit = followed(counter.read, lambda: make_and_drop(counter))
    assert culprit.path[-1].function == "make"
    assert culprit.why == ""


def make_more(counter: Counter) -> None:
    counter.value += 50


def make_twice_and_drop(counter: Counter) -> None:
    make(counter)
    make_more(counter)
    drop(counter)
    counter.value -= 50


def test_of_two_calls_that_make_neither_is_named() -> None:
    counter = Counter()
    culprit = followed(counter.read, lambda: make_twice_and_drop(counter))
    assert culprit.path[-1].function == "make_twice_and_drop"
    first = make_twice_and_drop.__code__.co_firstlineno
    assert culprit.why == (
        "in make_twice_and_drop() it is allocated in one call and freed in another "
        f"(line {first + 1} make(): +500, line {first + 3} drop(): -495, line {first + 2} make_more(): +250, "
        "its own lines: -250)"
    )


def test_frames_that_ran_before_and_calls_back_from_c() -> None:
    counter = Counter()

    def key(n: int) -> int:
        counter.value += n == 2
        return n

    tree = CallTree(counter.read)
    tracer = trace(tree, lambda: None)
    tracer = trace(tree, lambda: sorted([3, 2, 1], key=key))
    assert tracer.interrupted == ""
    culprit = tree.traced()
    assert culprit.path[-1].function.endswith("key")
    assert culprit.path[-2].call.endswith("key()")
    assert culprit.code is key.__code__
    # The whole path, from the frames that ran before it was armed on.
    assert within(culprit.path, HERE)[0][1] == "test_frames_that_ran_before_and_calls_back_from_c"


def deep(counter: Counter, n: int) -> int:
    if n == 0:
        counter.value += 1
        return 0
    return deep(counter, n - 1) + (deep(counter, n - 2) if n > 1 else 0)


def test_a_coarse_path_is_shorter_and_true() -> None:
    counter = Counter()

    def leaking() -> None:
        deep(counter, 24)

    def work() -> None:
        len("")
        leaking()

    tree = CallTree(counter.read)
    trace(tree, work, 1, plain_seconds=0.0)
    tree.forget()
    tracer = trace(tree, work, 3, plain_seconds=0.0)
    assert tracer.throttle.coarse
    culprit = tree.traced()
    names = [function for _line, function, _call in within(culprit.path, HERE)]
    whole = ["test_a_coarse_path_is_shorter_and_true", "work", "leaking", *["deep"] * 25]
    assert names == whole[: len(names)]


@pytest.mark.parametrize(("beside", "function"), [(-3, "gain"), (1, "gain"), (3, "gain"), (5, "work")])
def test_the_call_that_retains_most_is_followed_beside_little_else(beside: int, function: str) -> None:
    counter = Counter()

    def gain() -> None:
        counter.value += 8

    def work() -> None:
        gain()
        counter.value += beside

    culprit = followed(counter.read, work)
    assert culprit.path[-1].function.endswith(function)
    assert ("it comes from several calls" in culprit.why) == (function == "work")


@pytest.mark.parametrize(
    ("amount", "own", "to_explain"),
    # The only call that gains is to explain the whole growth, and the main one what it retains.
    [(95, 10, 100), (95, 11, 95), (60, 30, 60), (59, 29, None)],
)
def test_a_call_is_followed_alone_beside_a_tenth_and_as_the_main_one_from_six_tenths_on(
    amount: int, own: int, to_explain: int | None
) -> None:
    call = 1, "gain"
    assert call_tree._find_gain({call: amount}, own, 100) == (None if to_explain is None else (call, to_explain))


def test_four_calls_are_listed_the_largest_first() -> None:
    kept = {(line, "gain"): line for line in range(1, 6)}
    listed = call_tree._format_flows(kept, 0)
    assert listed == "line 5 gain(): +5, line 4 gain(): +4, line 3 gain(): +3, line 2 gain(): +2"


def test_what_the_test_runner_allocates_meanwhile_is_left_out() -> None:
    runner: dict[str, Any] = {}
    source = "def run(call, counter, end):\n    call()\n    counter.value += 50\n    end()"
    exec(compile(source, pluggy.__file__, "exec"), runner)
    counter = Counter()

    def gain() -> None:
        counter.value += 8

    culprit = followed(counter.read, lambda: runner["run"](gain, counter, lambda: None), slope=8)
    assert culprit.path[-1].function.endswith("gain")


def test_a_frame_of_the_test_runner_that_takes_the_place_of_an_ended_one_is_another_call() -> None:
    """Nothing tells that the first one has ended, and both may have one `id`."""
    runner: dict[str, Any] = {}
    source = "def call(one): one()\ndef run(one, other):\n    call(one)\n    call(other)"
    exec(compile(source, pluggy.__file__, "exec"), runner)
    counter = Counter()

    def gain() -> None:
        counter.value += 8

    def idle() -> None: ...

    culprit = followed(counter.read, lambda: runner["run"](idle, gain), slope=8)
    assert [site.line for site in culprit.path if site.function == "run"] == [4]


def test_a_path_that_ends_at_a_call_of_the_program_left_out_of_the_trace_says_so() -> None:
    counter = Counter()

    def leaking() -> None:
        deep(counter, 0)

    trace(tree := CallTree(counter.read), leaking, depth=1)
    culprit = tree.traced()
    assert culprit.path[-1].function.endswith("leaking")
    assert culprit.path[-1].call == "deep()"
    assert culprit.ends_early
    trace(whole := CallTree(counter.read), leaking, depth=2)
    assert not whole.traced().ends_early


def test_a_library_whose_events_are_left_out_does_not_end_a_path_early() -> None:
    kept: list[str] = []

    def keep(line: str) -> bool:
        kept.append(line)
        return True

    def leaking() -> None:
        textwrap.indent("line", "", predicate=keep)

    trace(tree := CallTree(lambda: len(kept)), leaking, depth=1)
    assert tree.traced().path[-1].call == "indent()"
    assert not tree.traced().ends_early


@pytest.mark.skipif(sys.gettrace() is not None, reason="what follows the lines of the tests takes memory")
def test_a_tree_takes_no_memory_in_later_iterations() -> None:
    tree = CallTree(sys.getallocatedblocks)
    held: list[object] = []

    def work() -> None:
        make_and_drop(Counter())
        held.append(object())

    trace(tree, work, 3)
    tree.forget()
    gc.collect()
    gc.disable()
    try:
        trace(tree, work, 20)
    finally:
        gc.enable()
    # 20 objects, and once what an interpreter keeps for itself or gives back (3.13).
    assert 16 <= sum(tree.own) < 40
