"""What an arm tells becomes rows, and these what is shown while it runs."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pytest_leakcheck.repro.course import advance
from pytest_leakcheck.repro.live import follow_in_lines, follow_in_table, gained, so_far, table

TEST = "TestLoader::test_switch[leaky]"
BEGIN = {"event": "begin", "test": TEST}
END = {"event": "end", "test": TEST, "outcome": "failed", "iteration": 17, "verdicts": {"fd": "leak"}}


def at(iteration: int, fds: int, heap: int, state: str = "measuring", **verdicts: str) -> dict[str, Any]:
    levels = {"fd": fds, "heap": heap, "thread": 4}
    told = {"state": state, "iteration": iteration, "most": 562, "levels": levels, "verdicts": verdicts}
    return {"event": "progress", "test": TEST, **told}


COURSE = [BEGIN, at(1, 20, 1000), at(5, 56, 1000 + (8 << 20)), at(17, 164, 2000, "naming", fd="leak"), END]


def test_a_row_follows_its_test() -> None:
    rows = advance({}, [BEGIN])
    assert so_far(rows[TEST], "fd") == "running"
    assert gained(rows[TEST], "fd") == ""
    rows = advance(rows, COURSE[1:3])
    assert so_far(rows[TEST], "fd") == "fd +9.0/iter"
    assert so_far(rows[TEST], "rss") == "running"
    assert [gained(rows[TEST], name) for name in ("fd", "heap", "thread")] == ["+36", "+8.0 MiB", "0"]
    rows = advance(rows, COURSE[3:4])
    assert so_far(rows[TEST], "fd") == "fd leak · naming"
    rows = advance(rows, COURSE[4:])
    assert (so_far(rows[TEST], "fd"), rows[TEST].iteration) == ("fd leak", 17)


@pytest.mark.parametrize(("outcome", "text"), [("passed", "ok"), ("skipped", "skipped"), ("failed", "failed")])
def test_a_test_that_is_over_without_a_verdict_says_how(outcome: str, text: str) -> None:
    over = {**END, "outcome": outcome, "verdicts": {}}
    assert so_far(advance({}, [BEGIN, over])[TEST], "fd") == text


def test_one_reading_has_no_slope() -> None:
    assert so_far(advance({}, COURSE[:2])[TEST], "fd") == "fd +0.0/iter"


def test_the_rows_before_stay_as_they_were() -> None:
    before = advance({}, COURSE[:2])
    advance(before, COURSE[2:])
    assert before[TEST].iteration == 1


def test_without_a_terminal_a_test_is_told_once_when_it_is_over() -> None:
    file = io.StringIO()
    with follow_in_lines(file, lambda _test: "fd") as follower:
        for event in COURSE:
            follower([event])
        follower([])
    assert file.getvalue() == "  TestLoader::test_switch[leaky]: fd leak, 17 iterations\n"


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_table_fits_its_terminal_and_says_what_is_known(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    rows = list(advance({}, COURSE[:3]).values())
    console.print(table("incident, leaky arm", rows, lambda _test: "fd", width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert lines[0] == "incident, leaky arm"
    assert lines[2].rstrip().endswith("fd +9.0/iter")
    assert ("+8.0 MiB" in lines[2]) == (width == 80)


def test_a_table_is_drawn_as_it_goes_on_and_gone_at_the_end() -> None:
    file = io.StringIO()
    console = Console(file=file, width=80, height=20, force_terminal=True)
    with follow_in_table(console, "incident, leaky arm", lambda _test: "fd") as follower:
        follower(COURSE[:3])
        drawn = file.getvalue()
        assert "incident, leaky arm · 0 s" in drawn
        assert "fd +9.0/iter" in drawn
    # Each of its lines is erased.
    assert file.getvalue()[len(drawn) :].count("\x1b[2K") >= 3
