"""A test that takes the machine's memory or disk is stopped; the session and the next tests go on."""

from __future__ import annotations

import pytest

from projects import Project

# A machine on which this process may take so many MiB, as it seems to the plugin.
SMALL = """
    import os
    from pytest_leakcheck.runner import room
    START = room.resident_of(os.getpid())
    room.memory_left = lambda: max(1, ({size} << 20) - (room.resident_of(os.getpid()) - START))
"""
KEEPS = """
    import pytest
    KEPT = []

    {mark}
    def test_keeps(): KEPT.append(bytearray(b"x") * (20 << 20))

    def test_after(): assert len(KEPT) < 30
"""


@pytest.mark.parametrize("mark", ["", "@pytest.mark.leakcheck", "@pytest.mark.heap_budget(per_iteration='1 KiB')"])
def test_memory_is_left_for_the_session(project: Project, mark: str) -> None:
    project.write("conftest.py", SMALL.format(size=500))
    ran = project.run_test(KEEPS.format(mark=mark), "--leakcheck-scope=all", "--leakcheck-fail-on=none")
    assert ran.last_line == "2 passed", ran.text
    assert "1 ok · 1 inconclusive" in ran.text
    (one,) = (one for one in ran.findings if one["verdict"] == "inconclusive")
    assert one["reason"].startswith("stopped at "), one
    assert one["reason"].endswith(" MiB of memory: more iterations would take too much of it")


def test_with_enough_room_it_is_a_leak_whose_cause_is_named(project: Project) -> None:
    ran = project.run_test(KEEPS.format(mark="").replace("20 << 20", "1 << 20"), "--leakcheck-scope=all")
    assert ran.finding("test_keeps", "heap")["culprit"]["owner"]["name"] == "test_it.KEPT"


def test_a_search_that_leaves_no_room_says_so(project: Project) -> None:
    # The verdict comes after 17 iterations, of which 30 would be too many.
    project.write("conftest.py", SMALL.format(size=1600))
    ran = project.run_test(KEEPS.format(mark="@pytest.mark.leakcheck(warmup=1)"))
    found = ran.finding("test_keeps", "heap")
    assert found["verdict"] == "leak", ran.text
    reasons = set(found["culprit"]["unresolved"].values())
    assert reasons
    assert all(one.startswith("there was no room for more iterations: ") for one in reasons), ran.text
