"""Without a mark, a test first runs as in plain pytest; what its repetition does afterwards changes no outcome."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from projects import Project

ALL = ("--leakcheck-scope=all",)
# A hook that writes what a session logs, in the order in which it does.
_LOG = """
    from pathlib import Path
    def pytest_runtest_logreport(report):
        with Path("log").open("a") as file: file.write(f"{report.nodeid} {report.when} {report.outcome}\\n")
    def pytest_warning_recorded(warning_message, nodeid):
        with Path("log").open("a") as file: file.write(f"{nodeid} {warning_message.message}\\n")
"""
# Each of these once changed the outcome of a test, or hung the session.
DIFFERENT_LATER = {
    "rows of a session's database": """
        import sqlite3, pytest
        @pytest.fixture(scope="session")
        def rows():
            connection = sqlite3.connect(":memory:")
            connection.execute("create table t (x)")
            yield connection
            connection.close()
        def test_insert(rows): rows.execute("insert into t values (1)")
        def test_count(rows): assert rows.execute("select count(*) from t").fetchone() == (1,)
    """,
    "a pool that is used up": """
        POOL = [*range(6)]
        def test_it(): POOL.pop()
        def test_after(): pass
    """,
    "a later run that ends the session": """
        import os, pytest
        RUNS = []
        def ends_in(run, end):
            RUNS.append(1)
            if len(RUNS) == run: end()
        def interrupt(): raise KeyboardInterrupt
        def test_exit(): ends_in(5, lambda: pytest.exit("no more"))
        def test_interrupt(): ends_in(10, interrupt)
        def test_kill(): ends_in(15, lambda: os._exit(9))
        def test_after(): pass
    """,
    "a warning that is expected": """
        import warnings, pytest
        def test_raises():
            with pytest.raises(ResourceWarning): warnings.warn("unclosed", ResourceWarning)
    """,
    "an unclosed file": """
        def test_open(): open(__file__)
        def test_after(): pass
    """,
    # Collected in the second test. Where the collector would do so by itself depends on what is installed.
    "an error in a cycle": """
        import gc
        gc.set_threshold(1_000_000)
        def test_cycle():
            class Loud:
                def __del__(self): raise ValueError("late")
            one = Loud()
            one.one = one
        def test_after(): gc.collect()
    """,
    "a warning of the first run": """
        import warnings
        def test_warns(): warnings.warn("only once", UserWarning)
    """,
    "an environment that is replaced": """
        import os
        from unittest import TestCase, mock
        class TestIt(TestCase):
            @classmethod
            def setUpClass(cls):
                cls.patch = mock.patch("os.environ", dict(os.environ))
                cls.patch.start()
            @classmethod
            def tearDownClass(cls): cls.patch.stop()
            def test_first(self): pass
            def test_second(self): pass
    """,
    "functions that are replaced for good": """
        import os
        def refuse(*_): raise RuntimeError("refused")
        def test_replace(): os.listdir = os.scandir = refuse
        def test_after(): pass
    """,
    "an order in a class": """
        import unittest
        class TestSteps(unittest.TestCase):
            done = []
            def test_1(self): self.done.append(1)
            def test_2(self): assert self.done == [1]
    """,
}


def logged(project: Project, *arguments: str, leakcheck: bool) -> tuple[int, list[str]]:
    (project.folder / "log").write_text("")
    with tempfile.TemporaryDirectory() as shared:
        ran = project.run(*arguments, leakcheck=leakcheck, TMPDIR=shared)
        assert {one.name.partition("-")[0] for one in Path(shared).iterdir()} <= {"pytest"}
    assert "INTERNALERROR" not in ran.text, ran.text
    log = re.sub(r"\bat 0x[0-9a-f]+", "at ADDRESS", (project.folder / "log").read_text())
    return ran.status, log.splitlines()


@pytest.mark.parametrize("suite", DIFFERENT_LATER.values(), ids=DIFFERENT_LATER)
@pytest.mark.parametrize("filters", [(), ("-W", "error")], ids=["", "error"])
def test_a_session_logs_what_a_plain_one_logs(project: Project, suite: str, filters: tuple[str, ...]) -> None:
    project.write("test_it.py", suite)
    project.write("conftest.py", _LOG)
    plain = logged(project, *filters, leakcheck=False)
    assert logged(project, *filters, *ALL, "--leakcheck-fail-on=none", leakcheck=True) == plain
    assert len(plain[1]) >= 3


def test_garbage_of_repeated_runs_is_not_reported_where_the_collector_is_off(project: Project) -> None:
    """pytest collects it when the session ends; of each of its errors there was once a report."""
    suite = """
        import gc
        gc.disable()
        class Loud:
            def __init__(self): self.me = self
            def __del__(self): raise ValueError("late")
        def test_cycle(): Loud()
    """
    for arguments in ((), (*ALL, "--leakcheck-fail-on=none")):
        ran = project.run_test(suite, "-W", "error", *arguments, leakcheck=bool(arguments))
        assert ran.text.count("ValueError: late") == 1, ran.text


def test_a_failure_shows_no_frame_of_the_plugin(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import gc
        import pytest
        from pytest_leakcheck.plugin import repeated_item

        @pytest.fixture
        def broken(): raise ValueError("broken")

        def pytest_runtest_call(): gc.collect()

        # As if the collector ran in a call of the plugin.
        of_plugin = pytest_runtest_call.__code__.replace(co_filename=repeated_item.__file__)
        pytest_runtest_call.__code__ = of_plugin
        """,
    )
    project.write(
        "test_it.py",
        """
        import gc
        gc.disable()
        def test_fixture(broken): pass
        def test_cycle():
            class Cycle: pass
            one = Cycle()
            one.one, one.file = one, open(__file__)
        def test_collects(): pass
        """,
    )

    def shown(*arguments: str) -> list[str]:
        text = project.run("-W", "error", *arguments, leakcheck=bool(arguments)).text
        return re.findall(r"(?m)^\S+\.py:\d+", text)

    plain = shown()
    assert "conftest.py:6" in plain
    assert shown(*ALL, "--leakcheck-fail-on=none") == [one for one in plain if "repeated_item.py" not in one]


