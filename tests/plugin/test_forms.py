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
        assert {one["iterations"] for one in outcome.findings} == {17}
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
