"""What happens to leaks, and to what only looks like one, in tests as users write them."""

from __future__ import annotations

import pytest

from projects import HEAD, Project


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


def test_the_collector_as_the_user_has_it(project: Project) -> None:
    project.copy("program_with_cycles.py")
    outcome = project.run()
    assert outcome.verdicts["test_on", "fd"] == "unclosed"
    assert outcome.finding("test_on")["slope"] == 1.0
    assert outcome.finding("test_on")["colour"] == "red"
    assert outcome.verdicts["test_off", "fd"] == outcome.verdicts["test_off_beside_a_child", "fd"] == "leak"
    assert "collector    disabled by the program" in outcome.text
    assert outcome.verdicts["test_allowed", "fd"] == "ok"
    assert (outcome.verdicts["test_warned", "fd"], outcome.finding("test_warned")["colour"]) == ("unclosed", "yellow")
    assert (outcome.verdicts["test_by_default", "fd"], outcome.finding("test_by_default")["colour"]) == (
        "unclosed",
        "yellow",
    )
    # What pytest warns of in the class is shown as in a plain session.
    assert outcome.last_line == "3 failed, 4 passed, 1 warning"


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


@pytest.mark.parametrize("ends", [False, True])
def test_the_summary_names_child_processes_that_still_run(project: Project, *, ends: bool) -> None:
    # The end of their input ends them, in any case when this session ends.
    outcome = project.run_test(
        f"""
    import subprocess
    import pytest
    STARTED = []
    @pytest.mark.process_budget(0)
    def test_it():
        STARTED.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
        if {ends}: STARTED.pop().communicate()
    """
    )
    assert outcome.status == (not ends)
    assert ("child processes of leaking tests still run: " in outcome.text) is not ends
    if not ends:
        count = int(outcome.text.partition(" child processes of leaking tests")[0].rpartition(" ")[2])
        assert count >= outcome.finding("test_it", "process")["iterations"]
