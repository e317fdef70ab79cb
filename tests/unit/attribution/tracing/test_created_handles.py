from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_leakcheck.attribution.tracing.created_handles import Arrival, Arrivals
from traced import counted_fds, marked, trace, within

ROUNDS = 3
HERE = __file__


class Keeper(list[Any]):
    """What a leaking program keeps. Cleared after each test, so that nothing leaks in earnest."""

    def take(self, thing: Any, *, leaks: bool) -> None:
        if leaks:
            self.append(thing)
        elif isinstance(thing, int):
            os.close(thing)
        else:
            thing.close()

    def close(self) -> None:
        for thing in self:
            self.take(thing, leaks=False)
        self.clear()


@pytest.fixture
def kept() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


def by_open(kept: Keeper, *, leaks: bool) -> None:
    kept.take(open(os.devnull, "rb"), leaks=leaks)  # noqa: PTH123, SIM115 # here


def by_thread_of_a_pool(kept: Keeper, *, leaks: bool) -> None:
    def job(_n: int) -> None:
        kept.take(os.dup(0), leaks=leaks)  # here

    with ThreadPoolExecutor(1) as executor:
        executor.submit(job, 1).result()


def by_coroutine(kept: Keeper, *, leaks: bool) -> None:
    async def deep() -> int:
        await asyncio.sleep(0)
        return os.dup(0)  # here

    async def shallow() -> None:
        kept.take(await deep(), leaks=leaks)

    asyncio.run(shallow())


LIBC = ctypes.CDLL(None)


def by_ctypes(kept: Keeper, *, leaks: bool) -> None:
    kept.take(LIBC.dup(0), leaks=leaks)  # here


JOB = (marked(by_thread_of_a_pool), "job")
CASES = [
    (by_open, marked(by_open), "open()"),
    (by_coroutine, marked(by_coroutine), "dup()"),
]


def arrived(work: Callable[[], object], rounds: int = ROUNDS) -> list[Arrival]:
    with counted_fds() as (count, list_now):
        arrivals = Arrivals(count, list_now)
        tracer = trace(arrivals, work, rounds)
        assert tracer.interrupted == ""
        assert not tracer.throttle.coarse
        return list(arrivals.survivors().values())


def test_a_path_that_ends_at_a_call_of_the_program_left_out_of_the_trace_says_so(kept: Keeper) -> None:
    def leaking() -> None:
        by_open(kept, leaks=True)

    for depth, ends_early in ((1, True), (2, False)):
        with counted_fds() as (count, list_now):
            trace(arrivals := Arrivals(count, list_now), leaking, depth=depth)
            (arrival,) = arrivals.survivors().values()
        assert arrival.ends_early is ends_early
        kept.close()


@pytest.mark.parametrize(("case", "line", "call"), CASES, ids=[case.__name__ for case, _line, _call in CASES])
def test_the_call_that_made_each_survivor(case: Callable[..., None], line: int, call: str, kept: Keeper) -> None:
    found = arrived(lambda: case(kept, leaks=True))
    assert len(found) == len(kept) >= ROUNDS
    for arrival in found:
        assert arrival.exact
        assert arrival.path[-1].file == HERE
        assert (arrival.path[-1].line, arrival.path[-1].call) == (line, call)
    kept.close()
    assert arrived(lambda: case(kept, leaks=False)) == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="setprofile does not report calls of ctypes functions")
def test_a_call_of_a_ctypes_function_made_the_survivors(kept: Keeper) -> None:
    found = arrived(lambda: by_ctypes(kept, leaks=True))
    ends = {(arrival.path[-1].line, arrival.path[-1].call, arrival.exact) for arrival in found}
    assert (len(found), ends) == (len(kept), {(marked(by_ctypes), "dup()", True)})


def test_threads_at_once_are_told_apart_nearly_always(kept: Keeper) -> None:
    found = arrived(lambda: by_thread_of_a_pool(kept, leaks=True), rounds=15)
    assert len(found) == 15
    right = [arrival for arrival in found if within(arrival.path, HERE)[-1] == (*JOB, "dup()")]
    # The other ones are marked as uncertain, or end at the line that handed the work over.
    assert len(right) >= 8
    handed_over = [one for one in found if within(one.path, HERE)[-1][2] == "ThreadPoolExecutor.submit()"]
    assert not [one for one in found if one.exact and one not in (*right, *handed_over)]
    kept.close()
    assert arrived(lambda: by_thread_of_a_pool(kept, leaks=False)) == []


