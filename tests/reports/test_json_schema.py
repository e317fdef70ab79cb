"""The schema of a line of the JSON report fits the reports of real sessions, and every field is in it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from projects import ROOT, Project
from pytest_leakcheck.report.json_file import FirstLine, to_line

jsonschema = pytest.importorskip("jsonschema")

SCHEMA: dict[str, Any] = json.loads(
    (ROOT / "pytest_leakcheck" / "report" / "report.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SIZES = """
    import pytest

    @pytest.mark.scaling_budget("size", [1, 2, 4], rss="O(1)", fd="O(1)")
    def test_sizes(size): bytearray(size << 22)

    @pytest.mark.rss_budget(peak="1 MiB")
    def test_peak(): bytearray(1 << 24)
"""


def check(project: Project) -> list[dict[str, Any]]:
    """Return the lines of the report, which fit the schema."""
    lines = project.lines()
    assert [error for line in lines for error in VALIDATOR.iter_errors(line)] == []
    return lines


def test_the_schema_is_one_and_is_up_to_date() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    done = subprocess.run(
        [sys.executable, str(ROOT / "ci" / "report_schema.py")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    texts = {
        f"{name}.{field}": "description" in one
        for name, part in SCHEMA["$defs"].items()
        for field, one in part["properties"].items()
    }
    assert [name for name, described in texts.items() if not described] == []


def test_reports_of_leaks(project: Project) -> None:
    project.copy("arms_of_the_schema.py")
    project.run("--leakcheck-max-time=5")
    _first, *findings, last = check(project)
    found = {one["test"].rpartition("::")[2]: one for one in findings}
    assert found["test_leak"]["culprit"]["where"]
    assert found["test_leak"]["owner"]
    assert found["test_lost"]["recording"]["stopped"] == "lost"
    assert found["test_loops"]["recording"]["phases"]
    # The last finding on a test is that on its last failing path.
    fault = found["test_failing_path"]["fault"]
    assert (fault["function"], fault["number"]) == ("os.dup", 1)
    assert (fault["site"]["function"], fault["entry"]["function"]) == ("leak_if_it_fails", "test_failing_path")
    assert [one["failing"] for one in findings if "failing" in one] == [{"found": 1, "judged": 1}]
    assert len(last["causes"]) > 2
    # As it is by default, and with a file of known leaks.
    default = ("--leakcheck", "--leakcheck-json=findings.json", "-k", "same_cause or clean")
    project.run("--leakcheck-update-baseline", *default, leakcheck=False)
    check(project)
    project.run("-k", "same_cause or clean")
    assert [one["known"] for one in check(project)[-1]["causes"]] == [True]


@pytest.mark.laboratory
def test_reports_of_sizes_and_peaks(project: Project) -> None:
    project.run_test(SIZES)
    findings = check(project)[1:-1]
    assert [one for one in findings if one.get("scaled")]
    assert any("law" in verdict for one in findings for verdict in one["verdicts"])


def test_a_killed_session_and_a_project_s_own_counter(project: Project) -> None:
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
    project.run_test("import pytest\n@pytest.mark.entries_budget(0)\ndef test_own(): pass\ndef test_last(): pass\n")
    first, finding = check(project)
    assert "entries" in first["resources"]
    assert finding["verdicts"][0]["resource"] == "entries"


def test_a_field_that_is_not_in_it_is_an_error(project: Project) -> None:
    project.run_test("import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass\n")
    first, finding, last = check(project)
    for line, owner in (
        (first, first),
        (finding, finding),
        (finding, finding["verdicts"][0]),
        (finding, finding["recording"]),
        (last, last["session"]),
    ):
        owner["mood"] = "good"
        (error,) = VALIDATOR.iter_errors(line)
        assert "'mood' was unexpected" in str(error.context)
        del owner["mood"]


def test_a_new_field_of_the_writer_is_noticed() -> None:
    @dataclass(frozen=True, slots=True)
    class Longer(FirstLine):
        mood: str = "good"

    assert VALIDATOR.is_valid(json.loads(to_line(FirstLine({}))))
    assert not VALIDATOR.is_valid(json.loads(to_line(Longer({}))))
