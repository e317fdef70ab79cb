"""A test that takes the machine's memory or disk is stopped; the session and the next tests go on."""

from __future__ import annotations

import sys

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


FEW_DESCRIPTORS = """
    import os, pytest, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 600, 1024))
    KEPT = []

    @pytest.mark.leakcheck(warmup=1, resources=["fd"])
    def test_it():
        if len(KEPT) < {most}: KEPT.extend(open(os.devnull) for _ in range({each}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what is left on Linux")
def test_it_is_judged_in_time_for_the_search(project: Project) -> None:
    # Of 600, 150 may be taken: the 36 iterations for which it may be a pool would leave none.
    ran = project.run_test(FEW_DESCRIPTORS.format(most=1000, each=4), "--leakcheck-min-time=30")
    assert ran.finding("test_it")["culprit"]["owner"]["name"] == "test_it.KEPT", ran.text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what is left on Linux")
def test_a_pool_that_fills_before_is_no_leak(project: Project) -> None:
    ran = project.run_test(FEW_DESCRIPTORS.format(most=112, each=8))
    assert ran.verdicts["test_it", "fd"] == "ok", ran.text


def test_a_search_that_leaves_no_room_says_so(project: Project) -> None:
    # The verdict comes after 17 iterations, of which 30 would be too many.
    project.write("conftest.py", SMALL.format(size=1600))
    ran = project.run_test(KEEPS.format(mark="@pytest.mark.leakcheck(warmup=1)"))
    found = ran.finding("test_keeps", "heap")
    assert found["verdict"] == "leak", ran.text
    reasons = set(found["culprit"]["unresolved"].values())
    assert reasons
    assert all(one.startswith("there was no room for more iterations: ") for one in reasons), ran.text


KEEPS_DESCRIPTORS = """
    import os, pytest, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    KEPT = []

    @pytest.mark.leakcheck{mark}
    def test_keeps(): KEPT.extend(os.open(os.devnull, os.O_RDONLY) for _ in range({each}))

    @pytest.mark.leakcheck{mark}
    def test_needs_many():
        for one in [os.open(os.devnull, os.O_RDONLY) for _ in range(400)]: os.close(one)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what is left on Linux")
@pytest.mark.parametrize(("each", "verdict"), [(100, "inconclusive"), (28, "leak")])
@pytest.mark.parametrize("mark", ["", "(isolate=True)"])
def test_descriptors_are_left_for_the_next_tests(project: Project, each: int, verdict: str, mark: str) -> None:
    ran = project.run_test(KEEPS_DESCRIPTORS.format(mark=mark, each=each), "--leakcheck-fail-on=none")
    assert ran.last_line == "2 passed", ran.text
    assert ran.verdicts["test_needs_many", "fd"] == "ok"
    assert ran.verdicts["test_keeps", "fd"] == verdict, ran.text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what is left on Linux")
def test_the_memory_of_children_counts(project: Project) -> None:
    """A machine of 500 MiB, of which only children take some."""
    project.write(
        "conftest.py",
        """
        from pytest_leakcheck.runner import room
        room.memory_left = lambda: (500 << 20) - sum(map(room.resident_of, room.own_tree()[1:]))
        """,
    )
    ran = project.run_test(
        """
        import subprocess, sys, pytest
        KEPT = []
        CHILD = "kept = b'x' * (30 << 20); print(flush=True); input()"

        @pytest.mark.leakcheck
        def test_keeps():
            pipe = subprocess.PIPE
            child = subprocess.Popen([sys.executable, "-S", "-c", CHILD], stdin=pipe, stdout=pipe)
            child.stdout.readline()
            KEPT.append(child)

        def test_after():
            for child in KEPT: child.communicate(b"\\n")
            assert len(KEPT) < 6
        """,
        "--leakcheck-fail-on=none",
    )
    assert ran.last_line == "2 passed", ran.text
    (found,) = (one for one in ran.findings if one["verdict"] == "inconclusive")
    assert found["reason"].endswith(" MiB of memory: more iterations would take too much of it")
