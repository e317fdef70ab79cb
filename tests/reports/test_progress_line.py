"""On a terminal, a slow test shows how far it is, in a line that leaves no trace in the output or in the readings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from projects import Outcome, Project
from variants import variants

# Down and up again, save, a new line; the text; restore. And what erases it.
DRAWN = re.compile(r"\x1bD\x1b\[A\x1b7\x1b\[\?7l\r+\n\x1b\[2K([^\x1b]*)\x1b\[\?7h\x1b8")
ERASED = "\x1b[J"
# The beginning of the first iteration and the end of each, as the test sees them.
SLOW = """
    import os, time
    import pytest
    KEPT, ENDED = [], []

    @pytest.fixture(scope="module", autouse=True)
    def times():
        yield
        with open("times", "w") as file:
            file.write(" ".join(map(str, ENDED)))

    @pytest.fixture
    def ended():
        # The first one begins a moment after the time is taken that the line goes by.
        ENDED[:] = ENDED or [time.monotonic()]
        yield
        ENDED.append(time.monotonic())

"""
LEAKY = (
    SLOW
    + """
    @pytest.mark.fd_budget(0)
    def test_slow(ended):
        time.sleep(0.2)
        KEPT.append(os.open(__file__, os.O_RDONLY))
"""
)
CLEAN = """
    import time
    import pytest

    @pytest.mark.leakcheck(resources=["fd", "thread", "object", "block", "heap"])
    def test_clean():
        time.sleep(0.05)
"""


def lines_of(ran: Outcome) -> list[str]:
    """The texts that were drawn, after a check that nothing is printed before the last one is erased."""
    after = DRAWN.split(ran.text)[2::2]
    for at, text in enumerate(after):
        assert text.startswith(ERASED) or (at < len(after) - 1 and not text), repr(text)
    return DRAWN.findall(ran.text)


@pytest.mark.laboratory
def test_it_comes_with_the_first_iteration_that_ends_a_second_after_the_beginning(project: Project) -> None:
    project.write("test_it.py", LEAKY)
    ran = project.run_on_terminal()
    lines = lines_of(ran)
    assert all(len(line) <= 80 for line in lines)
    assert lines.pop(0) == "leakcheck  test_slow  [0/1]"
    first = re.match(r"leakcheck (\d+)/\d+  test_slow  (warm-up)?", lines[0])
    assert first, lines[0]
    began, *ended = map(float, (project.folder / "times").read_text(encoding="utf-8").split())
    # The iteration before was over when the test had not taken a second.
    number = int(first[1]) + (0 if first[2] else 3)
    assert number == 1 or ended[number - 2] - began < 1.0
    assert any(re.fullmatch(r"leakcheck \d+/\d+  test_slow  fd \+1\.0/iter  \[0/1\]", line) for line in lines)
    assert re.fullmatch(r"leakcheck \d+  test_slow  fd: finding the cause  \[0/1\]", lines[-1])
    # At most four times in a second, after the one at the beginning.
    assert len(lines) <= 2 + 4 * (ended[-1] - began)
    assert ran.verdicts == {("test_slow", "fd"): "leak"}


@pytest.mark.laboratory
def test_in_ascii_and_from_the_last_run(project: Project) -> None:
    """The second session knows how long the tests take, so it shows the line from the beginning."""
    project.run_test(LEAKY + "\n    @pytest.mark.fd_budget(0)\n    def test_\u00e4_quick(): pass\n", cache=True)
    ran = project.run_on_terminal(cache=True, PYTHONIOENCODING="ascii")
    assert re.search(r"\r\nleakcheck: 2 of 2 tests, about \d+ s \(from the last run\)\r\n", ran.text)
    lines = lines_of(ran)
    assert re.fullmatch(r"leakcheck  test_slow  \[0/2, ~ \d+ s left\]", lines[0])
    assert any("fd +1.0/iter  [0/2, ~ " in line for line in lines)
    assert ran.text.isascii()


def test_a_test_that_was_fast_shows_none(project: Project) -> None:
    """In the first session, no test is known to be fast: each has a line from its beginning."""
    project.write("test_it.py", "import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass\n")
    assert lines_of(project.run_on_terminal(cache=True)) == ["leakcheck  test_it  [0/1]"]
    ran = project.run_on_terminal(cache=True)
    assert ERASED not in ran.text
    assert "(from the last run)" not in ran.text


def figures(ran: Outcome) -> dict[str, tuple[Any, ...]]:
    return {one["resource"]: (one["verdict"], one["floor"], one["iterations"]) for one in ran.findings}


@pytest.mark.laboratory
def test_it_is_none_of_what_is_measured(project: Project) -> None:
    """Each drawing allocates, yet exact counters of memory read the same as without it."""
    project.write("test_it.py", CLEAN)
    plain, shown = project.run("--leakcheck-iterations=60"), project.run_on_terminal("--leakcheck-iterations=60")
    assert len(lines_of(shown)) >= 3
    assert figures(shown) == figures(plain)
    assert {outcome for outcome, _floor, _iterations in figures(shown).values()} == {"ok"}
    for ran in (plain, shown):
        levels = {one["resource"]: one["readings"] for one in ran.recordings[0]["series"]}
        assert all(set(levels[name]) == {levels[name][0]} for name in ("fd", "thread", "object"))


@pytest.mark.laboratory
def test_what_a_loop_prints_is_captured_whole(project: Project) -> None:
    """In the midst of a test, the output of a test is captured; the line still reaches the terminal, and only that."""
    project.write(
        "test_it.py",
        """
        import contextlib, io, time

        def test_loop(leakcheck, capfd):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                for step in leakcheck.steps(12, fd=0):
                    print(step)
                    time.sleep(0.15)
            assert out.getvalue().split() == [str(step) for step in range(15)]
            assert capfd.readouterr() == ("", "")
        """,
    )
    ran = project.run_on_terminal()
    assert any(line.startswith("leakcheck 1") for line in lines_of(ran))
    assert ran.status == 0, ran.text


@pytest.mark.laboratory
@pytest.mark.parametrize(
    "arguments",
    variants(
        [("-q", "-q")],
        [("-s",), ("-o", "console_output_style=classic"), ("-o", "log_cli=true"), ("-p", "no:terminalprogress")],
    ),
)
def test_who_wants_less_or_prints_there_gets_none(project: Project, arguments: tuple[str, ...]) -> None:
    project.write("test_it.py", LEAKY)
    ran = project.run_on_terminal(*arguments, "--leakcheck-iterations=4")
    assert not DRAWN.search(ran.text)
    assert ERASED not in ran.text
    assert not DRAWN.search(project.run_on_terminal("--leakcheck-iterations=4", CI="true").text)
    assert "test_slow" in ran.text or "-q" in arguments


def test_verbose_counts_the_iterations_of_each_test(project: Project) -> None:
    ran = project.run_test(
        """
        import os
        import pytest
        KEPT = []

        @pytest.mark.fd_budget(0)
        def test_clean(): pass

        @pytest.mark.fd_budget(0)
        def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

        def test_loops(leakcheck):
            for _ in range(2):
                for _ in leakcheck.steps(20, fd=0): pass

        def test_plain(): pass
        """,
        "-v",
    )
    told = dict(
        re.findall(r"^test_it\.py::(\w+) ([A-Z]+(?: \([\d,]+ iterations, \d+\.\d s\))?) ", ran.text, re.MULTILINE)
    )
    seconds = r"\d+\.\d s\)"
    assert re.fullmatch(rf"PASSED \([\d,]+ iterations, {seconds}", told["test_clean"])
    assert re.fullmatch(rf"LEAK \(17 iterations, {seconds}", told["test_leak"])
    assert re.fullmatch(rf"PASSED \(40 iterations, {seconds}", told["test_loops"])
    assert told["test_plain"] == "PASSED"
    # The short summary at the end is as before.
    assert "\nLEAK test_it.py::test_leak - LeakError: fd +1.0/iter" in ran.text
    assert "iterations, 0" not in project.run().text


WORKERS = """
    import os, time
    import pytest
    KEPT = []

    @pytest.mark.fd_budget(0)
    def test_slow():
        time.sleep(0.15)
        KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("n", range(3))
    def test_clean(n): pass

    def test_plain(): time.sleep(0.1)