def late(kept: Keeper, *, leaks: bool) -> None:
    # Until then the thread that waits for it does nothing else.
    time.sleep(0.02)
    kept.take(os.dup(0), leaks=leaks)  # late


def handed_over(pool: ThreadPoolExecutor, kept: Keeper, *, leaks: bool) -> None:
    future = pool.submit(late, kept, leaks=leaks)  # here
    future.result()


def handed_over_twice(pool: ThreadPoolExecutor, kept: Keeper) -> None:
    first = pool.submit(late, Keeper(), leaks=False)
    first.result()
    handed_over(pool, kept, leaks=True)


def handed_over_at_once(pool: ThreadPoolExecutor, kept: Keeper) -> None:
    first = pool.submit(len, "")
    handed_over(pool, kept, leaks=True)
    first.result()


def test_what_an_earlier_thread_makes_is_charged_to_the_line_that_handed_the_work_over(kept: Keeper) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(len, "").result()
        found = arrived(lambda: handed_over(pool, kept, leaks=True))
        assert len(found) == ROUNDS
        for arrival in found:
            line, function, call = within(arrival.path, HERE)[-1]
            if sys.version_info >= (3, 12):
                assert (line, function, call) == (marked(late, "# late"), "late", "dup()")
            else:
                assert (line, function) == (marked(handed_over), "handed_over")
                assert call.endswith("submit()")
        kept.close()
        assert arrived(lambda: handed_over(pool, kept, leaks=False)) == []


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="all threads are traced")
@pytest.mark.parametrize("work", [handed_over_twice, handed_over_at_once])
def test_of_two_lines_that_hand_work_over_the_one_is_named_that_was_not_waited_for(
    work: Callable[[ThreadPoolExecutor, Keeper], None], kept: Keeper
) -> None:
    with ThreadPoolExecutor(1) as pool, counted_fds() as (count, list_now):
        pool.submit(len, "").result()
        arrivals = Arrivals(count, list_now)
        trace(arrivals, lambda: work(pool, kept), ROUNDS)
        found = list(arrivals.survivors().values())
        assert len(found) == ROUNDS
        if work is handed_over_twice:
            assert {within(one.path, HERE)[-1][:2] for one in found} == {(marked(handed_over), "handed_over")}
            return
        assert {one.path for one in found} == {()}
        assert len(arrivals.handed_in) == 2


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="all threads are traced")
def test_a_sleep_has_made_nothing_while_another_thread_works(kept: Keeper) -> None:
    wanted = threading.Semaphore(0)

    def serve() -> None:
        for _ in range(ROUNDS):
            wanted.acquire()
            time.sleep(0.01)
            kept.take(os.dup(0), leaks=True)

    def work() -> None:
        before = len(kept)
        wanted.release()
        while len(kept) == before:
            time.sleep(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    with counted_fds() as (count, list_now):
        arrivals = Arrivals(count, list_now)
        trace(arrivals, work, ROUNDS)
        thread.join()
        found = [one.path for one in arrivals.survivors().values()]
    assert len(found) == ROUNDS
    # The thread may be between two sleeps.
    assert found.count(()) >= ROUNDS - 1


async def open_in_loop(kept: Keeper, *, leaks: bool) -> None:
    await asyncio.sleep(0.02)
    kept.take(os.dup(0), leaks=leaks)


def by_loop(loop: asyncio.AbstractEventLoop, kept: Keeper, *, leaks: bool) -> None:
    asyncio.run_coroutine_threadsafe(open_in_loop(kept, leaks=leaks), loop).result()  # here


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="all threads are traced")
def test_the_call_that_wakes_the_loop_of_a_thread_is_not_the_one_that_makes_the_handle(kept: Keeper) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    found = arrived(lambda: by_loop(loop, kept, leaks=True))
    assert [one.path[-1].call for one in found] == ["run_coroutine_threadsafe()"] * ROUNDS
    assert {within(one.path, HERE)[-1][0] for one in found} == {marked(by_loop)}
    kept.close()
    assert arrived(lambda: by_loop(loop, kept, leaks=False)) == []
    with counted_fds() as (count, list_now):
        # Without the events of frames inside of `by_loop`, as if they were too many.
        arrivals = Arrivals(count, list_now)
        trace(arrivals, lambda: by_loop(loop, kept, leaks=True), ROUNDS, depth=2)
        found = list(arrivals.survivors().values())
        assert {one.path[-1].call for one in found} == {"run_coroutine_threadsafe()"}
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_what_is_seen_when_a_function_is_entered_came_in_its_caller() -> None:
    names: dict[int, str] = {}

    def later() -> None: ...

    def maker() -> None:
        names[7] = "a thing"
        later()

    arrivals = Arrivals(lambda: len(names), lambda: dict(names))
    trace(arrivals, maker)
    (arrival,) = arrivals.survivors().values()
    assert arrival.path[-1].function.endswith("maker")
    assert not arrival.exact


