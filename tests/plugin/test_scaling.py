"""A test over an axis: each size in a fresh process, peaks judged as a law; leaky it is red, fixed it is silent."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from processes_left import left_over
from projects import Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")

# What stands still, and a law that is kept.
CLEAN = {"test_upload": "ok", "test_files": "ok", "test_threads": "ok", "test_children": "ok"}


def write(project: Project, text: str, *, leaky: bool) -> Path:
    return project.write("test_it.py", f"LEAKY = {leaky}\n" + text.replace("\n    ", "\n"))


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("leaky"))
    project.copy("arms_of_sizes.py")
    return project.run("-v")


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("fixed"))
    project.copy("arms_of_sizes.py", LEAKY=False)
    return project.run("-v")


def test_a_peak_that_grows_with_size_is_red_with_its_slope(leaky: Outcome) -> None:
    found = leaky.finding("test_upload", "rss")
    assert (found["verdict"], found["law"]["order"]) == ("over_budget", "O(n)")
    assert 0.9 * (1 << 20) <= found["slope"] <= 1.1 * (1 << 20)
    assert [point["size"] for point in found["points"]] == [8, 16, 32, 64, 128, 256]
    assert "rss O(n): +1.0 MiB per shard, O(1) allowed" in leaky.text
    # A bar per size, the largest as wide as it gets.
    assert re.search(r"^ +256 +2\d\d MiB  █{24}$", leaky.text, re.MULTILINE)


def test_fixed_they_are_silent(fixed: Outcome) -> None:
    assert {name: fixed.verdicts[name, resource] for name, resource in fixed.verdicts} == CLEAN
    assert fixed.last_line == "4 passed"
    # The floor, per unit of the axis.
    assert re.search(r"would have caught\):.* rss [\d.]+ KiB/shard", fixed.one_line)
    assert not [one for one in fixed.findings if one["colour"] != "green"]


def test_descriptors_are_counted_at_their_highest(leaky: Outcome) -> None:
    found = leaky.finding("test_files")
    assert [point["peak"] for point in found["points"]] == [8, 16, 32, 64]
    assert "fd at shards 8: 8, at most 4 allowed" in leaky.text
    assert "<= 4: the pool has four" in leaky.text


def test_phases_are_told_apart(leaky: Outcome) -> None:
    recording = json.loads(json.dumps(scaled_of(leaky, "test_files")))["points"][-1]["recordings"][0]
    assert recording["phases"] == [
        {"label": "opened", "amounts": {"fd": 64}, "count": 1},
        {"label": "closed", "amounts": {"fd": 64}, "count": 2},
    ]
    assert "closed: fd 64 (highest of 2)" in leaky.text


def scaled_of(outcome: Outcome, test: str) -> dict[str, Any]:
    return next(found for name, found in outcome.scaled.items() if name.endswith(test))


def test_threads_and_a_gauge_of_the_users_own(leaky: Outcome) -> None:
    found = leaky.finding("test_threads", "thread")
    assert (found["verdict"], found["slope"]) == ("over_budget", 3.0)
    assert leaky.finding("test_threads", "gauge:waiting")["points"][-1] == {"size": 8, "peak": 24}
    assert leaky.verdicts["test_threads", "gauge:waiting"] == "over_budget"


def test_the_memory_of_children_counts(leaky: Outcome) -> None:
    points = [point["peak"] for point in leaky.finding("test_children", "rss")["points"]]
    # Each has 24 MiB and an interpreter.
    assert 24 << 20 < points[0] < 60 << 20
    assert points[2] > 4 * 24 << 20
    assert re.search(r"^ +4 .* MiB of it in children$", leaky.text, re.MULTILINE)


def test_plain_pytest_runs_the_smallest_size_under_the_same_id(project: Project) -> None:
    project.copy("arms_of_sizes.py")
    project.write("conftest.py", "def pytest_runtest_call(item): print('SIZE', item.callspec.params)\n")
    plain = project.run("-v", "-s", leakcheck=False)
    assert plain.last_line == "4 passed"
    assert re.findall(r"(\w+)': (\d+)", plain.text) == [
        ("shards", "8"),
        ("shards", "8"),
        ("jobs", "2"),
        ("workers", "1"),
    ]
    assert "test_it.py::test_upload PASSED" in re.sub(r"::test_upload .*\n", "::test_upload PASSED\n", plain.text)


@pytest.mark.laboratory
def test_it_composes_with_parameters_of_the_users_own(project: Project) -> None:
    write(
        project,
        """
    import os, pytest
    @pytest.mark.parametrize("mode", ["read", "write"])
    @pytest.mark.scaling_budget("files", [1, 2, 4], fd="<= 1")
    def test_modes(files, mode, tmp_path):
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(files if mode == "write" else 1)]
        for file in opened:
            os.close(file)
    """,
        leaky=True,
    )
    ran = project.run("-v", "-n2", "--dist=loadgroup")
    assert ran.verdicts == {("test_modes[read]", "fd"): "ok", ("test_modes[write]", "fd"): "over_budget"}
    assert ran.last_line == "1 failed, 1 passed"


HANGS = """
    import os, time
    import pytest

    @pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")
    def test_it(n):
        with open("pids", "a") as file:
            file.write(f"{os.getpid()} ")
        if n == 2: time.sleep(1000)
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("failed"))
    project.copy("program_that_fails_at_a_size.py")
    ran = project.run()
    assert not left_over(project.folder)
    return ran


