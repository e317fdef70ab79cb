"""A test is judged by what it does itself: what an earlier one left, or failed with, is not held against the next."""

from __future__ import annotations

import pytest

from projects import Project


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_leaky_test_does_not_poison_the_next(project: Project) -> None:
    project.copy("arms_beside_each_other.py")
    outcome = project.run("-W", "ignore::ResourceWarning", TMPDIR=str(project.folder))
    red = {one["test"].partition("[")[2]: one for one in outcome.findings if one["verdict"] != "ok"}
    assert {name: (one["resource"], one["verdict"]) for name, one in red.items()} == {
        "leaky-file]": ("fd", "leak"),
        "leaky-thread]": ("thread", "leak"),
        "leaky-child]": ("process", "leak"),
        "leaky-list]": ("object", "leak"),
        "leaky-folder]": ("disk", "leak"),
        "leaky-cycle]": ("fd", "unclosed"),
    }


@pytest.mark.parametrize(
    ("module", "draws", "seeds"),
    [
        ("random", "random.random()", "random.seed"),
        ("numpy", "numpy.random.rand()", "numpy.random.seed"),
        ("torch", "torch.rand(1).item()", "torch.manual_seed"),
    ],
)
def test_repeated_runs_take_no_random_number_from_later_tests(
    project: Project, module: str, draws: str, seeds: str
) -> None:
    pytest.importorskip(module)
    text = f"""
        import {module}
        import pytest

        {seeds}(7)
        EXPECTED = [{draws}, {draws}]
        {seeds}(7)
        DRAWN = []

        @pytest.mark.leakcheck(iterations=5, resources=["fd"])
        def test_first(): DRAWN.append({draws})

        def test_next():
            assert [DRAWN[0], {draws}] == EXPECTED
            # Each run goes on where the one before it has ended.
            assert len(set(DRAWN)) == len(DRAWN) > 5
    """
    ran = project.run_test(text, "-p", "no:randomly")
    assert ran.last_line == "2 passed", ran.text


@pytest.mark.parametrize("begins", ["in a test", "as the tests are imported"])
def test_a_thread_that_goes_on_leaking_is_the_doing_of_the_test_that_left_it(project: Project, begins: str) -> None:
    project.copy("program_with_a_thread_that_leaks.py", IN_A_TEST=begins == "in a test")
    outcome = project.run()
    assert outcome.last_line == "2 passed"
    finding = outcome.finding("test_next", "heap")
    assert finding["verdict"] == "inconclusive"
    assert "also grows while the test is paused" in finding["reason"]
    left = "after test_it.py::test_that_leaves_a_thread left a thread running"
    assert (left in finding["reason"]) == (begins == "in a test")


def test_a_failed_test_gets_no_verdict_and_its_frames_are_no_leak_of_the_next(project: Project) -> None:
    """pytest keeps the frames of a failure, with all that is in them, until the next test is under way."""
    outcome = project.run_test(
        """
        import pytest

        @pytest.mark.leakcheck
        @pytest.mark.parametrize("turn", ["fails", "passes", "fails again", "passes again"])
        def test_it(turn):
            held = [open(__file__) for _ in range(20)], [[] for _ in range(10_000)], bytearray(10_000_000)
            assert turn.startswith("passes")
        """,
        "-W",
        "ignore::ResourceWarning",
        "-p",
        "no:unraisableexception",
    )
    assert outcome.last_line == "2 failed, 2 passed"
    assert {one["test"].partition("[")[2] for one in outcome.findings} == {"passes]", "passes again]"}
    assert {one["verdict"] for one in outcome.findings} == {"ok"}


@pytest.mark.parametrize(("keeps", "verdict", "level"), [(False, "ok", 0), (True, "over_budget", 3)])
def test_objects_that_an_earlier_thread_replaces_are_no_part_of_a_level(
    project: Project, keeps: bool, verdict: str, level: int
) -> None:
    project.copy("program_with_a_waiting_thread.py", KEEPS=keeps)
    ran = project.run()
    found = ran.finding("test_rings", "object")
    assert (found["verdict"], found["level"]) == (verdict, level), ran.text
