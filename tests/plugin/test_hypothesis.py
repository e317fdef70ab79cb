"""Tests of Hypothesis: as plain pytest shows them, and judged over the same examples each time."""

from __future__ import annotations

import pytest

from projects import Project

_HEAD = """
    import os, unittest
    import pytest
    from hypothesis import HealthCheck, given, settings, strategies as st
    from hypothesis.database import InMemoryExampleDatabase
    from hypothesis.stateful import RuleBasedStateMachine, rule
    KEPT = []
"""


@pytest.fixture
def given_project(project: Project) -> Project:
    """With Hypothesis's own plugin."""
    project.write("pytest.ini", "[pytest]\naddopts = -p no:anyio -p no:asyncio\n")
    return project


def test_methods_of_classes(given_project: Project) -> None:
    outcome = given_project.run_test(
        _HEAD
        + """
    pytestmark = pytest.mark.fd_budget(0)

    class TestPlain:
        @given(st.integers())
        def test_method(self, number): pass

        @given(number=st.integers())
        @pytest.mark.parametrize("parameter", [1, 2])
        def test_parameters(self, number, parameter): pass

    class TestOfUnittest(unittest.TestCase):
        @given(st.integers())
        def test_case(self, number): pass

    @given(st.integers())
    def test_function(number): pass

    class Machine(RuleBasedStateMachine):
        @rule(number=st.integers())
        def step(self, number): pass

    TestMachine = Machine.TestCase
    TestMachine.settings = settings(max_examples=5, stateful_step_count=5)

    class TestLeaky:
        @settings(max_examples=5)
        @given(st.integers(0, 1000))
        def test_leaks(self, number): KEPT.append(os.open(__file__, os.O_RDONLY))
    """
    )
    assert outcome.last_line == "1 failed, 6 passed", outcome.text
    assert outcome.verdicts.pop(("test_leaks", "fd")) == "leak"
    assert outcome.finding("test_leaks")["slope"] == 5.0
    assert sorted(outcome.verdicts.values()) == ["leak"] + ["ok"] * 6
    # Without its plugin too, where the second of two parameters fails by itself.
    alone = given_project.run("-p", "no:hypothesispytest", "-k", "not parameters")
    assert alone.last_line == "1 failed, 4 passed, 2 deselected", alone.text
    assert alone.verdicts.items() <= outcome.verdicts.items()


def test_what_differs_between_the_iterations(given_project: Project) -> None:
    """The first is the user's; the others repeat examples of their own, and leave no trace in settings or database."""
    outcome = given_project.run_test(
        _HEAD
        + """
    DATABASE = InMemoryExampleDatabase()
    SAVED = []
    save = DATABASE.save
    DATABASE.save = lambda *given: (SAVED.append(len(RUNS)), save(*given))
    OWN = settings(max_examples=20, database=DATABASE, deadline=5000, suppress_health_check=[HealthCheck.too_slow])
    RUNS = []

    class TestIt:
        @pytest.fixture(autouse=True)
        def run(self): RUNS.append([])

        @OWN
        @given(st.integers(0, 10**9))
        @pytest.mark.fd_budget(0)
        def test_it(self, number): RUNS[-1].append(number)

        def test_after(self):
            first, *others = RUNS[:-1]
            assert len(others) > 13
            assert all(one == others[0] for one in others)
            assert first != others[0]
            assert {len(one) for one in RUNS[:-1]} == {20}
            assert set(SAVED) <= {1}
            assert TestIt.test_it._hypothesis_internal_use_settings is OWN
    """
    )
    assert outcome.last_line == "2 passed", outcome.text


def test_a_failure_is_the_test_s_own(given_project: Project) -> None:
    """Found, made small and saved as in plain pytest; what only a later iteration runs into is no failure."""
    outcome = given_project.run_test(
        _HEAD
        + """
    pytestmark = pytest.mark.fd_budget(0)

    class TestIt:
        @given(st.integers())
        def test_fails(self, number): assert number < 5

        @pytest.fixture
        def count(self): KEPT.append(1)

        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(number=st.integers(0, 100))
        def test_later(self, count, number): assert number < 50 or len(KEPT) < 4
    """
    )
    assert outcome.last_line == "1 failed, 1 passed", outcome.text
    assert "number=5," in outcome.text
    assert outcome.finding("test_later")["reason"].startswith("not repeatable: iteration 4 ended with AssertionError")
    assert (given_project.folder / ".hypothesis").is_dir()


def test_it_is_not_loaded_for_others(project: Project) -> None:
    ran = project.run_test("""
        import sys
        import pytest

        @pytest.mark.fd_budget(0)
        def test_it(): assert "hypothesis" not in sys.modules
        """)
    assert ran.last_line == "1 passed"
