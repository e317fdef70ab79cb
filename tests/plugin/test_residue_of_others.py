"""A test is judged by what it does itself: what an earlier one left, or failed with, is not held against the next."""

from __future__ import annotations

import pytest

from projects import Project

LEAKY_THEN_CLEAN = """
    import gc, os, subprocess, tempfile, threading, time
    import pytest

    KEPT, END = [], threading.Event()

    @pytest.fixture(scope="session", autouse=True)
    def tidy():
        yield
        END.set()
        for one in KEPT:
            if isinstance(one, subprocess.Popen):
                one.kill()
                one.wait()

    class Cycle:
        def __init__(self):
            self.itself, self.file = self, open(os.devnull)

    @pytest.mark.leakcheck
    @pytest.mark.parametrize("leak", [
        lambda: KEPT.append(open(os.devnull)),
        lambda: KEPT.append(threading.Thread(target=END.wait)) or KEPT[-1].start(),
        lambda: KEPT.append(subprocess.Popen(["sleep", "60"])),
        lambda: KEPT.append([]),
        lambda: KEPT.append(tempfile.mkdtemp()),
        Cycle,
    ], ids=["file", "thread", "child", "list", "folder", "cycle"])
    @pytest.mark.parametrize("turn", ["leaky", "clean"])
    def test_it(turn, leak):
        if turn == "leaky":
            leak()
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_leaky_test_does_not_poison_the_next(project: Project) -> None:
    outcome = project.run_test(LEAKY_THEN_CLEAN, "-W", "ignore::ResourceWarning", TMPDIR=str(project.folder))
    red = {one["test"].partition("[")[2]: one for one in outcome.findings if one["verdict"] != "ok"}
    assert {name: (one["resource"], one["verdict"]) for name, one in red.items()} == {
        "leaky-file]": ("fd", "leak"),
        "leaky-thread]": ("thread", "leak"),
        "leaky-child]": ("process", "leak"),
        "leaky-list]": ("object", "leak"),
        "leaky-folder]": ("disk", "leak"),
        "leaky-cycle]": ("fd", "unclosed"),
    }


@pytest.mark.parametrize("begins", ["in a test", "as the tests are imported"])
def test_a_thread_that_goes_on_leaking_is_the_doing_of_the_test_that_left_it(project: Project, begins: str) -> None:
    outcome = project.run_test(f"""
        import threading, time
        import pytest

        KEPT, END = [], threading.Event()

        @pytest.fixture(scope="session", autouse=True)
        def tidy():
            yield
            END.set()

        def leak():
            while not END.wait(0.002):
                KEPT.append(bytearray(50_000))

        def begin():
            threading.Thread(target=leak).start()

        def test_that_leaves_a_thread():
            {"begin()" if begins == "in a test" else "pass"}

        {"" if begins == "in a test" else "begin()"}

        @pytest.mark.heap_budget
        def test_next():
            time.sleep(0.002)
        """)
    assert outcome.last_line == "2 passed"
    finding = outcome.finding("test_next", "heap")
    assert finding["verdict"] == "inconclusive"
    assert "also grows while the test is paused" in finding["reason"]
    left = "after test_it.py::test_that_leaves_a_thread left a thread running"
    assert (left in finding["reason"]) == (begins == "in a test")


def test_a_failed_test_gets_no_verdict_and_its_frames_are_no_leak_of_the_next(project: Project) -> None:
    """pytest keeps the frames of a failure, with all that is in them, until the next test is under way."""
    outcome = project.run_test(
        """
        import pytest

        @pytest.mark.leakcheck
        @pytest.mark.parametrize("turn", ["fails", "passes", "fails again", "passes again"])
        def test_it(turn):
            held = [open(__file__) for _ in range(20)], [[] for _ in range(10_000)], bytearray(10_000_000)
            assert turn.startswith("passes")
        """,
        "-W",
        "ignore::ResourceWarning",
        "-p",
        "no:unraisableexception",
    )
    assert outcome.last_line == "2 failed, 2 passed"
    assert {one["test"].partition("[")[2] for one in outcome.findings} == {"passes]", "passes again]"}
    assert {one["verdict"] for one in outcome.findings} == {"ok"}


# A thread that was there before the test. Each time it waits, it makes a lock and a method again; the first ones were
# there at the start.
WAITER = """
    import threading
    import pytest

    KEPT, CALLS = [], [0]

    class Waiter(threading.Thread):
        bell, heard, ended = threading.Event(), threading.Event(), False

        def run(self):
            while not self.ended:
                self.bell.wait()
                self.bell.clear()
                self.heard.set()

    @pytest.fixture(scope="module")
    def waiter():
        waiter = Waiter()
        waiter.start()
        yield waiter
        waiter.ended = True
        waiter.bell.set()
        waiter.join()

    @pytest.mark.leakcheck(iterations=60, resources=["object"])
    @pytest.mark.object_budget(0)
    def test_rings(waiter):
        CALLS[0] += 1
        if CALLS[0] > 20:
            waiter.bell.set()
            waiter.heard.wait()
            waiter.heard.clear()
            while not waiter.bell._cond._waiters:
                pass
        if CALLS[0] == 25 and KEEPS:
            KEPT.extend([[], [], []])
"""


@pytest.mark.parametrize(("keeps", "verdict", "level"), [(False, "ok", 0), (True, "over_budget", 3)])
def test_objects_that_an_earlier_thread_replaces_are_no_part_of_a_level(
    project: Project, keeps: bool, verdict: str, level: int
) -> None:
    ran = project.run_test(f"KEEPS = {keeps}\n" + WAITER.replace("\n    ", "\n"))
    found = ran.finding("test_rings", "object")
    assert (found["verdict"], found["level"]) == (verdict, level), ran.text