def test_hooks_of_the_project_see_each_test_once(project: Project) -> None:
    project.write("test_it.py", "def test_first(): pass\ndef test_second(): pass\n")
    project.write(
        "conftest.py",
        """
        MADE = []
        def pytest_runtest_makereport(item, call): MADE.append((item.name, call.when))
        def pytest_terminal_summary(terminalreporter): terminalreporter.write_line(f"made {len(MADE)}")
        """,
    )
    ran = project.run(*ALL)
    assert "made 6" in ran.text
    assert "2 tests: 2 ok" in ran.text


def test_a_first_pass_costs_a_few_calls_per_test(project: Project) -> None:
    project.write("test_it.py", "import pytest\n@pytest.mark.parametrize('n', range(50))\ndef test_it(n): pass\n")
    project.write(
        "conftest.py",
        """
        import sys, pytest
        CALLS = []
        def count(frame, event, argument):
            # Also what a function of the plugin calls in C.
            if event in ("call", "c_call") and "pytest_leakcheck" in frame.f_code.co_filename: CALLS.append(event)
        @pytest.hookimpl(wrapper=True, trylast=True)
        def pytest_runtestloop():
            sys.setprofile(count)
            yield
            sys.setprofile(None)
            CALLS.append("the end of the first pass")
            return True
        def pytest_terminal_summary(terminalreporter):
            terminalreporter.write_line(f"calls {CALLS.index('the end of the first pass')}")
        """,
    )
    counted = re.search(r"calls (\d+)", project.run(*ALL, "--leakcheck-max-time=0.1").text)
    assert counted is not None
    # They were 3,200 per test.
    assert int(counted[1]) / 50 < 150


