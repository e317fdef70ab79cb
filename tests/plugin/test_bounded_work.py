"""Work that fills something with a bound, and leaks beside it: no false alarm when it is full, and no leak hidden by it."""

from __future__ import annotations

import sys

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")

# Bounds at which a look comes right after the owner is full, small and large ones, and ones beyond the small ints.
BOUNDS = (4, 24, 58, 220, 350, 512, 2000)
BOUNDED = f"""
    import functools
    import itertools
    import re
    from collections import deque

    import pytest

    pytestmark = pytest.mark.leakcheck
    OWNERS = {{}}
    PATTERNS, ENTRIES, PAGES = itertools.count(), itertools.count(), {{}}

    def numbered(owner):
        found = OWNERS.setdefault(owner, [itertools.count(), None])
        return next(found[0]), found

    @pytest.mark.parametrize("bound", {BOUNDS})
    def test_lru_cache(bound):
        number, owner = numbered(("lru_cache", bound))
        owner[1] = owner[1] or functools.lru_cache(bound)(lambda key: [key] * 20)
        owner[1](number)

    @pytest.mark.parametrize("bound", {BOUNDS})
    def test_deque(bound):
        number, owner = numbered(("deque", bound))
        owner[1] = deque(maxlen=bound) if owner[1] is None else owner[1]
        owner[1].append({{"number": number, "of": object()}})

    @pytest.mark.parametrize("bound", [30, 60])
    def test_open_files(bound):
        _number, owner = numbered(("files", bound))
        owner[1] = deque(maxlen=bound) if owner[1] is None else owner[1]
        owner[1].append(open(__file__))

    @pytest.mark.parametrize("bound", [300, 1000])
    def test_evicts_by_hand(bound):
        pages = PAGES.setdefault(bound, {{}})
        pages[next(ENTRIES)] = bytes(500)
        if len(pages) > bound:
            pages.pop(next(iter(pages)))

    def test_patterns():
        re.compile(f"new{{next(PATTERNS)}}[a-z]*")
"""
LEAKS = """
    import asyncio
    import concurrent.futures
    import functools
    import itertools
    import mmap
    import os
    import threading
    import time
    from collections import deque

    import pytest

    pytestmark = pytest.mark.leakcheck
    KEPT, OWNERS = {}, {}
    REQUESTS, CALLS, PAGES = itertools.count(), itertools.count(), itertools.count()
    LOOP = asyncio.new_event_loop()

    def in_deque(name):
        OWNERS.setdefault(name, deque(maxlen=10_000)).append({"request": next(REQUESTS), "path": "/x"})

    class Event:
        def __init__(self):
            self.number = next(REQUESTS)

    class Request(Event):
        pass

    def in_deque_of_instances(name):
        OWNERS.setdefault((name, Request), deque(maxlen=10_000)).append(Request())

    def in_lru_cache(name):
        OWNERS.setdefault((name,), functools.lru_cache(4096)(lambda number: {"number": number}))(next(REQUESTS))

    def leak_fd(kept):
        kept.append(os.open(__file__, os.O_RDONLY))

    def leak_4096(kept):
        kept.append(bytearray(4096))

    def leak_100000(kept):
        kept.append(bytes(100_000))

    def leak_task(kept):
        async def go():
            kept.append(asyncio.ensure_future(asyncio.Event().wait()))
            await asyncio.sleep(0)

        LOOP.run_until_complete(go())

    def leak_nothing(kept):
        pass

    @pytest.mark.parametrize("log", [in_deque, in_deque_of_instances, in_lru_cache])
    @pytest.mark.parametrize("leak", [leak_fd, leak_4096, leak_100000, leak_task, leak_nothing])
    def test_beside(log, leak):
        log(leak.__name__)
        leak(KEPT.setdefault((log.__name__, leak.__name__), []))

    @functools.lru_cache(100_000)
    def page(number):
        return bytes(3000)

    def test_cache_that_cannot_be_filled():
        page(next(REQUESTS))

    @pytest.mark.heap_budget("1 MiB")
    def test_cache_above_the_level_when_full():
        page(next(REQUESTS))

    HEAVIER = deque(([[[str(number)]]] for number in range(2000)), 2000)

    def test_new_entries_are_heavier():
        number = next(REQUESTS)
        HEAVIER.append([[[str(number + at) for at in range(20)]]])

    def test_zombie():
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def test_waited_for():
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)

    def test_loop_not_closed():
        asyncio.new_event_loop().run_until_complete(asyncio.sleep(0))

    def test_loop_closed():
        loop = asyncio.new_event_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    @pytest.fixture(scope="module")
    def pool():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            yield pool

    def test_in_a_pool(pool):
        pool.submit(leak_4096, KEPT.setdefault("pool", [])).result()
"""
LAST = """
    import itertools
    import mmap
    import os
    import threading
    import time

    import pytest

    pytestmark = pytest.mark.leakcheck
    KEPT, MEMORY = [], mmap.mmap(-1, 1 << 26)
    CALLS, PAGES, LATE, TWICE = (itertools.count() for _ in range(4))

    def test_now_and_then():
        if next(CALLS) % 40 == 0:
            KEPT.append(bytearray(1 << 20))

    def test_large_and_dropped():
        bytearray(1 << 20)

    def slowly_filled(name, number):
        # Memory is undecided while this grows, and other resources have long been judged.
        if number < 100:
            KEPT.append([name, [number]])

    def test_leaks_after_a_while():
        number = next(LATE)
        slowly_filled("late", number)
        if number > 30 and number % 2:
            KEPT.append(os.open(__file__, os.O_RDONLY))

    def test_opens_two_files_after_a_while():
        number = next(TWICE)
        slowly_filled("twice", number)
        if number in (7, 60):
            KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.rss_budget()
    def test_touches_a_new_page():
        at = 4096 * next(PAGES)
        MEMORY[at:at + 4096] = bytes(4096)

    @pytest.mark.rss_budget()
    def test_touches_one_page():
        MEMORY[:4096] = bytes(4096)

    @pytest.fixture(scope="module")
    def ticker():
        samples, end = [], threading.Event()

        def tick():
            while not end.wait(0.001):
                samples.append(time.time())
                if len(samples) > 500:
                    del samples[:250]

        thread = threading.Thread(target=tick)
        thread.start()
        yield samples
        end.set()
        thread.join()

    def test_beside_a_thread_of_a_fixture(ticker):
        sum(range(1000))
"""


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("bounded"))
    project.write("test_bounded.py", BOUNDED)
    return project.run("--leakcheck-min-time=20")


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("leaks"))
    project.write("test_leaks.py", LEAKS)
    return project.run()


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("last"))
    project.write("test_last.py", LAST)
    return project.run("--leakcheck-min-time=3")