"""


@pytest.mark.laboratory
def test_workers_under_verbose_count_the_iterations(project: Project) -> None:
    project.write("test_it.py", WORKERS.replace("time.sleep(0.15)", "pass"))
    ran = project.run_on_terminal("-n", "2", "-v", "--color=no")
    told = re.findall(r"\] (\w+)( \([\d,]+ iterations, \d+\.\d s\))? test_it\.py::(\w+)", ran.text)
    assert {(word, name): bool(count) for word, count, name in told} == {
        ("LEAK", "test_slow"): True,
        ("PASSED", "test_clean"): True,
        ("PASSED", "test_plain"): False,
    }


EAGER = """
    from pytest_leakcheck.plugin import progress_line

    progress_line.ESTIMATE_AFTER = 0.0
"""
SUITE = """
    import os, pytest
    KEPT = []

    @pytest.mark.parametrize("number", range(8))
    def test_it(number): pass

    def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    def test_fails(): assert 0

    @pytest.mark.leakcheck(False)
    def test_plain(): pass
"""
ESTIMATE = re.compile(r"^leakcheck: (\d+) of (\d+) tests judged, about [\d.]+ (?:s|min|h) left$", re.MULTILINE)


@pytest.mark.parametrize("arguments", [(), ("-n", "2"), ("-q",)])
def test_a_log_has_an_estimate_now_and_then(project: Project, arguments: tuple[str, ...]) -> None:
    """Each stands on a line of its own, and counts what is judged: not what failed at first, nor what is opted out."""
    project.write("conftest.py", EAGER)
    ran = project.run_test(SUITE, "--leakcheck-scope=all", *arguments, CI="true")
    told = [tuple(map(int, one)) for one in ESTIMATE.findall(ran.text)]
    if arguments == ("-q",):
        assert not told
        return
    assert told, ran.text
    assert told == sorted({*told})
    # A worker may begin to judge before the other one has run all of its tests.
    assert {tests for _done, tests in told} == {9} if not arguments else told[-1][1] <= 9
    assert all(0 < done < tests for done, tests in told)
    # Each comes after twice as much time as the one before.
    assert len(told) <= 5


def test_a_short_session_has_none(project: Project) -> None:
    assert not ESTIMATE.search(project.run_test(SUITE, "--leakcheck-scope=all").text)
