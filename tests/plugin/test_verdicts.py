"""What happens to leaks, and to what only looks like one, in tests as users write them."""

from __future__ import annotations

import pytest

from projects import HEAD, ROOT, Project


def test_running_out_is_a_leak(project: Project) -> None:
    """Descriptors end before the rule can speak: the report still comes, with the failure that ended the run."""
    project.write(
        "test_it.py",
        HEAD
        + """
    import resource

    @pytest.fixture(scope="module", autouse=True)
    def low_limit():
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        yield
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for file in KEPT: os.close(file)

    @pytest.fixture
    def needs_a_file():
        file = os.open(__file__, os.O_RDONLY)
        yield
        os.close(file)

    @pytest.mark.fd_budget(0)
    def test_it(needs_a_file):
        for _ in range(5): leak()
    """,
    )
    outcome = project.run()
    found = outcome.finding("test_it")
    assert (outcome.status, found["verdict"]) == (1, "leak"), outcome.text
    assert found["slope"] == pytest.approx(5)
    assert "then OSError: [Errno 24] Too many open files" in found["reason"]
    assert "LeakError: fd +5.0/iter" in outcome.text


@pytest.mark.laboratory
def test_a_slow_test_goes_red(project: Project) -> None:
    """Growth that is soon fatal is not watched for the horizon of 200: a test of one second is red within its 30 s."""
    project.write(
        "test_it.py",
        HEAD
        + """
    import time
    @pytest.mark.heap_budget
    def test_slow():
        KEPT.append(bytearray(50 << 20))
        time.sleep(0.1)
    """,
    )
    outcome = project.run()
    found = outcome.finding("test_slow", "heap")
    assert (outcome.status, found["verdict"]) == (1, "leak"), outcome.text
    assert found["slope"] == pytest.approx(50 << 20, rel=0.01)
    # With three of warm-up, and at most 25 that name the line if time is left.
    assert found["iterations"] == 17


def test_the_collector_as_the_user_has_it(project: Project) -> None:
    outcome = project.run_test("""
        import gc, os
        import pytest

        class Cycle:
            def __init__(self): self.me, self.file = self, os.open(__file__, os.O_RDONLY)
            def __del__(self): os.close(self.file)

        @pytest.mark.fd_budget(0)
        def test_on(): Cycle()

        @pytest.mark.fd_budget(0)
        class TestOff:
            @pytest.fixture(scope="class", autouse=True)
            def off(self):
                gc.disable()
                yield
                gc.enable()
                gc.collect()
            def test_off(self): Cycle()

        @pytest.mark.fd_budget(0, unclosed="allow")
        def test_allowed(): Cycle()

        @pytest.mark.fd_budget(0, unclosed="warn")
        def test_warned(): Cycle()

        @pytest.mark.leakcheck
        def test_by_default(): Cycle()

        def test_left_as_it_was():
            assert gc.isenabled()
            assert gc.get_freeze_count() == 0
            assert gc.callbacks == []
        """)
    assert outcome.verdicts["test_on", "fd"] == "unclosed"
    assert outcome.finding("test_on")["slope"] == 1.0
    assert outcome.finding("test_on")["colour"] == "red"
    assert outcome.verdicts["test_off", "fd"] == "leak"
    assert "collector    disabled by the program" in outcome.text
    assert outcome.verdicts["test_allowed", "fd"] == "ok"
    assert (outcome.verdicts["test_warned", "fd"], outcome.finding("test_warned")["colour"]) == ("unclosed", "yellow")
    assert (outcome.verdicts["test_by_default", "fd"], outcome.finding("test_by_default")["colour"]) == (
        "unclosed",
        "yellow",
    )
    assert outcome.last_line == "2 failed, 4 passed"


