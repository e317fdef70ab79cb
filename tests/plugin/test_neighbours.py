"""What else a test may be or carry, and the plugin's manners with it."""

from __future__ import annotations

import pytest

from projects import Project

HEAD = """
    import os
    import pytest
    KEPT = []
    def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))
"""


def test_a_test_that_fails_gets_no_verdict(project: Project) -> None:
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.fixture(scope="module")
    def outer():
        yield
        print("MODULE TORN DOWN")

    @pytest.mark.fd_budget(0)
    def test_fails(outer):
        leak()
        assert len(KEPT) == 0, "my own failure"

    @pytest.mark.fd_budget(0)
    def test_skips(): pytest.skip("not here")

    @pytest.fixture
    def broken(): raise ValueError("set-up")

    @pytest.mark.fd_budget(0)
    def test_set_up(broken): pass
    """,
    )
    outcome = project.run("-rA", "-s")
    assert outcome.findings == []
    assert outcome.last_line == "1 failed, 1 skipped, 1 error"
    assert "my own failure" in outcome.text
    assert outcome.text.count("MODULE TORN DOWN") == 1


def test_an_expected_leak(project: Project) -> None:
    project.write(
        "test_it.py",
        HEAD
        + """
    from pytest_leakcheck import LeakError

    @pytest.mark.fd_budget(0)
    @pytest.mark.xfail(raises=LeakError, strict=True)
    def test_known(): leak()

    @pytest.mark.fd_budget(0)
    @pytest.mark.xfail(raises=LeakError, strict=True)
    def test_mended(): pass
    """,
    )
    outcome = project.run()
    assert outcome.last_line == "1 failed, 1 xfailed"
    assert "[XPASS(strict)]" in outcome.text


def test_a_test_that_does_not_repeat(project: Project) -> None:
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.mark.fd_budget(0)
    def test_once():
        KEPT.append(1)
        assert len(KEPT) < 8, "eighth time"
    """,
    )
    outcome = project.run()
    found = outcome.finding("test_once")
    assert found["verdict"] == "inconclusive"
    assert found["reason"].startswith("does not repeat: iteration 8 failed with AssertionError: eighth time")


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


def test_a_slow_test_goes_red(project: Project) -> None:
    """50 MiB an iteration in a test of one second, within the 30 s that a test is given."""
    project.write(
        "test_it.py",
        HEAD
        + """
    import time
    @pytest.mark.heap_budget
    def test_slow():
        KEPT.append(bytearray(50 << 20))
        time.sleep(1)
    """,
    )
    outcome = project.run()
    found = outcome.finding("test_slow", "heap")
    assert (outcome.status, found["verdict"]) == (1, "leak"), outcome.text
    assert found["slope"] == pytest.approx(50 << 20, rel=0.01)
    assert outcome.recordings[0]["seconds"] < 30


def test_the_collector_as_the_user_has_it(project: Project) -> None:
    project.write(
        "test_it.py",
        """
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
        """,
    )
    outcome = project.run()
    assert outcome.verdicts["test_on", "fd"] == "unclosed"
    assert outcome.finding("test_on")["slope"] == 1.0
    assert outcome.finding("test_on")["colour"] == "red"
    assert outcome.verdicts["test_off", "fd"] == "leak"
    assert "collector    switched off by the program" in outcome.text
    assert outcome.verdicts["test_allowed", "fd"] == "ok"
    assert (outcome.verdicts["test_warned", "fd"], outcome.finding("test_warned")["colour"]) == ("unclosed", "yellow")
    assert (outcome.verdicts["test_by_default", "fd"], outcome.finding("test_by_default")["colour"]) == (
        "unclosed",
        "yellow",
    )
    assert outcome.last_line == "2 failed, 4 passed"


def test_a_missing_instrument(project: Project) -> None:
    """Never a silent pass: the other budgets are judged first, then it is a skip with the reason, or a failure."""
    project.write(
        "conftest.py",
        """
        from pytest_leakcheck.probes import heap
        class NoMallinfo:
            def __init__(self, name): raise OSError("no libc here")
        heap.ctypes = type("ctypes", (), {"PyDLL": NoMallinfo})
        """,
    )
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.mark.fd_budget(0)
    @pytest.mark.heap_budget(0)
    def test_clean(): pass

    @pytest.mark.fd_budget(0)
    @pytest.mark.heap_budget(0)
    def test_leaky(): leak()
    """,
    )
    outcome = project.run("-rs")
    assert outcome.last_line == "1 failed, 1 skipped", outcome.text
    assert outcome.verdicts["test_clean", "heap"] == "unavailable"
    assert outcome.verdicts["test_clean", "fd"] == "ok"
    assert outcome.verdicts["test_leaky", "fd"] == "leak"
    assert "heap: the C library has no mallinfo2" in outcome.text
    strict = project.run("--leakcheck-missing=fail")
    assert strict.last_line == "2 failed"


def test_bounded_caches_are_no_leak(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import functools, itertools, os
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
        """,
    )
    outcome = project.run()
    assert outcome.verdicts["test_fills", "fd"] == "ok", outcome.text
    found = outcome.finding("test_still_filling")
    assert found["verdict"] == "inconclusive"
    assert "bounded cache still filling: lru_cache of larger: 290 of 1000" in found["reason"]


def test_a_debugger_means_one_run(project: Project) -> None:
    project.write(
        "test_it.py", HEAD + "\n    @pytest.mark.fd_budget(0)\n    def test_it(): leak(); assert len(KEPT) == 1\n"
    )
    assert project.run("--pdb").last_line == "1 passed"


def test_kept_by_threads_that_end_later(project: Project) -> None:
    """A thread that ends by itself a little after its test is no leak; one that stays is."""
    project.write(
        "test_it.py",
        """
        import threading, time
        import pytest
        STOP = threading.Event()

        @pytest.fixture(scope="module", autouse=True)
        def clean_up():
            yield
            STOP.set()

        @pytest.mark.thread_budget(0)
        def test_ends_later(): threading.Thread(target=time.sleep, args=(0.1,)).start()

        @pytest.mark.thread_budget(0)
        def test_stays(): threading.Thread(target=STOP.wait).start()
        """,
    )
    assert project.run().verdicts == {("test_ends_later", "thread"): "ok", ("test_stays", "thread"): "leak"}
