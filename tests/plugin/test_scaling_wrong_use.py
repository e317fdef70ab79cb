"""A wrong mark of an axis is an error of collection that says what is meant."""

from __future__ import annotations

import re

import pytest

from projects import Project

WRONG = [
    ('"n", [8, 16, 20, 64], rss="O(1)"', "rises by the factors 2, 1.25, 3.2, not by a constant factor"),
    ('"n", [8, 16], rss="O(1)"', "has 2 sizes, at least 3 are needed"),
    ('"n", [64, 32, 16], rss="O(1)"', "falls from 64 to 32"),
    ('"n", [8, 16, 16], rss="O(1)"', "has 16 twice"),
    ('"n", [8, 16, 32], rsss="O(1)"', "no such resource. Did you mean 'rss'?"),
    ('"n", [8, 16, 32], in_flight="O(1)"', "leakcheck.gauge('in_flight', read)"),
    ('"n", [8, 16, 32], object="O(1)"', "has no peak that can be measured"),
    ('"n", [8, 16, 32], rss="O(m)"', "is not a supported complexity"),
    ('"n", [8, 16, 32], rss="<= open(n)"', "contains 'open(n)': a formula may contain"),
    ('"n", [8, 16, 32], rss="1 MiB/m"', "is per 'm', but the axis is 'n'"),
    ('"m", [8, 16, 32], rss="O(1)"', "the test takes no argument 'm': write def test_it(m)"),
    ('"n m", [8, 16, 32], rss="O(1)"', "is not a valid argument name"),
    ('"n", [8, 16, 32]', "names no resource"),
    ('"n"', "takes the name of an axis and a list of sizes"),
    ('"n", [8, 16, 32], engine="ray", rss="O(1)"', "engine='ray' is not one of 'thread', 'process', 'gloo'"),
    ('"n", [8, 16, 32], reason=3, rss="O(1)"', "reason=3 is not a string"),
    ('"n", [8, 16, 32], rss={"per_rank": "<= 1 MiB"}', "'per_rank' needs ranks: set an engine"),
    ('"n", [8, 16, 32], engine="thread", rss={"per_rank": "<= 1 MiB"}', "threads share their process's memory"),
    ('"n", [8, 16, 32], rss={"sum": "O(1)"}', "is not valid: write one or more of 'total', 'per_rank', 'at_least'"),
]


@pytest.mark.parametrize("measuring", [True, False])
def test_a_wrong_mark_is_an_error_of_collection_with_the_valid_form(project_here: Project, measuring: bool) -> None:
    for number, (arguments, _wrong) in enumerate(WRONG):
        project_here.write(
            f"test_{number}.py", f"import pytest\n@pytest.mark.scaling_budget({arguments})\ndef test_it(n): pass\n"
        )
    ran = project_here.run_here(leakcheck=measuring)
    assert ran.status == 2
    text = re.sub(r"\s+", " ", ran.text)
    for arguments, wrong in WRONG:
        assert wrong in text, arguments
    assert text.count('Valid: scaling_budget("shards", [8, 16, 32, 64, 128, 256]') == len(WRONG)
    assert ran.last_line == f"{len(WRONG)} errors"


def test_what_repeats_a_test_does_not_stand_beside_it(project_here: Project) -> None:
    ran = project_here.run_test_here("""
        import pytest
        pytestmark = pytest.mark.leakcheck
        @pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")
        def test_it(n): pass
        """)
    assert ran.status == 2
    assert "is combined with leakcheck, which repeats one size: split it into two tests" in ran.text


def test_a_method_that_takes_no_arguments_cannot_be_scaled(project_here: Project) -> None:
    ran = project_here.run_test_here("""
        import unittest
        import pytest
        class TestIt(unittest.TestCase):
            @pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")
            def test_it(self): pass
        """)
    assert ran.status == 2
    assert "only a function can take the size of an axis as an argument" in ran.text


def test_a_coroutine_cannot_run_in_threads(project: Project) -> None:
    project.load_asyncio()
    ran = project.run_test("""
        import pytest
        @pytest.mark.asyncio
        @pytest.mark.scaling_budget("n", [1, 2, 4], engine="thread", rss="O(1)")
        async def test_it(n): pass
        """)
    assert ran.status == 2
    assert 'engine="thread" runs a function in each rank, not a coroutine' in re.sub(r"\s+", " ", ran.text)
