"""Wrong use is said before a test runs: what was seen, whose it is, what is valid."""

from __future__ import annotations

import re

import pytest

from projects import Outcome, Project

COLLECTION_ERROR = 2
USAGE_ERROR = 4


def test_a_wrong_mark(project_here: Project) -> None:
    _write_marked(project_here, "leakcheck(iteration=5)")
    message = (
        "test_it.py::test_it: leakcheck(iteration=5): has no keyword 'iteration'. Did you mean 'iterations'? "
        "Valid: leakcheck(iterations=, warmup=, max_time=, min_time=, isolate=, resources=, failures=)"
    )
    _check_error(project_here.run_here(), message)


def test_a_wrong_mark_in_workers(project_here: Project) -> None:
    _write_marked(project_here, "fd_budget(-1)")
    _check_error(project_here.run_here("-n", "2"), "test_it.py::test_it: fd_budget(-1): -1 is negative")


def _write_marked(project: Project, mark: str) -> None:
    project.write("test_it.py", f"import pytest\n@pytest.mark.{mark}\ndef test_it(): print('ran')\n")


def _check_error(outcome: Outcome, message: str) -> None:
    assert " ".join(message.split()) in outcome.one_line
    assert outcome.status in (1, COLLECTION_ERROR)
    assert "1 error" in outcome.text
    assert "1 passed" not in outcome.text
    assert "Traceback" not in outcome.text
    assert "INTERNALERROR" not in outcome.text


def test_a_mark_added_by_a_conftest(project_here: Project) -> None:
    project_here.write(
        "conftest.py",
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items: item.add_marker(pytest.mark.fd_budget("many"))
        """,
    )
    outcome = project_here.run_test_here("def test_it(): pass")
    assert outcome.status == USAGE_ERROR
    assert "ERROR: test_it.py::test_it: fd_budget(" in outcome.text


def test_all_wrong_marks_are_named_at_once(project_here: Project) -> None:
    text = project_here.run_test_here("""
        import pytest
        @pytest.mark.fd_budget("many")
        def test_one(): pass
        @pytest.mark.fd_budget(1, 2)
        def test_two(): pass
        """).text
    assert "test_it.py::test_one: fd_budget" in text
    assert "test_it.py::test_two: fd_budget(1, 2): takes one level, 2 arguments were given" in text


@pytest.mark.parametrize("table", ["pytest.ini", "tool.pytest", "tool.pytest.ini_options"])
def test_a_wrong_setting_names_its_file(project_here: Project, table: str) -> None:
    project_here.write("test_it.py", "def test_it(): pass")
    if table == "pytest.ini":
        name = project_here.write("pytest.ini", "[pytest]\nleakcheck_warmup = 0\n").name
    else:
        (project_here.folder / "pytest.ini").unlink()
        name = project_here.write("pyproject.toml", f"[{table}]\nleakcheck_warmup = 0\n").name
    # Without --leakcheck too: a wrong value is found on the first run.
    outcome = project_here.run_here(leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert f"leakcheck_warmup = 0 ({name}): must be a whole number from 1 to 100,000" in outcome.text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "leakcheck_rules = tests/net/**: max_time=none",
            "leakcheck_rules = 'tests/net/**: max_time=none': max_time=none: must be a number of seconds above 0",
        ),
        (
            "leakcheck_library = click 9: click.CACHE",
            "leakcheck_library = 'click 9: click.CACHE' (pytest.ini): 'click 9' is not a package with its versions: write "
            "click<9: click._compat._default_text_stdout",
        ),
    ],
)
def test_a_wrong_line_is_an_error_even_without_the_option(project_here: Project, line: str, message: str) -> None:
    project_here.write("pytest.ini", f"[pytest]\n{line}\n")
    outcome = project_here.run_test_here("def test_it(): pass", leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert message in outcome.text


def test_a_wrong_flag(project_here: Project) -> None:
    outcome = project_here.run_test_here("def test_it(): pass", "--leakcheck-iterations=many", leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert "--leakcheck-iterations=many (command line): must be a whole number from 0 to 100,000" in outcome.text


@pytest.mark.parametrize("leakcheck", [True, False])
def test_a_misspelt_mark(project_here: Project, leakcheck: bool) -> None:
    project_here.write(
        "conftest.py",
        """
        from pytest_leakcheck import Probe

        def pytest_leakcheck_probes(config): return [Probe("connection", read=lambda: 0)]
        """,
    )
    project_here.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.fd_budgett(0)
        @pytest.mark.leak_check
        @pytest.mark.memory_budget("1 MiB")
        @pytest.mark.connections_budget(0)
        @pytest.mark.slow
        @pytest.mark.healthcheck
        @pytest.mark.fd_budget(0)
        def test_it(): pass
        """,
    )
    for options in ((), ("-n", "1")) if leakcheck else ((),):
        text = project_here.run_here(*options, leakcheck=leakcheck).text
        said = re.findall(r"(?m)^(test_it.py:\d+): pytest-leakcheck has no mark '(\w+)'. (.*)$", text)
        assert said[0] == ("test_it.py:3", "fd_budgett", "Did you mean 'fd_budget'?")
        assert said[1] == ("test_it.py:4", "leak_check", "Did you mean 'leakcheck'?")
        assert said[2][1] == "memory_budget"
        assert said[2][2].startswith("Valid are fd_budget, thread_budget, ")
        assert said[3][1:] == ("connections_budget", "Did you mean 'connection_budget'?")
        # Those of the project are not ours to judge.
        assert len(said) == 4
    project_here.write("test_it.py", "import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass")
    assert "has no mark" not in project_here.run_here(leakcheck=leakcheck).text


