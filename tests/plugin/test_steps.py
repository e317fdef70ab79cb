"""The fixture ``leakcheck``: a loop, a block and a gauge, judged by the same runner."""

from __future__ import annotations

from projects import Project

TRAINING = """
    import os

    KEPT = []

    class Model:
        def __init__(self): self.weights = bytearray(1 << 20)
        def train(self, step):
            file = os.open(__file__, os.O_RDONLY)
            history = bytearray(64 << 10)
            {after}

    LOADED = []

    def load():
        LOADED.append(1)
        return Model()

    def test_training(leakcheck):
        model = load()
        for step in leakcheck.steps({arguments}):
            model.train(step)
        print("STEPS", step + 1, "LOADED", len(LOADED))
"""


def test_a_training_loop(project: Project) -> None:
    leaky = project.run_test(TRAINING.format(after="KEPT.append((file, history))", arguments="fd=0, heap='1 MiB'"))
    assert leaky.status == 1
    found = leaky.finding("test_training")
    assert (found["verdict"], found["slope"], found["iterations"]) == ("leak", 1.0, 17)
    assert "LeakError: fd +1.0/iter" in leaky.text
    assert [(one["resource"], one["slope"] > 65_000) for one in found["seen"] if one["resource"] == "heap"] == [
        ("heap", True)
    ]
    fixed = project.run_test(TRAINING.format(after="os.close(file)", arguments="fd=0, heap='1 MiB'"), "-s")
    assert fixed.status == 0, fixed.text
    assert fixed.verdicts == {("test_training", "fd"): "ok", ("test_training", "heap"): "ok"}
    assert "LOADED 1" in fixed.text
    assert "STEPS 1 LOADED 1" in project.run("-s", leakcheck=False).text


def test_a_loop_that_is_left_early_is_inconclusive(project: Project) -> None:
    project.copy("program_that_leaves_loops.py")
    outcome = project.run()
    assert outcome.last_line == "1 failed, 6 passed", outcome.text
    assert {(one["test"].partition("::")[2], one["resource"]): one["reason"] for one in outcome.findings} == {
        ("test_break", "fd"): "left in step 5, by break, return or an exception",
        ("test_break", "thread"): "",
        ("test_return", "fd"): "left in step 5, by break, return or an exception",
        ("test_exception", "fd"): "left in step 0, by break, return or an exception",
        ("test_suspended", "fd"): "left in step 5, by break, return or an exception",
        ("test_never_begun", "fd"): "the loop was never begun",
        ("test_to_the_end", "fd"): "",
        ("test_after_the_leak_is_known", "fd"): "+1.0/iter sustained over 17 iterations",
    }
    assert "not resolved: the iterations ended during the search" in outcome.text
    assert "1 ok · 1 leak · 5 inconclusive" in outcome.text
    strict = project.run("--leakcheck-fail-on=leak,inconclusive", "-k", "break or never or to_the_end")
    assert strict.last_line == "2 failed, 1 passed, 4 deselected", strict.text


def test_a_test_that_fails_in_a_loop_leaves_no_measurement_open(project: Project) -> None:
    outcome = project.run_test("""
        def test_fails(leakcheck):
            steps = leakcheck.steps(fd=0)
            for _ in range(6): next(steps)
            assert 0, "my own failure"

        def test_later(leakcheck):
            for step in leakcheck.steps(fd=0): pass
        """)
    assert outcome.last_line == "1 failed, 1 passed", outcome.text
    assert outcome.verdicts == {("test_later", "fd"): "ok"}


