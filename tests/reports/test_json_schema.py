"""The schema of the JSON report fits the reports of real sessions, and every field that is written is in it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from projects import ROOT, Project
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.report import json_file
from pytest_leakcheck.report.json_file import Document

jsonschema = pytest.importorskip("jsonschema")

SCHEMA: dict[str, Any] = json.loads(
    (ROOT / "pytest_leakcheck" / "report" / "report.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
LEAKS = """
    import gc, os
    import pytest
    KEPT = []

    def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0, reason="a worker lives for a week")
    @pytest.mark.heap_budget("1 MiB")
    def test_leak(): leak()

    @pytest.mark.leakcheck
    def test_same_cause(): leak()

    @pytest.mark.fd_budget(0)
    def test_cycle():
        cycle = [open(__file__)]
        cycle.append(cycle)

    @pytest.mark.object_budget(0)
    def test_objects(): KEPT.append([[]])

    @pytest.mark.arrow_budget(0)
    def test_unavailable(): pass

    @pytest.mark.fd_budget(0)
    def test_not_repeatable(runs=[]):
        runs.append(1)
        assert len(runs) < 6

    @pytest.mark.leakcheck(isolate=True, resources=["fd"])
    def test_lost(): os._exit(3)

    def test_loops(leakcheck):
        leakcheck.gauge("entries", lambda: 1, level=1)
        for _ in leakcheck.steps(fd=0): leakcheck.checkpoint("read")

    @pytest.mark.leakcheck
    def test_clean(): pass
"""
SIZES = """
    import pytest

    @pytest.mark.scaling_budget("size", [1, 2, 4], rss="O(1)", fd="O(1)")
    def test_sizes(size): bytearray(size << 22)

    @pytest.mark.rss_budget(peak="1 MiB")
    def test_peak(): bytearray(1 << 24)
"""


def written(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / "findings.json").read_text(encoding="utf-8"))
    return found


def check(report: dict[str, Any]) -> None:
    assert [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(report)] == []


def test_the_schema_is_one_and_is_up_to_date() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    done = subprocess.run(
        [sys.executable, str(ROOT / "ci" / "report_schema.py")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    texts = {
        f"{name}.{field}": "description" in one
        for name, part in {"Document": SCHEMA, **SCHEMA["$defs"]}.items()
        for field, one in part["properties"].items()
    }
    assert [name for name, described in texts.items() if not described] == []


def test_reports_of_leaks(project: Project) -> None:
    project.write("test_it.py", LEAKS)
    project.run("--leakcheck-max-time=5")
    report = written(project)
    check(report)
    found = {one["test"].rpartition("::")[2]: one for one in report["findings"]}
    assert found["test_leak"]["culprit"]["where"]
    assert found["test_leak"]["owner"]
    assert found["test_lost"]["recording"]["stopped"] == "lost"
    assert found["test_loops"]["recording"]["phases"]
    assert len(report["causes"]) > 2
    # As it is by default, and with a file of known leaks.
    default = ("--leakcheck", "--leakcheck-json=findings.json", "-k", "same_cause or clean")
    project.run("--leakcheck-update-baseline", *default, leakcheck=False)
    check(written(project))
    project.run("-k", "same_cause or clean")
    report = written(project)
    check(report)
    assert [one["known"] for one in report["causes"]] == [True]


@pytest.mark.laboratory
def test_reports_of_sizes_and_peaks(project: Project) -> None:
    project.write("test_it.py", SIZES)
    project.run()
    report = written(project)
    check(report)
    assert [one for one in report["findings"] if one.get("scaled")]
    assert any("law" in verdict for one in report["findings"] for verdict in one["verdicts"])


def test_a_journal_and_a_project_s_own_counter(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import os
        from pytest_leakcheck import Probe

        def pytest_leakcheck_probes():
            return [Probe("entries", lambda: 1, unit="count", plural="entries")]

        def pytest_runtest_logreport(report):
            if "last" in report.nodeid: os._exit(3)
        """,
    )
    project.write(
        "test_it.py",
        "import pytest\n@pytest.mark.entries_budget(0)\ndef test_own(): pass\ndef test_last(): pass\n",
    )
    project.run()
    first, *findings = (project.folder / "findings.json.partial").read_text(encoding="utf-8").splitlines()
    document = json.loads(first)
    assert document["partial"]
    check({**document, "findings": [json.loads(line) for line in findings]})
    assert findings
    project.run("-k", "own")
    report = written(project)
    check(report)
    assert "entries" in report["resources"]


@pytest.mark.parametrize("at", ["document", "finding", "verdict", "recording"])
def test_a_field_that_is_not_in_it_is_an_error(project: Project, at: str) -> None:
    project.write("test_it.py", "import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass\n")
    project.run()
    report = written(project)
    check(report)
    finding = report["findings"][0]
    owner = {
        "document": report,
        "finding": finding,
        "verdict": finding["verdicts"][0],
        "recording": finding["recording"],
    }
    owner[at]["mood"] = "good"
    (error,) = VALIDATOR.iter_errors(report)
    assert "'mood' was unexpected" in error.message


def test_a_new_field_of_the_writer_is_noticed() -> None:
    @dataclass(frozen=True, slots=True)
    class Longer(Document):
        mood: str = "good"

    report = encode(replace(json_file.document(()), partial=False))
    check(json.loads(json.dumps(report)))
    with pytest.raises(AssertionError, match="'mood' was unexpected"):
        check(json.loads(json.dumps(encode(Longer((), {}, mood="bad")))))
