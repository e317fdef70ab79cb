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
    assert found["reason"].startswith("does not repeat: iteration 8 ended with AssertionError: eighth time")


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
        """,
    )
    outcome = project.run()
    assert outcome.verdicts["test_of_the_library", "object"] == "inconclusive"
    assert "empties on request" in outcome.finding("test_of_the_library", "object")["reason"]
    assert outcome.verdicts["test_beside_it", "object"] == "leak"
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


def test_a_timeout_is_never_of_our_making(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import time
        import pytest
        @pytest.mark.fd_budget(0)
        @pytest.mark.timeout(2)
        def test_it(): time.sleep(0.2)
        """,
    )
    outcome = project.run()
    assert outcome.last_line == "1 passed"
    assert outcome.finding("test_it")["reason"].endswith(" iterations, 13 needed")


def test_own_descriptors_survive_a_double_close(project: Project) -> None:
    """A test that closes a descriptor twice, or a range of them, hits none of the harness's."""
    project.write(
        "test_it.py",
        HEAD
        + """
    STALE = []

    @pytest.mark.fd_budget(0)
    def test_twice():
        file = os.open(__file__, os.O_RDONLY)
        os.close(file)
        for number in STALE:
            with pytest.raises(OSError):
                os.close(number)
        STALE[:] = [file]

    @pytest.mark.fd_budget(0)
    def test_range(): os.closerange(3000, 5000)

    @pytest.mark.fd_budget(0)
    def test_callbacks():
        import gc
        gc.callbacks.clear()
    """,
    )
    outcome = project.run()
    assert outcome.last_line == "3 passed", outcome.text


def test_one_measurement_at_a_time(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import gc
        import pytest

        def test_nested(leakcheck):
            with pytest.raises(RuntimeError, match="a measurement is under way in this process already"):
                for _ in leakcheck.steps(fd=0):
                    with leakcheck.budget(fd=0): pass

        def test_a_gauge_that_fails(leakcheck):
            leakcheck.gauge("broken", lambda: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                for _ in leakcheck.steps(fd=0): pass

        def test_a_new_gauge(leakcheck):
            with pytest.raises(RuntimeError, match="inside the loop is new"):
                for _ in leakcheck.steps(fd=0): leakcheck.gauge("late", 1)

        def test_no_step(leakcheck):
            with pytest.raises(ValueError, match="not a number of steps"):
                list(leakcheck.steps(0, fd=0))

        def test_nothing_is_left_behind():
            assert gc.get_freeze_count() == 0
            assert gc.callbacks == []
        """,
    )
    assert project.run().last_line == "5 passed"


def test_warnings_as_errors(project: Project) -> None:
    """An unclosed file that the collector finds is the finding, and no failure of the iteration after it."""
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.fd_budget(0)
        def test_it():
            cycle = [open(__file__)]
            cycle.append(cycle)
        """,
    )
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    outcome = project.run("-p", "no:asyncio")
    assert outcome.finding("test_it")["verdict"] == "unclosed", outcome.text
    assert "Traceback" not in outcome.text


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


def test_noise_of_the_allocator_is_no_leak(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import random
        import pytest

        @pytest.mark.leakcheck
        def test_mixed_sizes(): [bytes(random.randrange(1, 200_000)) for _ in range(200)]

        @pytest.mark.object_budget(0)
        def test_cycles():
            with pytest.raises(ValueError): raise ValueError
            cycle = []
            cycle.append(cycle)

        @pytest.mark.heap_budget(0)
        def test_empty(): pass

        def test_block(leakcheck):
            with leakcheck.budget(): pass
        """,
    )
    outcome = project.run()
    assert {one["verdict"] for one in outcome.findings} <= {"ok", "inconclusive"}, outcome.text
    assert outcome.verdicts["test_cycles", "object"] == "ok"
    assert outcome.verdicts["test_empty", "heap"] == "ok"
    assert outcome.verdicts["test_block", "fd"] == "ok"
    assert outcome.last_line == "4 passed"


def test_in_ci_the_short_summary_is_one_line(project: Project) -> None:
    project.write("test_it.py", HEAD + "\n    @pytest.mark.fd_budget(0)\n    def test_it(): leak()\n")
    text = project.run(CI="true").text
    assert text.rstrip().splitlines()[-2].startswith("LEAK test_it.py::test_it - LeakError: fd +1.0/iter")
    assert text.count("finding  ") == 1


def test_a_report_that_can_no_longer_be_written(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import shutil
        def test_it(): shutil.rmtree("reports")
        """,
    )
    (project.folder / "reports").mkdir()
    outcome = project.run("--leakcheck", "--leakcheck-json=reports/a.json", leakcheck=False)
    assert outcome.status != 0
    assert "leakcheck: could not write" in outcome.text
    assert "Traceback" not in outcome.text
