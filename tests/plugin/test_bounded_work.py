"""Work that fills something with a bound, and leaks beside it: no false alarm when it is full, and no leak hidden by it."""

from __future__ import annotations

import sys

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")

LEAKS = """
    import asyncio
    import functools
    import itertools
    import os
    from collections import deque

    import pytest

    pytestmark = pytest.mark.leakcheck
    KEPT, OWNERS = {}, {}
    REQUESTS = itertools.count()
    LOOP = asyncio.new_event_loop()

    def in_deque(name):
        OWNERS.setdefault(name, deque(maxlen=10_000)).append({"request": next(REQUESTS), "path": "/x"})

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

    @pytest.mark.parametrize("log", [in_deque, in_lru_cache])
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
"""
LAST = """
    import itertools
    import mmap
    import os

    import pytest

    pytestmark = pytest.mark.leakcheck
    KEPT, MEMORY = [], mmap.mmap(-1, 1 << 26)
    PAGES, LATE, TWICE = (itertools.count() for _ in range(3))

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
"""


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


@pytest.mark.parametrize("log", ["in_deque", "in_lru_cache"])
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


@pytest.mark.laboratory
def test_what_grows_after_it_was_ok_is_red(last: Outcome) -> None:
    found = last.finding("test_leaks_after_a_while", "fd")
    assert (found["verdict"], found["slope"]) == ("leak", pytest.approx(0.5, rel=0.05))
    assert last.verdicts["test_opens_two_files_after_a_while", "fd"] == "ok"


@pytest.mark.laboratory
def test_shared_pages_that_no_allocator_counts_are_red(last: Outcome) -> None:
    found = last.finding("test_touches_a_new_page", "rss")
    assert found["verdict"] == "leak"
    assert found["slope"] == pytest.approx(4096, rel=0.1)
    assert last.verdicts["test_touches_one_page", "rss"] == "ok"
