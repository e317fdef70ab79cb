"""Growth of resident memory that no exact counter shows is in doubt without a budget, and a leak under one."""

from __future__ import annotations

import sys

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

TESTS = """
    import itertools
    import mmap

    import numpy as np
    import pytest

    MIB = 1 << 20
    pytestmark = pytest.mark.leakcheck
    # As an allocator of its own does, it reserves address space once, and hands it out in pieces.
    ARENA = mmap.mmap(-1, 1024 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    AT, KEPT = itertools.count(), []

    def test_arena_leaks():
        ARENA.seek(2 * MIB * next(AT))
        ARENA.write(bytes([1]) * (2 * MIB))

    def test_arena_reused():
        ARENA.seek(0)
        ARENA.write(bytes([1]) * (2 * MIB))

    @pytest.mark.rss_budget
    def test_arena_leaks_under_a_budget():
        ARENA.seek(2 * MIB * next(AT))
        ARENA.write(bytes([1]) * (2 * MIB))

    @pytest.mark.heap_budget(per_iteration="2 MiB")
    @pytest.mark.mmap_budget(per_iteration="2 MiB")
    @pytest.mark.object_budget(per_iteration=4)
    @pytest.mark.block_budget(per_iteration=4)
    def test_growth_is_allowed_to_the_heap():
        KEPT.append(np.ones(MIB, np.uint8))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("resident"))
    project.write("test_resident.py", TESTS)
    return project.run()


def test_growth_past_malloc_is_in_doubt_and_a_budget_decides_it(outcome: Outcome) -> None:
    found = outcome.finding("test_arena_leaks", "rss")
    assert (found["verdict"], found["colour"]) == ("inconclusive", "yellow")
    assert found["slope"] == pytest.approx(2 << 20, rel=0.1)
    assert "while the exact memory counters do not grow" in found["reason"]
    assert found["advice"] == "to have it judged, set a budget: rss_budget()"
    budgeted = outcome.finding("test_arena_leaks_under_a_budget", "rss")
    assert budgeted["verdict"] == "leak"
    assert budgeted["site"]["function"] == "test_arena_leaks_under_a_budget"


@pytest.mark.parametrize("test", ["test_arena_reused", "test_growth_is_allowed_to_the_heap"])
def test_what_is_reused_or_shown_by_the_heap_is_ok(outcome: Outcome, test: str) -> None:
    assert outcome.verdicts[test, "rss"] == "ok"


@pytest.mark.parametrize("arguments", [(), ("--leakcheck-scope=all",)], ids=["marked", "screened"])
def test_growth_that_would_be_in_doubt_is_no_floor(project: Project, arguments: tuple[str, ...]) -> None:
    mark = "" if arguments else "@pytest.mark.leakcheck\n"
    text = f"import pytest\n{mark}def test_clean(): pass\n@pytest.mark.rss_budget\ndef test_bounded(): pass\n"
    project.write("test_it.py", text)
    ran = project.run(*arguments)
    assert ran.finding("test_clean", "rss")["floor"] is None
    assert ran.finding("test_bounded", "rss")["floor"] >= 4096
    assert ran.finding("test_clean", "heap")["floor"] > 0