def test_modules_that_a_test_has_removed_are_put_back_before_the_next_is_judged(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import sys, pytest
        def test_removes():
            for name in list(sys.modules):
                if name.startswith("pytest_leakcheck"): del sys.modules[name]
        @pytest.mark.fd_budget(0)
        @pytest.mark.leakcheck(isolate=True)
        def test_marked(): pass
        """,
    )
    ran = project.run(*ALL, "-rA")
    assert (ran.status, ran.last_line) == (0, "2 passed"), ran.text
    assert ("test_it.py::test_marked", "ok") in {(one["test"], one["verdict"]) for one in ran.findings}


def test_a_leak_is_one_more_report_of_its_test(project: Project) -> None:
    project.write(
        "test_it.py",
        "import os\nKEPT = []\ndef test_leaks(): KEPT.append(os.open(__file__, 0))\ndef test_clean(): pass\n",
    )
    ran = project.run(*ALL, "--junit-xml=junit.xml", cache=True)
    assert (ran.status, ran.last_line) == (1, "1 failed, 2 passed")
    assert re.search(r"test_it.py \.\. .*\nleakcheck: judging 2 tests\n\s*test_it.py L", ran.text), ran.text
    cases = ET.parse(project.folder / "junit.xml").findall(".//testcase")
    assert [(case.get("name"), [part.tag for part in case]) for case in cases] == [
        ("test_leaks", []),
        ("test_clean", []),
        ("test_leaks", ["properties", "failure"]),
    ]
    # It is what failed last, and with -x nothing follows it.
    again = project.run(*ALL, "--lf", "-q", cache=True)
    assert again.last_line.startswith("1 failed, 1 passed")
    assert re.search(r"\[100%\]\nL\n", again.text), again.text
    assert "1 not reached by the second pass" in project.run(*ALL, "-x").one_line


def test_after_a_failure_that_ends_the_session_nothing_is_judged(project: Project) -> None:
    project.write("test_it.py", "def test_first(): pass\ndef test_fails(): assert 0\ndef test_last(): pass\n")
    ran = project.run(*ALL, "-x")
    assert ran.last_line == "1 failed, 1 passed"
    assert "1 not reached by the second pass" in ran.one_line
    assert "judging" not in ran.text


def test_a_run_that_blocks_names_the_call_that_waits(project: Project) -> None:
    project.write("conftest.py", "from pytest_leakcheck.plugin import watchdog\nwatchdog._SHORTEST = 0.5\n")
    project.write(
        "test_it.py",
        """
        import asyncio
        import queue
        import threading
        import pytest

        QUEUE, POOL, LOCK = queue.Queue(1), threading.BoundedSemaphore(2), asyncio.Lock()

        class Connection:
            def __init__(self): POOL.acquire()

        def test_queue(): QUEUE.put(1)

        def test_pool(): Connection()

        async def wait(): await LOCK.acquire()

        def test_lock(): asyncio.run(wait())

        @pytest.mark.fd_budget(0)
        def test_marked(pool=[]):
            if pool: threading.Event().wait()
            pool.append(1)

        def test_after(): pass
        """,
    )
    ran = project.run(*ALL, "-rA")
    assert ran.last_line == "5 passed", ran.text
    reasons = {one["test"].rpartition("::")[2]: one["reason"] for one in ran.findings if one["verdict"] != "ok"}
    assert reasons == {
        "test_queue": "not repeatable: iteration 2 blocked in Queue.put(), at test_it.py:11",
        "test_pool": "not repeatable: iteration 3 blocked in Semaphore.acquire(), at test_it.py:9",
        "test_lock": "not repeatable: iteration 2 blocked in Lock.acquire(), at test_it.py:15",
        "test_marked": "not repeatable: iteration 2 blocked in Event.wait(), at test_it.py:21",
    }
    assert "1 ok · 4 not repeatable" in ran.one_line


def test_a_run_that_cannot_be_interrupted_ends_the_process_with_its_stack(project: Project) -> None:
    project.write(
        "conftest.py",
        "from pytest_leakcheck.plugin import watchdog\nwatchdog._SHORTEST, watchdog._LAST = 0.5, 1.0\n",
    )
    ran = project.run_test(
        """
        import ctypes
        LIBC, MUTEX = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        def test_it():
            LIBC.pthread_mutex_lock(MUTEX)
        """,
        *ALL,
        limit=60,
    )
    assert ran.status not in (0, 1)
    assert re.search(r'File ".*test_it.py", line 4 in test_it', ran.text), ran.text


@pytest.mark.parametrize("dist", ["load", "loadfile", "each"])
def test_workers_judge_what_they_have_run(project: Project, dist: str) -> None:
    project.write(
        "test_it.py",
        """
        import os
        import pytest
        KEPT = []

        @pytest.mark.parametrize("number", range(6))
        def test_clean(number): pass

        def test_leaks(): KEPT.append(os.open(__file__, 0))

        def test_once(runs=[]):
            runs.append(1)
            assert len(runs) < 2

        def test_fails(): assert 0
        """,
    )
    specs = ("--tx", "2*popen") if dist == "each" else ("-n", "2")
    ran = project.run(*ALL, *specs, f"--dist={dist}")
    times = 2 if dist == "each" else 1
    assert ran.last_line == f"{2 * times} failed, {8 * times} passed", ran.text
    assert "9 tests: 6 ok · 1 leak · 1 not repeatable · 1 not judged (1 fail or skip by themselves)" in ran.one_line
    assert {one["verdict"] for one in ran.findings if "test_clean" in one["test"]} == {"ok"}


def test_a_worker_that_dies_in_the_second_pass_loses_no_outcome(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os, signal
        def test_first(): pass
        def test_dies(runs=[]):
            runs.append(1)
            if len(runs) > 1: os.kill(os.getpid(), signal.SIGKILL)
        def test_last(): pass
        """,
    )
    ran = project.run(*ALL, "-n", "1", limit=120)
    assert "3 passed" in ran.last_line, ran.text
    assert "not reached by the second pass" in ran.one_line


