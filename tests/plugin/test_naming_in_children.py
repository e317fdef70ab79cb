"""The line in a child process that opens what it keeps; where no line can be known, the report says why."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import UNNAMED as UNNAMED_CAUSE
from projects import Outcome, Project, line_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

NAMED = ("test_forked", "test_opened_in_c", "test_churn", "test_busy", "test_spawned", "test_served")
# Why no line is known.
UNNAMED = {
    "test_in_a_thread": "another of its threads was running too, and only the main thread is traced",
    "test_program": "it was not started by os.fork or multiprocessing during the session, or its signals are changed",
}


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, str]:
    project = Project(tmp_path_factory.mktemp("leaky"))
    path = project.copy("arms_of_workers.py", "test_workers.py")
    return project.run(), path.read_text()


def finding_of(outcome: Outcome, test: str) -> dict[str, Any]:
    found = outcome.finding(f"::{test}")
    assert (found["verdict"], found["slope"]) == ("leak", 1.0), outcome.text
    return found


@pytest.mark.parametrize("test", NAMED)
def test_the_line_in_the_worker_is_named(leaky: tuple[Outcome, str], test: str) -> None:
    outcome, text = leaky
    found = finding_of(outcome, test)
    assert found["site"] is not None, outcome.text
    assert Path(found["site"]["file"]).name == "test_workers.py"
    assert found["site"]["line"] == line_of(f"{test} LEAK", text)
    where = found["culprit"]["where"]
    assert where["process"].startswith("child process ")
    assert (where["phase"], where["fixture"], found["culprit"]["hint"]) == ("", "", "")
    assert found["culprit"]["unresolved"] == {"owner": "they are in a child process, whose objects are not searched"}


@pytest.mark.parametrize("test", ["test_forked", "test_served"])
def test_a_worker_that_was_forked_is_named_by_its_name_and_not_by_a_command(
    leaky: tuple[Outcome, str], test: str
) -> None:
    """Also one that the fork server has forked, whose command that one has."""
    (held,) = finding_of(leaky[0], test)["held"]
    assert re.fullmatch(r"in child \S+ \(forked\)", held["note"]), held


@pytest.mark.parametrize("test", UNNAMED)
def test_where_no_line_is_known_the_reason_is_given(leaky: tuple[Outcome, str], test: str) -> None:
    outcome, _text = leaky
    found = finding_of(outcome, test)
    assert (found["site"], found["owner"]) == (None, None)
    why = found["culprit"]["unresolved"]["site"]
    assert why.startswith("created in child process "), why
    assert why.endswith(f"; no line is known, because {UNNAMED[test]}"), why


def test_the_fixed_workers_say_nothing(project: Project) -> None:
    project.copy("arms_of_workers.py", "test_workers.py", LEAKY=False)
    # Python 3.12 and later warn of a fork of a process that has threads.
    outcome = project.run("-W", "ignore::DeprecationWarning")
    assert outcome.last_line == f"{len(NAMED) + len(UNNAMED)} passed", outcome.text
    assert set(outcome.verdicts.values()) == {"ok"}


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.laboratory)])
def test_the_line_in_a_worker_of_a_dataloader_is_named(project: Project, context: str) -> None:
    pytest.importorskip("torch")
    path = project.copy("arms_of_dataloaders.py", "test_loader.py", CONTEXT=context)
    outcome = project.run()
    found = outcome.finding("::test_next")
    assert found["verdict"] == "leak", outcome.text
    assert found["site"] is not None, outcome.text
    assert found["site"]["line"] == line_of("test_next LEAK", path.read_text()), outcome.text
    assert found["culprit"]["where"]["process"] == "child process pt_data_worker"

    project.copy("arms_of_dataloaders.py", "test_loader.py", CONTEXT=context, LEAKY=False)
    outcome = project.run()
    assert outcome.verdicts == {("test_next", "fd"): "ok"}, outcome.text


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_what_only_the_collector_of_a_worker_releases_is_unclosed_with_its_line(project: Project, context: str) -> None:
    path = project.copy("arms_of_cycles_in_workers.py", "test_cycles.py", CONTEXT=context)
    outcome = project.run()
    found = outcome.finding("::test_read")
    assert found["verdict"] == "unclosed", outcome.text
    assert 0.9 <= found["slope"] <= 1.1
    assert "1 descriptor per iteration released by a garbage collector only" in outcome.one_line
    assert (found["site"]["line"], found["site"]["function"]) == (
        line_of("the cycle LEAK", path.read_text()),
        "Source.__init__",
    ), outcome.text
    assert {one["what"] for one in found["held"]} == {str(path)}

    project.copy("arms_of_cycles_in_workers.py", "test_cycles.py", CONTEXT=context, LEAKY=False)
    outcome = project.run()
    assert outcome.verdicts == {("test_read", "fd"): "ok"}, outcome.text


# Two workers, the second of which opens twice as many; each has a limit of its own.
UNEVEN = """
    import multiprocessing, os, resource
    import pytest

    resource.setrlimit(resource.RLIMIT_NOFILE, (500, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def keep(count):
        for _ in range(count):
            os.open(__file__, os.O_RDONLY)

    @pytest.fixture(scope="module")
    def pools():
        with multiprocessing.get_context("fork").Pool(1) as one, multiprocessing.get_context("fork").Pool(1) as two:
            yield one, two

    @pytest.mark.fd_budget(0)
    def test_uneven(pools):
        for count, pool in enumerate(pools, start=1):
            pool.apply(keep, (count,))
"""


def test_the_worker_that_reaches_its_limit_first_is_named_with_what_it_gained(project: Project) -> None:
    project.write("conftest.py", UNNAMED_CAUSE)
    outcome = project.run_test(UNEVEN)
    found = outcome.finding("::test_uneven")
    assert (found["verdict"], found["slope"]) == ("leak", 3.0), outcome.text
    fullest = outcome.recordings[0]["fullest"]
    assert (fullest["gained"], fullest["of"]) == (2 * found["iterations"], 3 * found["iterations"])
    there = 3 + found["iterations"] + math.ceil((500 - fullest["held"]) / 2)
    said = f"which has gained {fullest['gained']} of {fullest['of']}, reaches its limit of 500 descriptors"
    assert f"{said} (ulimit -n) after ≈ {there} iterations" in outcome.one_line
