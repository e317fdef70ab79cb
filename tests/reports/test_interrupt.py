"""Ctrl-C in the midst of a repeated test: what was read until then is reported, and said not to be judged."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from projects import Outcome, Project

# The test itself presses the key, so no moment depends on the speed of the machine.
PRESS = """
    import os, signal
    import pytest
    KEPT, RUNS = [], []

    def press_in(iteration):
        RUNS.append(1)
        if len(RUNS) == iteration:
            os.kill(os.getpid(), signal.SIGINT)
            signal.pause()
"""
MARK = """
    @pytest.fixture(autouse=True)
    def default(): signal.signal(signal.SIGINT, signal.default_int_handler)

    @pytest.mark.fd_budget(0)
    def test_before(): pass

    @pytest.mark.leakcheck(resources=["thread", "fd"], iterations=40)
    def test_slow():
        KEPT.append(os.open(__file__, os.O_RDONLY))
        press_in(%d)

    def test_after(): pass
"""


def report_of(project: Project) -> dict[str, Any]:
    return next(one for one in project.lines()[1:-1] if "test_slow" in one["test"])


def on_one_line(ran: Outcome) -> str:
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", ran.text).split())


def test_the_partial_series_is_reported(project: Project) -> None:
    ran = project.run_test(PRESS + MARK % 10)
    assert ran.status == 2
    told = on_one_line(ran)
    assert "2 tests: 1 ok · 1 inconclusive · repeating took" in told
    assert (
        "  fd inconclusive: interrupted after 6 iterations, not judged; so far fd …\n  test_it.py::test_slow\n"
        in ran.text
    )
    assert "\n  interrupted after 6 iterations, not judged; so far fd +1.0/iter\n" in ran.text
    assert "KeyboardInterrupt" in told
    found = report_of(project)
    assert (found["recording"]["stopped"], found["colour"]) == ("interrupted", "yellow")
    growth = {one["resource"]: (one["verdict"], one.get("slope", 0), one["iterations"]) for one in found["verdicts"]}
    assert growth == {"fd": ("inconclusive", 1.0, 6), "thread": ("inconclusive", 0, 6)}
    series = {one["resource"]: one["readings"] for one in found["recording"]["series"]}
    begin = series["fd"][0]
    assert series["fd"] == list(range(begin, begin + 7))


def test_before_the_first_reading_there_is_none(project: Project) -> None:
    ran = project.run_test(PRESS + MARK % 2, "--leakcheck-fail-on=leak,inconclusive")
    assert ran.status == 2
    assert " interrupted before the first reading, not judged" in on_one_line(ran)
    assert report_of(project)["colour"] == "yellow"


def test_no_growth_is_said(project: Project) -> None:
    ran = project.run_test(PRESS + MARK.replace("KEPT.append(os.open(__file__, os.O_RDONLY))", "pass") % 10)
    assert " interrupted after 6 iterations, not judged; no growth so far" in on_one_line(ran)


def test_what_is_judged_stays_so(project: Project) -> None:
    """The leak was certain, and its cause was being looked for."""
    ran = project.run_test(PRESS + MARK.replace(", iterations=40", "") % 22)
    assert ran.status == 2
    assert ran.verdicts["test_slow", "fd"] == "leak"
    assert report_of(project)["recording"]["stopped"] == "interrupted"
    assert "1 leak" in ran.text


LOOPS = """
    def test_slow(leakcheck):
        for _ in leakcheck.steps(20, thread=0): pass
        for _ in leakcheck.steps(20, fd=0):
            KEPT.append(os.open(__file__, os.O_RDONLY))
            press_in(10)
"""


def test_a_loop_and_those_before_it(project: Project) -> None:
    signal = "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    ran = project.run_test(PRESS + signal + LOOPS)
    assert ran.status == 2
    assert ran.verdicts == {("test_slow", "thread"): "ok", ("test_slow", "fd"): "inconclusive"}
    assert "interrupted after 6 iterations, not judged; so far fd +1.0/iter" in on_one_line(ran)


ALONE = """
    import pathlib, time
    import pytest

    RUNS = pathlib.Path(__file__).with_name("runs")

    @pytest.mark.leakcheck(isolate=True, resources=["fd"], iterations=1000, max_time=500)
    def test_slow():
        time.sleep(0.1)
        with RUNS.open("a") as runs: runs.write("1")