def test_a_test_that_fails_or_skips_at_a_size_does_so_as_itself(failed: Outcome) -> None:
    assert failed.last_line == "4 failed, 1 passed, 1 skipped", failed.text
    assert {one["test"].partition("::")[2] for one in failed.findings}.isdisjoint({"test_raises", "test_skips"})
    text = failed.text[failed.text.index("_ test_raises _") : failed.text.index("_ test_killed _")]
    assert "ValueError: broken at two" in text
    assert "failed in a separate process at n=2" in text
    assert "size 2" in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_killed", "died of SIGKILL (signal 9)"),
        ("test_exits", "exited with status 0"),
        ("test_killed_beside_a_child", "died of SIGKILL (signal 9)"),
    ],
)
def test_a_process_that_ends_too_early_is_a_verdict(failed: Outcome, name: str, said: str) -> None:
    assert failed.finding(f"::{name}", "rss")["reason"] == f"{said} at n=2, before the end of the test"
    assert "stack of the process" not in failed.text
    assert failed.verdicts["test_keeps_its_law", "rss"] == "ok"


def test_a_process_that_hangs_is_ended_and_says_where(project: Project) -> None:
    ran = project.run_test(HANGS, "--leakcheck-max-time=1")
    assert not left_over(project.folder)
    assert ran.finding("test_it", "rss")["reason"] == "hung at n=2: made no progress for 1 s"
    assert re.search(r"stack of the process.*test_it.py\", line \d+ in test_it", ran.text, re.DOTALL)
    assert "--leakcheck-max-time=4" in ran.text


SLOW_WHEN_TRACED = """
    import time
    import tracemalloc

    import pytest

    @pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")
    def test_it(n):
        kept = []
        for number in range(n):
            kept.append(bytes(range(256)) * 16384)
        time.sleep(4 if tracemalloc.is_tracing() else 0)
"""


@pytest.mark.laboratory
def test_the_run_that_looks_for_the_cause_may_take_longer(project: Project) -> None:
    found = project.run_test(SLOW_WHEN_TRACED, "--leakcheck-max-time=3").finding("test_it", "rss")
    assert (found["verdict"], found["owner"]["name"]) == ("over_budget", "test_it() local 'kept'")


@pytest.mark.laboratory
def test_a_gauge_that_is_never_called_is_no_pass(project: Project) -> None:
    write(
        project,
        """
    import pytest
    @pytest.mark.scaling_budget("n", [1, 2, 4], open_shards="O(1)")
    def test_it(n, leakcheck):
        pass
    """,
        leaky=True,
    )
    ran = project.run("-rs")
    assert ran.last_line == "1 skipped"
    assert "the test never called leakcheck.gauge('open_shards', ...)" in ran.text.replace("\n", " ")
    assert project.run("--leakcheck-missing=fail").last_line == "1 failed"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("odd"))
    project.copy("program_with_children_over_sizes.py")
    return project.run("-rs")


@pytest.mark.laboratory
def test_the_pages_of_a_forked_child_are_its_own_from_the_fork_on(odd: Outcome) -> None:
    found = odd.finding("test_forked", "rss")
    peaks = [point["peak"] / (16 << 20) for point in found["points"]]
    assert all(0.9 * size < peak < 1.6 * size for size, peak in zip((1, 2, 4), peaks, strict=True)), peaks
    assert found["culprit"]["unresolved"]["site"] == "most of it is in child processes, which are not searched"
    share = found["culprit"]["share"]
    assert share is None or share["size"] < share["total"] / 2


def test_what_children_have_counts(odd: Outcome) -> None:
    assert odd.verdicts["test_what_children_have_counts", "thread"] == "over_budget"
    assert odd.finding("test_what_children_have_counts", "thread")["level"] >= 5
    assert odd.finding("test_what_children_have_counts", "fd")["level"] >= 11
