"""A test in a separate process: found, fixed, silent, and reported as if it had run here."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from projects import HEAD, Project
from variants import variants

ISOLATE = "--leakcheck-isolate"
NATIVE = """
    import ctypes
    import pytest

    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    @pytest.mark.heap_budget
    @pytest.mark.leakcheck(isolate=True, resources=["heap"])
    def test_native():
        block = libc.malloc(128)
        {after}
"""
# The least that a conftest of a large project does to the command line.
CONFTEST = """
    import pytest
    def pytest_addoption(parser): parser.addoption("--place", default="nowhere")
    def pytest_collection_modifyitems(items):
        for item in items:
            if item.name == "test_marked_later": item.add_marker(pytest.mark.fd_budget(0))
    @pytest.fixture(scope="session")
    def place(request):
        yield request.config.getoption("--place")
"""


def test_a_leak_of_128_bytes_is_found_at_its_rate(project: Project) -> None:
    project.write("test_it.py", NATIVE.format(after=""))
    leaky = project.run()
    found = leaky.finding("test_native", "heap")
    assert (leaky.status, found["verdict"]) == (1, "leak"), leaky.text
    assert 128 <= found["slope"] <= 160
    assert leaky.recordings[0]["environment"]["isolated"] == "tcache off, mmap threshold 128 KiB"
    project.write("test_it.py", NATIVE.format(after="libc.free(block)"))
    fixed = project.run()
    found = fixed.finding("test_native", "heap")
    assert (fixed.status, found["verdict"]) == (0, "ok"), fixed.text
    # What the leaky arm kept would have been seen in this very run.
    assert found["floor"] < 128


FORMS = """
    import asyncio, os, unittest, warnings
    import pytest

    KEPT = []

    def work():
        file = os.open(__file__, os.O_RDONLY)
        {after}

    class TestClass:
        @pytest.mark.fd_budget(0)
        @pytest.mark.parametrize("value", ["a::b", "c[d]"])
        def test_parametrised(self, value, tmp_path):
            (tmp_path / "file").write_text(value)
            work()

    @pytest.mark.fd_budget(0)
    class Unit(unittest.TestCase):
        def test_unit(self): work()

    @pytest.mark.fd_budget(0)
    @pytest.mark.asyncio
    async def test_async():
        await asyncio.sleep(0)
        work()

    def test_marked_later(place):
        assert place == "here"
        work()

    def test_steps(leakcheck):
        for step in leakcheck.steps(fd=0): work()

    def test_not_measured():
        assert "GLIBC_TUNABLES" not in os.environ
