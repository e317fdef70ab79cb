"""Growth of resident memory that no exact counter shows is a leak, also without a budget."""

from __future__ import annotations

import sys

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("resident"))
    project.copy("arms_of_resident_memory.py", "test_resident.py")
    return project.run()


def test_memory_that_was_there_at_the_start_and_is_used_later_is_in_doubt(outcome: Outcome) -> None:
    found = outcome.finding("test_ring_is_written", "rss")
    assert (found["verdict"], found["colour"]) == ("inconclusive", "yellow")
    assert found["slope"] == pytest.approx(2 << 20, rel=0.1)
    assert found["advice"] == "to have it judged, set a budget: rss_budget()"


@pytest.mark.parametrize("test", ["test_arena_leaks_past_malloc", "test_arena_leaks_under_a_budget"])
def test_growth_past_malloc_is_a_leak_with_its_line(outcome: Outcome, test: str) -> None:
    found = outcome.finding(test, "rss")
    assert (found["verdict"], found["site"]["function"]) == ("leak", test)
    assert found["slope"] == pytest.approx(2 << 20, rel=0.1)
    assert "while the exact memory counters do not grow" in found["reason"]
    assert "allowed" not in found["reason"]


def test_mappings_of_a_slow_test_are_a_leak_after_few_iterations(outcome: Outcome) -> None:
    """The ring is malloc's, and these pages are not in it, since the address space grows."""
    found = outcome.finding("test_slow_mappings_beside_a_ring", "mmap")
    assert (found["verdict"], found["iterations"]) == ("leak", 17)
    assert found["site"]["function"] == "test_slow_mappings_beside_a_ring"


@pytest.mark.parametrize("test", ["test_arena_reused", "test_growth_is_allowed_to_the_heap"])
def test_what_is_reused_or_shown_by_the_heap_is_ok(outcome: Outcome, test: str) -> None:
    assert outcome.verdicts[test, "rss"] == "ok"


def test_a_pool_is_given_the_usual_time_to_fill(project: Project) -> None:
    """Although the process would die of such growth within its run."""
    project.write(
        "test_pool.py",
        """
        import itertools, mmap
        import pytest

        POOL = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        AT = itertools.cycle(range(0, 48 << 20, 1 << 19))

        @pytest.mark.leakcheck
        def test_pool():
            POOL.seek(next(AT))
            POOL.write(b"1" * (1 << 19))
        """,
    )
    run = "--leakcheck-run=1000000"
    assert project.run(run, "--leakcheck-min-time=3").verdicts["test_pool", "rss"] == "ok"
    assert project.run(run, "--leakcheck-min-time=0").verdicts["test_pool", "rss"] == "leak"


@pytest.mark.parametrize("arguments", [(), ("--leakcheck-scope=all",)], ids=["marked", "screened"])
def test_growth_that_would_be_in_doubt_is_no_floor(project: Project, arguments: tuple[str, ...]) -> None:
    mark = "" if arguments else "@pytest.mark.leakcheck\n"
    text = f"import pytest\n{mark}def test_clean(): pass\n@pytest.mark.rss_budget\ndef test_bounded(): pass\n"
    project.write("test_it.py", text)
    ran = project.run(*arguments)
    assert ran.finding("test_clean", "rss")["floor"] is None
    assert ran.finding("test_bounded", "rss")["floor"] >= 4096
    assert ran.finding("test_clean", "heap")["floor"] > 0
