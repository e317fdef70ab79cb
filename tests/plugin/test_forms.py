"""The first leak that a user sees, in every form that a test can have: caught, fixed, silent."""

from __future__ import annotations

import pytest

from projects import Project
from sessions import FORMS, FORMS_ARMS, FORMS_COUNT
from variants import variants
from verdict_rows import compare, is_made_here, read, reduce


@pytest.fixture(params=FORMS_ARMS)
def arm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("workers", variants(["0"], ["2"]))
def test_every_form(project: Project, arm: str, workers: str) -> None:
    project.load_asyncio()
    project.write("test_forms.py", FORMS.format(after=FORMS_ARMS[arm]))
    outcome = project.run("-n", workers, "-v")
    assert len(outcome.findings) == FORMS_COUNT, outcome.text
    if arm == "leaky":
        assert outcome.status == 1
        assert {one["verdict"] for one in outcome.findings} == {"leak"}
        assert {one["slope"] for one in outcome.findings} == {1.0}
        assert outcome.text.count("LeakError: fd +1.0/iter") == FORMS_COUNT
    else:
        assert outcome.status == 0, outcome.text
        assert {one["verdict"] for one in outcome.findings} == {"ok"}
        assert all(one["floor"] is not None for one in outcome.findings)
    if is_made_here("forms"):
        recorded = {name: row for name, row in read()["forms"].items() if name.startswith(f"{arm} ")}
        found = {f"{arm} {name}": row for name, row in reduce(outcome.findings).items()}
        assert [str(one) for one in compare(recorded, found)] == []


def test_plain_pytest_runs_each_once(project: Project) -> None:
    project.load_asyncio()
    project.write("test_forms.py", FORMS.format(after="KEPT.append(file); assert len(KEPT) <= 10"))
    outcome = project.run(leakcheck=False)
    assert outcome.status == 0, outcome.text
    assert outcome.last_line == "10 passed"


@pytest.mark.laboratory
def test_a_verdict_comes_within_twenty_iterations(project: Project) -> None:
    project.load_asyncio()
    project.write("test_forms.py", FORMS.format(after="KEPT.append(file)"))
    outcome = project.run()
    assert all(one["iterations"] + 3 <= 20 for one in outcome.findings)


def test_every_fourth_within_a_hundred(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os, pytest
        COUNT = [0]
        @pytest.mark.fd_budget
        def test_every_fourth():
            COUNT[0] += 1
            if COUNT[0] % 4 == 0:
                os.open(__file__, os.O_RDONLY)
        """,
    )
    found = project.run().finding("test_every_fourth")
    assert found["verdict"] == "leak"
    assert found["iterations"] + 3 <= 100
    assert found["slope"] == pytest.approx(0.25, rel=0.1)


def test_thread_and_process(project: Project) -> None:
    text = """
        import subprocess, sys, threading
        import pytest
        STOP = threading.Event()
        CHILDREN = []
        @pytest.fixture(scope="module", autouse=True)
        def clean_up():
            yield
            STOP.set()
            for child in CHILDREN:
                child.kill(); child.wait()
        @pytest.mark.thread_budget(0)
        def test_thread():
            thread = threading.Thread(target=STOP.wait{arguments})
            thread.start()
            {join}
        @pytest.mark.process_budget(0)
        def test_process():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep({seconds})"])
            {wait}
    """
    project.write(
        "test_it.py",
        text.format(arguments="", join="", seconds=60, wait="CHILDREN.append(child)"),
    )
    leaky = project.run()
    assert leaky.verdicts == {("test_thread", "thread"): "leak", ("test_process", "process"): "leak"}, leaky.text
    assert leaky.finding("test_process", "process")["slope"] == 1.0
    project.write(
        "test_it.py",
        text.format(arguments=", args=(0.001,)", join="thread.join()", seconds=0, wait="child.wait()"),
    )
    fixed = project.run()
    assert fixed.status == 0
    assert fixed.verdicts == {("test_thread", "thread"): "ok", ("test_process", "process"): "ok"}, fixed.text
