"""``--leakcheck-json``: the fields that scripts rely on, with and without workers, and nothing lost."""

from __future__ import annotations

import pytest

from projects import Outcome, Project

SUITE = """
    import os
    import pytest
    KEPT = []

    @pytest.mark.fd_budget(0)
    @pytest.mark.heap_budget("1 MiB")
    def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    @pytest.mark.heap_budget("1 MiB")
    def test_clean(): pass

    def test_unmarked(): pass
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return Project(tmp_path_factory.mktemp("alone")).run_test(SUITE)


def test_the_fields(alone: Outcome) -> None:
    leak = alone.finding("test_leak")
    assert (leak["verdict"], leak["slope"], leak["floor"], leak["colour"]) == ("leak", 1.0, None, "red")
    path = leak["site"]["file"]
    assert path.endswith("/alone0/test_it.py")
    assert leak["held"] == [{"what": path, "count": 17, "note": ""}]
    assert leak["site"] == {"file": path, "line": 7, "function": "test_leak", "call": "os.open()"}
    assert (leak["owner"]["name"], leak["owner"]["gained"]) == ("test_it.KEPT", 1.0)
    assert leak["fingerprint"].endswith("-fd-test_it-KEPT")
    # The first red ends the repetition: the heap gets no verdict.
    assert ("test_leak", "heap") not in alone.verdicts
    clean = alone.finding("test_clean", "heap")
    assert (clean["verdict"], clean["slope"]) == ("ok", 0.0)
    assert 0 < clean["floor"] < 1024
    assert [one["test"] for one in alone.recordings] == ["test_it.py::test_leak", "test_it.py::test_clean"]


def test_the_same_with_workers(alone: Outcome, project: Project) -> None:
    spread = project.run_test(SUITE, "-n", "2")
    assert spread.status == alone.status == 1
    assert spread.verdicts == alone.verdicts
    assert spread.finding("test_leak")["slope"] == alone.finding("test_leak")["slope"]
    assert spread.finding("test_leak")["fingerprint"] == alone.finding("test_leak")["fingerprint"]
    assert spread.text.count("fd +1.0/iter × 17") == alone.text.count("fd +1.0/iter × 17")


def test_an_earlier_report_is_replaced(project: Project) -> None:
    project.write("test_it.py", SUITE)
    report = project.write("report.json", '{"schema": 4, "resources": {}}\n' * 1000)
    # A run that ends before it has anything to say writes a whole report too.
    project.run("--leakcheck", f"--leakcheck-json={report}", "-k", "nothing", leakcheck=False)
    first, last = project.lines("report.json")
    assert (first["schema"], "session" in last) == (4, True)


def test_thousands_of_green_tests_are_a_few_megabytes(project: Project) -> None:
    """Judged on all resources, as under the scope that adds most: 5,000 tests take at most 10 MB."""
    suite = "import pytest\n@pytest.mark.parametrize('number', range(40))\ndef test_it(number): pass\n"
    project.write("tests/unit/package/test_of_a_usual_length.py", suite)
    outcome = project.run("--leakcheck-scope=all", "--leakcheck-json=findings.json", leakcheck=False)
    assert outcome.last_line == "40 passed"
    size = (project.folder / "findings.json").stat().st_size
    assert 5000 * size / 40 <= 10e6