"""


def presses_once(pattern: str, runs: Path) -> Callable[[bytes], bytes]:
    """Ctrl-C as soon as the terminal shows the pattern and the test has run twice."""
    pressed: list[int] = []

    def answer(said: bytes) -> bytes:
        ran = runs.stat().st_size if runs.exists() else 0
        if pressed or ran < 2 or not re.search(pattern, said.decode(errors="replace")):
            return b""
        pressed.append(1)
        return b"\x03"

    return answer


@pytest.mark.parametrize(
    ("suite", "pattern", "told"),
    [
        (
            ALONE,
            r"leakcheck( \d+)?  test_slow  separate process, \d+ s  \[0/1\]",
            r"interrupted in iteration \d+ in a separate process, whose readings are lost; not judged",
        ),
        (
            ALONE.replace("isolate=True, ", ""),
            r"leakcheck \d+/1000  test_slow  \[",
            r"interrupted after [\d,]+ iterations, not judged; no growth so far",
        ),
    ],
    ids=["alone", "here"],
)
def test_the_key_on_a_terminal(project: Project, suite: str, pattern: str, told: str) -> None:
    project.write("test_it.py", suite)
    ran = project.run_on_terminal(answer=presses_once(pattern, project.folder / "runs"))
    assert ran.status == 2
    assert re.search(told, on_one_line(ran)), ran.text
    # The line is gone before the rest is printed.
    assert ran.text.rindex("\x1b[J") > ran.text.rindex("\x1b8")
    assert ran.text.rindex("\x1b[J") < ran.text.index("= leakcheck =")
    assert report_of(project)["recording"]["stopped"] == "interrupted"


# The process of the last size presses the key of the session, which has told its number before.
SIZES = """
    import os, pathlib, signal, time
    import pytest
    SESSION = int(os.environ.setdefault("SESSION", str(os.getpid())))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    @pytest.mark.scaling_budget("n", [2, 4, 8], in_flight="O(n)"%s)
    def test_slow(n, leakcheck):
        leakcheck.gauge("in_flight", 2 * n)
        if n == 8:
            try: os.mkdir("pressed")
            except FileExistsError: pass
            else: os.kill(SESSION, signal.SIGINT)
            time.sleep(100)
"""


@pytest.mark.parametrize(
    ("world", "peaks"),
    [
        ("", (4, 8)),
        (', engine="thread"', (8, 32)),
        pytest.param(', engine="process"', (8, 32), marks=pytest.mark.laboratory),
    ],
    ids=["sizes", "threads", "processes"],
)
def test_the_sizes_that_were_measured(project: Project, world: str, peaks: tuple[int, int]) -> None:
    ran = project.run_test(SIZES % world, "--leakcheck-fail-on=leak,inconclusive", "--leakcheck-html=page.html")
    assert ran.status == 2, ran.text
    assert "after 2 of 3 sizes" in (project.folder / "page.html").read_text(encoding="utf-8")
    told = on_one_line(ran)
    assert (
        "interrupted at n=8, after 2 of 3 sizes, not judged; peaks so far: "
        f"n=2: in_flight {peaks[0]}; n=4: in_flight {peaks[1]}" in told
    )
    assert "1 test: 1 inconclusive" in told
    found = report_of(project)
    assert (found["recording"]["stopped"], found["colour"]) == ("interrupted", "yellow")
    assert [point["size"] for point in found["scaled"]["points"]] == [2, 4]


def test_before_the_first_size_there_is_no_peak(project: Project) -> None:
    ran = project.run_test((SIZES % "").replace("n == 8", "n == 2"), "--leakcheck-html=page.html")
    assert "interrupted at n=2, after 0 of 3 sizes, not judged" in on_one_line(ran)
    assert "peaks so far" not in ran.text
    assert "interrupted at n=2" in (project.folder / "page.html").read_text(encoding="utf-8")