def test_bounded_caches_are_no_leak(project: Project) -> None:
    outcome = project.run_test("""
        import functools, itertools, os, re
        import pytest

        NUMBERS = itertools.count()

        @functools.lru_cache(maxsize=128)
        def cached(number): return os.open(__file__, os.O_RDONLY)

        @functools.lru_cache(maxsize=1000)
        def larger(number): return os.open(__file__, os.O_RDONLY)

        @pytest.mark.fd_budget
        def test_fills(): cached(next(NUMBERS) % 128)

        @pytest.mark.fd_budget
        def test_still_filling(): larger(next(NUMBERS))

        @pytest.mark.object_budget
        def test_of_the_library(): re.match("a{%d}b" % (next(NUMBERS) % 400), "aab")

        PATTERNS = []

        @pytest.mark.object_budget
        def test_beside_it(): PATTERNS.append(re.compile("c{%d}" % next(NUMBERS)))
        """)
    assert outcome.verdicts["test_of_the_library", "object"] == "inconclusive"
    assert "empties on request" in outcome.finding("test_of_the_library", "object")["reason"]
    assert outcome.verdicts["test_beside_it", "object"] == "leak"
    assert outcome.verdicts["test_fills", "fd"] == "ok", outcome.text
    found = outcome.finding("test_still_filling")
    assert found["verdict"] == "inconclusive"
    assert "bounded cache still filling: lru_cache of larger: 565 of 1,000" in found["reason"]


@pytest.mark.laboratory
def test_mapped_memory_beside_threads_that_end_later(project: Project) -> None:
    """Their stacks and arenas are no leak, even if only mapped memory is judged; pages that stay are one."""
    project.write(
        "test_it.py",
        """
        import threading, time
        import pytest
        from cases import clib
        KEPT = clib.addresses()

        def work(seconds):
            [bytes(5000) for _ in range(40)]
            time.sleep(seconds)

        @pytest.mark.leakcheck(resources=["mmap"])
        def test_ends_later():
            threading.Thread(target=work, args=(1.5,)).start()
            time.sleep(0.001)

        @pytest.mark.leakcheck(resources=["mmap"])
        def test_keeps():
            threading.Thread(target=work, args=(0.4,)).start()
            KEPT.append(clib.map_pages(1 << 16))
        """,
    )
    outcome = project.run(PYTHONPATH=str(ROOT / "tests"))
    assert outcome.verdicts["test_ends_later", "mmap"] in ("ok", "inconclusive"), outcome.text
    assert outcome.verdicts["test_keeps", "mmap"] == "leak"


def test_leaks_of_children_are_named_as_children(project: Project) -> None:
    """Their descriptors count too, and are not what leaks."""
    project.write(
        "test_it.py",
        HEAD
        + """
    import subprocess

    @pytest.fixture(scope="module", autouse=True)
    def clean_up():
        yield
        for child in KEPT:
            child.kill(); child.wait()

    @pytest.mark.leakcheck
    def test_it(): KEPT.append(subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE))
    """,
    )
    outcome = project.run()
    assert outcome.finding("test_it", "process")["verdict"] == "leak", outcome.text
    assert "means" not in outcome.text


def test_what_a_child_inherits_is_not_opened(project: Project) -> None:
    outcome = project.run_test("""
        import os, signal
        import pytest
        FILES = [open(__file__) for _ in range(20)]
        READY = os.pipe()
        CHILDREN = []

        @pytest.fixture(scope="module", autouse=True)
        def end_children():
            yield
            for child in CHILDREN:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)

        def leave_child(opened):
            child = os.fork()
            if not child:
                for _ in range(opened): os.open("/dev/null", os.O_RDONLY)
                os.write(READY[1], b"1")
                signal.alarm(300)
                while True: signal.pause()
            CHILDREN.append(child)
            os.read(READY[0], 1)

        @pytest.mark.leakcheck
        def test_left(): leave_child(0)

        @pytest.mark.fd_budget(0)
        def test_inherits(): leave_child(0)

        @pytest.mark.fd_budget(0)
        def test_opens(): leave_child(3)
        """)
    assert outcome.verdicts["test_left", "process"] == "leak"
    assert outcome.verdicts["test_left", "fd"] == "ok"
    assert outcome.verdicts["test_inherits", "fd"] == "ok"
    opens = outcome.finding("test_opens")
    assert (opens["verdict"], opens["slope"]) == ("leak", 3.0)