def test_ctrl_c_in_the_second_pass_leaves_all_outcomes(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os, signal, threading
        def test_first(): pass
        def test_interrupted(runs=[]):
            runs.append(1)
            if len(runs) == 3:
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                threading.Event().wait(60)
        def test_last(): pass
        """,
    )
    ran = project.run(*ALL)
    assert ran.status == pytest.ExitCode.INTERRUPTED
    assert "3 passed" in ran.last_line
    assert "1 not reached by the second pass" in ran.one_line
    assert "interrupted after" in ran.one_line


@pytest.mark.parametrize("of_session", [True, False], ids=["session", "test"])
def test_an_alarm_of_the_session_stays_and_one_of_a_test_is_cancelled(project: Project, of_session: bool) -> None:
    project.write(
        "conftest.py",
        f"""
        import signal
        def pytest_sessionstart(): signal.alarm({100_000 * of_session})
        def pytest_unconfigure(): print("alarm", signal.alarm(0) > 0)
        """,
    )
    ran = project.run_test(
        f"""
        import signal
        def test_it(runs=[]):
            if not runs and not {of_session}: signal.alarm(100_000)
            runs[:] = [1]
        """,
        *ALL,
        "-s",
    )
    assert ("judging 1 test" in ran.text, f"alarm {of_session}" in ran.text) == (True, True), ran.text


def test_a_watchdog_thread_still_ends_the_process(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import os, threading
        BEGUN = threading.Event()
        def watch():
            BEGUN.wait()
            os._exit(77)
        def pytest_sessionstart(): threading.Thread(target=watch, daemon=True).start()
        """,
    )
    ran = project.run_test(
        """
        import threading
        from conftest import BEGUN
        def test_it(runs=[]):
            runs.append(1)
            if len(runs) > 1:
                BEGUN.set()
                threading.Event().wait(60)
        """,
        *ALL,
    )
    assert ran.status == 77, ran.text


def test_a_test_that_expects_its_leak_is_judged_at_its_turn(project: Project) -> None:
    ran = project.run_test(
        """
        import os, pytest
        from pytest_leakcheck import LeakError
        KEPT = []
        @pytest.mark.xfail(raises=LeakError, strict=True)
        def test_known(): KEPT.append(os.open(__file__, 0))
        """,
        *ALL,
    )
    assert (ran.status, ran.last_line) == (0, "1 xfailed")


def test_isolated_tests_run_in_the_session_first(project: Project) -> None:
    ran = project.run_test(
        """
        import os
        KEPT, SHARED = [], {}
        def test_writes(): SHARED["x"] = 1
        def test_reads(): assert SHARED == {"x": 1}
        def test_leaks(): KEPT.append(os.open(__file__, 0))
        """,
        *ALL,
        "--leakcheck-isolate",
    )
    assert ran.last_line == "1 failed, 3 passed", ran.text
    assert ran.verdicts["test_leaks", "fd"] == "leak"
    assert "LEAK test_it.py::test_leaks" in ran.text
    reason = next(one["reason"] for one in ran.findings if one["test"].endswith("test_reads"))
    assert reason == (
        "not repeatable: alone in a separate process, it ended with AssertionError: assert {} == {'x': 1}"
    )