"""


@pytest.mark.parametrize("workers", variants(["0"], ["2"]))
@pytest.mark.parametrize("arm", ["leaky", "fixed"])
def test_every_form(project: Project, arm: str, workers: str) -> None:
    project.load_asyncio()
    project.write("conftest.py", CONFTEST)
    project.write("test_forms.py", FORMS.format(after="KEPT.append(file)" if arm == "leaky" else "os.close(file)"))
    outcome = project.run(ISOLATE, "-n", workers, "-k", "not nothing", "--place=here", "-x" if arm == "fixed" else "-v")
    assert len(outcome.findings) == 6, outcome.text
    assert {one["environment"]["isolated"] for one in outcome.recordings} == {"tcache off, mmap threshold 128 KiB"}
    if arm == "leaky":
        assert outcome.last_line == "6 failed, 1 passed"
        assert {(one["verdict"], one["slope"]) for one in outcome.findings} == {("leak", 1.0)}
        assert outcome.text.count("\nfd +1.0/iter — test_forms.py:7 os.open() (17 iterations)") == 6, outcome.text
        assert {one["owner"]["name"] for one in outcome.findings} == {"test_forms.KEPT"}
        assert "next         pytest --leakcheck --leakcheck-isolate" in outcome.text
    else:
        assert outcome.last_line == "7 passed", outcome.text
        assert {one["verdict"] for one in outcome.findings} == {"ok"}


# What differs between any two runs of pytest.
UNSTEADY = (
    (r" in \d+\.\d+s( \(\d.*\))?", " in N s"),
    (r"0x[0-9a-f]+", "0xN"),
    (r"(iterations?), \d+\.\d s\) *", r"\1) "),
    (r"repeating took .* s\b", "N s"),
    (r"\d+ → \d+ +", "A → B "),
    (r"≈ [\d,]+", "≈ N"),
    (r" --leakcheck-isolate", ""),
)


def test_outcomes_are_shown_as_if_the_test_had_run_here(project: Project) -> None:
    project.copy("program_with_each_outcome.py")
    # In the newer family, pytest warns of record_property, where it writes the file.
    arguments = ("-rA", "-v", "--junitxml=junit.xml", "-o", "junit_family=xunit1")
    here = project.run(*arguments)
    junit_here = _junit(project)
    away = project.run(ISOLATE, *arguments)
    assert _steady(away.text) == _steady(here.text)
    assert away.status == here.status == 1
    assert _junit(project) == junit_here
    assert away.verdicts == here.verdicts


def test_a_fixture_of_earlier_tests_is_torn_down_as_if_the_test_had_run_here(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        @pytest.fixture(scope="module")
        def broken():
            yield
            print("closing")
            raise ValueError("not closed")
        def test_before(broken): pass
        @pytest.mark.leakcheck(isolate=True, resources=["fd"])
        def test_alone(): pass
        """,
    )
    outcome = project.run("--junitxml=junit.xml")
    assert outcome.last_line == "2 passed, 1 error", outcome.text
    assert re.search("- Captured stdout teardown -+\nclosing\n", outcome.text)
    assert len(_junit(project)) == 2


def _steady(text: str) -> list[str]:
    for pattern, replacement in UNSTEADY:
        text = re.sub(pattern, replacement, text)
    # Centred between signs, whose number depends on the time that the run took.
    return [line.strip("=- ") for line in text.splitlines()]


def _junit(project: Project) -> list[tuple[str, list[tuple[str, str]]]]:
    # Each once: run here, a failed subtest is written twice.
    cases = ET.parse(project.folder / "junit.xml").iter("testcase")
    return [
        (one.get("name", ""), list(dict.fromkeys((child.tag, child.get("message", "")) for child in one)))
        for one in cases
    ]


def test_options_that_are_not_for_a_child(project: Project) -> None:
    """Workers, reports and selection in `addopts` are the session's; the child neither starts nor overwrites anything."""
    project.write(
        "pytest.ini",
        """
        [pytest]
        addopts = -p no:asyncio -n 2 --dist=loadgroup --maxfail=1 -m "not slow" --junitxml=junit.xml --basetemp=base --log-file=log.txt
        """,
    )
    project.write(
        "test_it.py",
        """
        import logging, os, pytest
        def test_first(tmp_path):
            (tmp_path / "kept").write_text("")
            logging.warning("from first")
        @pytest.mark.fd_budget(0)
        @pytest.mark.xdist_group("some")
        def test_it(worker_id, cache, tmp_path):
            assert worker_id.startswith("gw")
            cache.set("a/b", 1)
            (tmp_path / "kept").write_text("")
        """,
    )
    outcome = project.run(ISOLATE, cache=True)
    assert outcome.last_line == "2 passed", outcome.text
    assert outcome.verdicts == {("test_it", "fd"): "ok"}
    assert len(_junit(project)) == 2
    assert list(project.folder.glob("base/*/test_first0/kept"))
    assert list(project.folder.glob("base/*/isolated0/*/test_it0/kept"))


def test_the_process_of_a_test_begins_and_ends_without_what_is_the_sessions(project: Project) -> None:
    """No summary, and no server of pytest-rerunfailures for workers: each costs more than an empty test."""
    project.write(
        "conftest.py",
        """
        def pytest_terminal_summary():
            with open("summaries", "a") as file: file.write("once")
        """,
    )
    outcome = project.run_test(
        """
        import threading, pytest
        @pytest.mark.fd_budget(0)
        def test_it(): assert threading.enumerate() == [threading.main_thread()]
        """,
        ISOLATE,
        "--leakcheck-iterations=4",
    )
    assert outcome.last_line == "1 passed", outcome.text
    assert (project.folder / "summaries").read_text() == "once"