def test_a_wrong_type_in_toml(project_here: Project) -> None:
    (project_here.folder / "pytest.ini").unlink()
    project_here.write("pyproject.toml", '[tool.pytest]\nleakcheck_iterations = "7"\n')
    outcome = project_here.run_test_here("def test_it(): pass", leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert "leakcheck_iterations" in outcome.text
    assert "expects an int" in outcome.text


def test_a_report_that_cannot_be_written(project_here: Project) -> None:
    project_here.write("test_it.py", "def test_it(): print('ran')")
    (project_here.folder / "folder").mkdir()
    for path, reason in (
        ("missing/a.json", "No such file or directory; name a file in a writable folder"),
        ("folder", "a folder, not a regular file; name a regular file"),
    ):
        outcome = project_here.run_here("--leakcheck", f"--leakcheck-json={path}", leakcheck=False)
        assert outcome.status == USAGE_ERROR
        assert f"--leakcheck-json={path} (command line): " in outcome.text
        assert reason in outcome.text
        assert "Traceback" not in outcome.text


def test_a_level_for_steps_that_cannot_be_read(project_here: Project) -> None:
    project_here.write(
        "test_it.py",
        """
        def test_steps(leakcheck):
            for step in leakcheck.steps(fdd=0): pass
        def test_budget(leakcheck):
            with leakcheck.budget(heap="much"): pass
        """,
    )
    for leakcheck in (True, False):
        outcome = project_here.run_here(leakcheck=leakcheck)
        assert (
            "fdd=0: no such resource. Did you mean 'fd'? Valid resources are fd, thread, process, shm, disk, task, "
            "ray_actor, ray_placement_group, ray_ref, ray_object, ray_worker, plasma, heap, object, block, arrow, vram, mmap, rss"
            in outcome.text
        )
        assert "heap='much': 'much' is not a size" in outcome.text
        # The user's own lines, and none of the plugin's.
        assert re.findall(r"(?m)^(\S+\.py):\d+: \w*Error", outcome.text) == ["test_it.py", "test_it.py"]
        assert "fixture.py" not in outcome.text
        assert "2 failed" in outcome.text


WRONG = [
    ('scaling_budget("n", [8, 16, 20, 64], rss="O(1)")', "rises by the factors 2, 1.25, 3.2, not by a constant factor"),
    ('scaling_budget("n", [8, 16], rss="O(1)")', "has 2 sizes, at least 3 are needed"),
    ('scaling_budget("n", [64, 32, 16], rss="O(1)")', "falls from 64 to 32"),
    ('scaling_budget("n", [8, 16, 16], rss="O(1)")', "has 16 twice"),
    ('scaling_budget("n", [8, 16, 32], rsss="O(1)")', "no such resource. Did you mean 'rss'?"),
    ('scaling_budget("n", [8, 16, 32], in_flight="O(1)")', "leakcheck.gauge('in_flight', read)"),
    ('scaling_budget("n", [8, 16, 32], engine="ray", ray_ref=0)', "without an axis: @pytest.mark.ray_ref_budget(0)"),
    ('scaling_budget("n", [8, 16, 32], rss="O(m)")', "is not a supported complexity"),
    ('scaling_budget("n", [8, 16, 32], rss="<= open(n)")', "contains 'open(n)': a formula may contain"),
    ('scaling_budget("n", [8, 16, 32], rss="1 MiB/m")', "is per 'm', but the axis is 'n'"),
    ('scaling_budget("m", [8, 16, 32], rss="O(1)")', "the test takes no argument 'm': write def test_it(m)"),
    ('scaling_budget("n m", [8, 16, 32], rss="O(1)")', "is not a valid argument name"),
    ('scaling_budget("n", [8, 16, 32])', "names no resource"),
    ('scaling_budget("n")', "takes the name of an axis and a list of sizes"),
    (
        'scaling_budget("n", [8, 16, 32], engine="mpi", rss="O(1)")',
        "engine='mpi' is not one of 'thread', 'process', 'gloo', 'ray'",
    ),
    ('scaling_budget("n", [8, 16, 32], reason=3, rss="O(1)")', "reason=3 is not a string"),
    ('scaling_budget("n", [8, 16, 32], rss={"per_rank": "<= 1 MiB"})', "'per_rank' needs ranks: set an engine"),
    (
        'scaling_budget("n", [8, 16, 32], engine="thread", rss={"per_rank": "<= 1 MiB"})',
        "threads share their process's memory",
    ),
    (
        'scaling_budget("n", [8, 16, 32], rss={"sum": "O(1)"})',
        "is not valid: write one or more of 'total', 'per_rank', 'at_least'",
    ),
    ("fd_budget(0, peak='many')", "peak: 'many' is not a number"),
    ("object_budget(0, peak=3)", "object has no peak that can be measured"),
    (
        'leakcheck_ceiling(fd="a few")',
        "leakcheck_ceiling(fd=\"a few\"): fd: 'a few' is not a number: write 0 or 3. Valid: leakcheck_ceiling(fd=256, rss='1 GiB', ",
    ),
    ('leakcheck_ceiling(rss="1 GiB", by="cgroup")', "by='cgroup': only fd, rss, vram can be limited. Valid: "),
]


@pytest.mark.parametrize("measuring", [True, False])
def test_a_wrong_mark_is_an_error_of_collection_with_the_valid_form(project_here: Project, measuring: bool) -> None:
    # A plain run parametrizes by an axis, so that it reads these marks as well.
    wrong_marks = [row for row in WRONG if measuring or row[0].startswith("scaling")]
    for number, (mark, _wrong) in enumerate(wrong_marks):
        project_here.write(f"test_{number}.py", f"import pytest\n@pytest.mark.{mark}\ndef test_it(n): pass\n")
    ran = project_here.run_here(leakcheck=measuring)
    assert ran.status == COLLECTION_ERROR
    for mark, wrong in wrong_marks:
        assert wrong in ran.one_line, mark
    assert ran.one_line.count('Valid: scaling_budget("shards", [8, 16, 32, 64, 128, 256]') == 19
    assert ran.last_line == f"{len(wrong_marks)} errors"


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
    assert 'engine="thread" runs a function in each rank, not a coroutine' in ran.one_line