@pytest.mark.laboratory
def test_no_bound_is_red(bounded: Outcome) -> None:
    assert len(bounded.verdicts) >= 2 * len(BOUNDS)
    assert not [one for one in bounded.findings if one["colour"] == "red"]
    assert bounded.status == 0


@pytest.mark.laboratory
def test_a_dict_that_evicts_by_hand_is_seen_to_stand_still(bounded: Outcome) -> None:
    for bound in (300, 1000):
        found = {bounded.finding(f"test_evicts_by_hand[{bound}]", name)["verdict"] for name in ("heap", "block")}
        assert found == {"ok"}


@pytest.mark.parametrize("log", ["in_deque", "in_deque_of_instances", "in_lru_cache"])
@pytest.mark.parametrize(
    ("leak", "resource", "slope"),
    [("fd", "fd", 1), ("4096", "heap", 4096), ("100000", "heap", 100_000), ("task", "task", 1)],
)
def test_a_leak_beside_a_bounded_log_is_red(leaks: Outcome, log: str, leak: str, resource: str, slope: float) -> None:
    found = leaks.finding(f"test_beside[leak_{leak}-{log}]", resource)
    assert found["verdict"] == "leak"
    assert found["slope"] == pytest.approx(slope, rel=0.1)


@pytest.mark.parametrize("log", ["in_deque", "in_lru_cache"])
def test_the_log_alone_is_green(leaks: Outcome, log: str) -> None:
    of_it = [one for one in leaks.findings if one["test"].endswith(f"test_beside[leak_nothing-{log}]")]
    assert {one["verdict"] for one in of_it} == {"ok"}
    (object_,) = (one for one in of_it if one["resource"] == "block")
    assert object_["reason"].startswith("cache filling: ")