@pytest.mark.laboratory
def test_what_failed_last_is_still_known(project: Project) -> None:
    project.write(
        "test_it.py",
        HEAD
        + """
    def test_fails(): assert False
    @pytest.mark.fd_budget(0)
    def test_clean(): pass
    @pytest.mark.fd_budget(0)
    def test_leaks(): leak()
    """,
    )
    assert project.run(ISOLATE, cache=True).last_line == "2 failed, 1 passed"
    again = project.run(ISOLATE, "--lf", cache=True)
    assert again.last_line == "2 failed", again.text


def test_the_users_own_tunables_stay(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os, pytest
        @pytest.mark.heap_budget
        @pytest.mark.leakcheck(isolate=True, resources=["heap"], iterations=20)
        def test_it(): print("TUNED", os.environ["GLIBC_TUNABLES"])
        """,
    )
    plain = project.run("-rP")
    assert "TUNED glibc.malloc.tcache_count=0:glibc.malloc.mmap_threshold=131072" in plain.text
    own = project.run("-rP", GLIBC_TUNABLES="glibc.malloc.tcache_count=7:glibc.malloc.arena_max=1")
    assert "TUNED glibc.malloc.mmap_threshold=131072:glibc.malloc.tcache_count=7:glibc.malloc.arena_max=1" in own.text
    assert own.status == 0
    assert own.recordings[0]["environment"]["isolated"] == "the allocator settings have no effect"


def test_where_no_process_can_be_started(project: Project) -> None:
    project.write(
        "conftest.py",
        "from pytest_leakcheck.runner.processes import supervisor\nsupervisor.unsupported = lambda: 'no processes here'\n",
    )
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.mark.leakcheck(isolate=True)
    def test_marked(): leak()
    def test_steps(leakcheck):
        for step in leakcheck.steps(fd=0): leak()
    """,
    )
    outcome = project.run(ISOLATE, "-rs")
    assert outcome.last_line == "2 skipped", outcome.text
    assert "no processes here" in outcome.text
    assert {one["verdict"] for one in outcome.findings} == {"unavailable"}
    assert project.run(ISOLATE, "--leakcheck-missing=fail").last_line == "2 failed"


def test_a_child_that_the_test_spawns_does_not_run_the_session_again(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import multiprocessing
        import pytest

        @pytest.fixture(scope="module")
        def pool():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                yield pool

        @pytest.mark.fd_budget(0)
        def test_pool(pool):
            assert pool.map_async(abs, [-1]).get(60) == [1]
        """,
    )
    outcome = project.run("--leakcheck-isolate", "--leakcheck-iterations=4")
    assert (outcome.status, outcome.verdicts["test_pool", "fd"]) == (0, "ok")


def test_a_test_that_is_undecided_is_not_run_again_by_itself(project: Project) -> None:
    """In another process it may fail, for the state of earlier tests; its outcome is that of its runs here."""
    outcome = project.run_test("""
    import itertools, os, threading
    import pytest

    CALLS, KEPT, PROCESSES, STATE = itertools.count(), [], "processes", []

    def work():
        sum(range(100_000))
        # Unevenly, as what malloc keeps for a thread.
        if next(CALLS) % 7 in (0, 2): KEPT.append(bytearray(600 + 70 * (next(CALLS) % 97)))

    def test_first(): STATE.append(1)

    @pytest.mark.leakcheck(resources=["heap"], iterations=60)
    def test_needs_first():
        assert STATE
        with open(PROCESSES, "a") as file: print(os.getpid(), file=file)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
    assert outcome.last_line == "2 passed", outcome.text
    assert outcome.verdicts["test_needs_first", "heap"] == "inconclusive"
    assert len(set((project.folder / "processes").read_text().split())) == 1