def test_a_number_that_is_used_again_is_another_thing() -> None:
    names = {3: "old"}

    def work() -> None:
        del names[3]
        len("")
        names[3] = "new"
        len("")

    arrivals = Arrivals(lambda: len(names), lambda: dict(names))
    trace(arrivals, work)
    assert [arrival.what for arrival in arrivals.survivors().values()] == ["new"]
    names[3] = "newer"
    assert arrivals.survivors() == {}


def test_of_many_handles_only_the_new_ones_are_read_until_the_iteration_ends() -> None:
    names = dict.fromkeys(range(300), "old")
    read: list[int] = []

    def list_more(known: Mapping[int, str]) -> dict[int, str]:
        read.extend(names.keys() - known.keys())
        return dict(names)

    def work() -> None:
        names[len(names)] = "new"
        len("")
        names.pop(7, None)
        len("")

    arrivals = Arrivals(lambda: len(names), lambda: dict(names), list_more)
    trace(arrivals, work)
    assert read == [300]
    (arrival,) = arrivals.survivors().values()
    assert arrival.path[-1].function.endswith("work")


def by_callback(kept: Keeper) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(kept.extend, map(os.dup, [0]))
        await asyncio.sleep(0)  # here

    asyncio.run(work())


def by_worker(kept: Keeper) -> None:
    async def work() -> None:
        kept.append(await asyncio.get_running_loop().run_in_executor(None, os.dup, 0))  # here

    asyncio.run(work())


@pytest.mark.parametrize("case", [by_callback, by_worker])
def test_what_a_loop_or_its_thread_makes_is_charged_to_the_coroutine_that_waits(
    case: Callable[[Keeper], None], kept: Keeper
) -> None:
    with counted_fds() as (count, list_now):
        arrivals = Arrivals(count, list_now)
        trace(arrivals, lambda: case(kept))
        (arrival,) = arrivals.survivors().values()
    assert within(arrival.path, HERE)[-1][0] == marked(case)


def test_a_function_that_calls_the_program_back_is_not_the_one_that_makes_the_handle(kept: Keeper) -> None:
    """A loop whose insides are left out looks as if it made what its coroutines make."""

    def leaking() -> None:
        by_coroutine(kept, leaks=True)

    with counted_fds() as (count, list_now):
        arrivals = Arrivals(count, list_now)
        trace(arrivals, leaking)
        trace(arrivals, leaking, depth=2)
        assert [one.ends_early for one in arrivals.survivors().values()] == [False, True]


def by_generator(kept: Keeper) -> None:
    async def opened() -> AsyncIterator[int]:
        yield os.dup(0)  # here

    async def work() -> None:
        async for fd in opened():
            kept.append(fd)
            await asyncio.sleep(0)

    asyncio.run(work())


def test_a_coroutine_that_waits_is_charged_only_if_no_coroutine_was_left_out(kept: Keeper) -> None:
    seen = set()
    for depth in range(1, 12):
        with counted_fds() as (count, list_now):
            arrivals = Arrivals(count, list_now)
            trace(arrivals, lambda: by_generator(kept))
            trace(arrivals, lambda: by_generator(kept), depth=depth)
            for arrival in arrivals.survivors().values():
                right = within(arrival.path, HERE)[-1][0] == marked(by_generator)
                seen.add((right, arrival.waits, arrival.ends_early))
        kept.close()
    # Those that wait are wrong, so the search names none of them if it left events out.
    assert seen == {(True, False, False), (False, True, False), (False, False, True)}