def test_a_cache_that_cannot_be_filled_is_green_up_to_a_level_that_it_would_exceed(leaks: Outcome) -> None:
    found = leaks.finding("test_cache_that_cannot_be_filled", "heap")
    assert found["verdict"] == "ok"
    assert found["reason"].startswith("cache filling: lru_cache of page: ")
    assert " of 100,000, 3.0 KiB each, at most 29" in found["reason"]
    assert found["floor"] > 1000, "a leak smaller than the entries would not be seen"
    above = leaks.finding("test_cache_above_the_level_when_full", "heap")
    assert above["verdict"] in ("inconclusive", "over_budget")


def test_a_full_deque_whose_new_entries_are_heavier_is_not_red(leaks: Outcome) -> None:
    of_it = [one for one in leaks.findings if one["test"].endswith("test_new_entries_are_heavier")]
    assert of_it
    assert {one["colour"] for one in of_it} <= {"green", "yellow"}


def test_a_zombie_is_a_leak_of_processes(leaks: Outcome) -> None:
    found = leaks.finding("test_zombie", "process")
    assert (found["verdict"], found["slope"]) == ("leak", 1)
    assert found["held"][0]["what"].startswith("zombie of ")
    assert leaks.verdicts["test_waited_for", "process"] == "ok"


def test_what_a_finalizer_gives_back_by_breaking_its_own_cycle_is_unclosed(leaks: Outcome) -> None:
    found = leaks.finding("test_loop_not_closed", "fd")
    assert (found["verdict"], found["slope"]) == ("unclosed", 3)
    assert leaks.verdicts["test_loop_closed", "fd"] == "ok"


def test_a_pool_that_outlives_warm_up_is_no_excuse(leaks: Outcome) -> None:
    assert leaks.verdicts["test_in_a_pool", "heap"] == "leak"


@pytest.mark.laboratory
def test_a_leak_in_every_40th_call_is_red(last: Outcome) -> None:
    found = last.finding("test_now_and_then", "heap")
    assert found["verdict"] == "leak"
    assert found["slope"] == pytest.approx((1 << 20) / 40, rel=0.1)
    assert last.verdicts["test_large_and_dropped", "heap"] == "ok"


@pytest.mark.laboratory
def test_what_grows_after_it_was_ok_is_red(last: Outcome) -> None:
    found = last.finding("test_leaks_after_a_while", "fd")
    assert (found["verdict"], found["slope"]) == ("leak", 0.5)
    assert last.verdicts["test_opens_two_files_after_a_while", "fd"] == "ok"


@pytest.mark.laboratory
def test_shared_pages_that_no_allocator_counts_are_red(last: Outcome) -> None:
    found = last.finding("test_touches_a_new_page", "rss")
    assert found["verdict"] == "leak"
    assert found["slope"] == pytest.approx(4096, rel=0.1)
    assert last.verdicts["test_touches_one_page", "rss"] == "ok"


@pytest.mark.laboratory
def test_a_thread_of_a_fixture_is_not_held_against_the_test(last: Outcome) -> None:
    of_it = [one for one in last.findings if one["test"].endswith("test_beside_a_thread_of_a_fixture")]
    assert of_it
    assert not [one for one in of_it if one["colour"] == "red"]