def test_a_fixture_that_is_not_used_is_said_with_v(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        def test_unused(leakcheck): leakcheck.checkpoint("here")
        def test_used(leakcheck):
            with leakcheck.budget(fd=0): pass
        """,
    )
    line = "leakcheck: 1 not measured: with the fixture `leakcheck` but no steps() or budget()\n"
    assert line in project.run("-v").text
    plain = project.run()
    assert "not measured" not in plain.text
    assert (
        "2 tests: 1 ok · 1 not judged (1 with the fixture `leakcheck` but no steps() or budget()) · " in plain.one_line
    )
    # A session without any verdict says that, as before.
    assert "leakcheck: nothing was judged" in project.run("-k", "unused").text


def test_a_block_without_levels_is_judged_by_what_others_see_of_the_process(project: Project) -> None:
    project.write("test_it.py", "def test_block(leakcheck):\n    with leakcheck.budget(): pass\n")
    resources = ("fd", "thread", "process", "shm", "disk")
    assert project.run().verdicts == {("test_block", name): "ok" for name in resources}


def test_a_block(project: Project) -> None:
    project.copy("program_with_budgeted_blocks.py")
    outcome = project.run()
    assert outcome.verdicts == {
        ("test_leaky", "fd"): "over_budget",
        ("test_leaky", "rss"): "ok",
        ("test_within", "fd"): "ok",
        ("test_fixed", "fd"): "ok",
        ("test_fixed", "rss"): "ok",
        ("test_unclosed", "fd"): "unclosed",
    }, outcome.text
    assert "ValueError: mine" in outcome.text
    assert outcome.finding("test_leaky")["level"] == 1


def test_inside_a_repeated_test_the_loop_is_one_step(project: Project) -> None:
    ran = project.run_test("""
        import os
        import pytest
        @pytest.mark.fd_budget(0)
        def test_it(leakcheck):
            assert list(leakcheck.steps(fd=0)) == [0]
            os.open(__file__, os.O_RDONLY)
        """)
    assert ran.verdicts == {("test_it", "fd"): "leak"}


def test_one_measurement_at_a_time(project: Project) -> None:
    ran = project.run_test("""
        import gc
        import pytest

        def test_nested(leakcheck):
            with pytest.raises(RuntimeError, match="a measurement is already running in this process"):
                for _ in leakcheck.steps(fd=0):
                    with leakcheck.budget(fd=0): pass

        def test_a_gauge_that_fails(leakcheck):
            leakcheck.gauge("broken", lambda: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                for _ in leakcheck.steps(fd=0): pass

        def test_a_new_gauge(leakcheck):
            with pytest.raises(RuntimeError, match="was first called inside the loop"):
                for _ in leakcheck.steps(fd=0): leakcheck.gauge("late", 1)

        def test_no_step(leakcheck):
            with pytest.raises(ValueError, match="the number of steps must be at least 1"):
                list(leakcheck.steps(0, fd=0))

        def test_nothing_is_left_behind():
            assert gc.get_freeze_count() == 0
            assert gc.callbacks == []
        """)
    assert ran.last_line == "5 passed"


def test_gauges_and_phases_of_a_repeated_test(project: Project) -> None:
    project.copy("arms_of_gauges_and_phases.py")
    leaky = project.run()
    found = leaky.finding("test_marked", "gauge:waiting")
    assert (found["verdict"], found["slope"]) == ("leak", 1.0)
    assert found["owner"]["name"] == "test_it.rows"
    assert leaky.verdicts["test_marked", "fd"] == "ok"
    # The part of an iteration in which it grows. One list keeps what two tests open, so they have one block.
    assert leaky.text.count("  phases       probed: fd +0\n               loaded: fd +1\n") == 1
    recording = next(one for one in leaky.recordings if one["test"].endswith("test_phases"))
    assert recording["phases"] == [
        {"label": "probed", "amounts": {"fd": 0}, "count": 1},
        {"label": "loaded", "amounts": {"fd": 1}, "count": 1},
    ]
    project.copy("arms_of_gauges_and_phases.py", LEAKY=False)
    fixed = project.run()
    assert fixed.last_line == "3 passed"
    assert fixed.verdicts["test_marked", "gauge:waiting"] == "ok"


def test_a_gauge_that_comes_late_does_not_pass_unseen(project: Project) -> None:
    found = project.run_test("""
        import itertools
        import pytest
        calls = itertools.count()

        @pytest.mark.fd_budget(0)
        def test_it(leakcheck):
            if next(calls) == 4:
                leakcheck.gauge("late", 1)
        """).finding("test_it")
    assert found["verdict"] == "inconclusive"
    assert "leakcheck.gauge('late') was not called in the first iteration" in found["reason"]
