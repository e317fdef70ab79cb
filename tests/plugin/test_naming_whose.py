"""Whose a leak is: a fixture's, in its phase; a package's; one finding for tests that fail for one cause."""

from __future__ import annotations

from projects import Project, line_of

FIXTURES = """
    import os
    import pytest

    LEAKY = True
    KEPT = []

    @pytest.fixture
    def pipeline():
        file = os.open(__file__, os.O_RDONLY)  # of test_setup LEAK
        yield file
        if LEAKY:
            KEPT.append(file)
        else:
            os.close(file)

    @pytest.fixture
    def summary():
        yield
        file = os.open(__file__, os.O_RDONLY)  # of test_teardown LEAK
        if not LEAKY:
            os.close(file)

    @pytest.mark.fd_budget(0)
    def test_setup(pipeline):
        pass

    @pytest.mark.fd_budget(0)
    def test_teardown(summary):
        pass
"""


def test_a_fixture_is_blamed_in_the_phase_in_which_it_leaks(project: Project) -> None:
    path = project.write("test_it.py", FIXTURES)
    leaky = project.run()
    for test, fixture, phase, shown in (
        ("test_setup", "pipeline", "setup", "set-up"),
        ("test_teardown", "summary", "teardown", "tear-down"),
    ):
        found = leaky.finding(test)
        assert found["site"]["line"] == line_of(f"{test} LEAK", path.read_text())
        where = found["culprit"]["where"]
        assert (where["fixture"], where["phase"]) == (fixture, phase)
        assert f"in fixture {fixture}, {shown}, not in the test function itself" in leaky.text
    assert leaky.finding("test_setup")["owner"]["name"] == "test_it.KEPT"
    path.write_text(path.read_text().replace("LEAKY = True", "LEAKY = False"))
    fixed = project.run()
    assert fixed.status == 0, fixed.text


PACKAGE = """
    import os

    def opened(path):
        return os.open(path, os.O_RDONLY)
"""
USING = """
    import os
    import pytest
    from decode import opened

    @pytest.mark.fd_budget(0)
    def test_decode():
        opened(__file__)

    @pytest.mark.fd_budget(0)
    def test_decode_again():
        opened(__file__)

    @pytest.mark.fd_budget(0)
    def test_of_another():
        os.dup(1)
"""


def test_tests_that_fail_for_one_cause_are_one_finding(project: Project) -> None:
    project.write("decode.py", PACKAGE)
    ran = project.run_test(USING)
    fingerprints = {one["test"].rpartition("::")[2]: one["fingerprint"] for one in ran.findings if one["fingerprint"]}
    assert fingerprints["test_decode"] == fingerprints["test_decode_again"] != fingerprints["test_of_another"]
    assert fingerprints["test_decode"].endswith("-fd-decode-open")
    assert "  test_it.py::test_decode and 1 more" in ran.text
    # Lines above, and another folder, change nothing.
    project.write("decode.py", "# A comment.\n" + PACKAGE.replace("\n    ", "\n"))
    again = project.run("-k", "again").finding("test_decode_again")
    assert again["fingerprint"] == fingerprints["test_decode"]


def test_only_what_the_named_packages_have_to_do_with_is_red(project: Project) -> None:
    project.write("decode.py", PACKAGE)
    project.write("test_it.py", USING)
    blamed = project.run("--leakcheck-blame=decode")
    colours = {one["test"].rpartition("::")[2]: one["colour"] for one in blamed.findings}
    assert colours == {"test_decode": "red", "test_decode_again": "red", "test_of_another": "yellow"}
    assert blamed.finding("test_of_another")["third_party"] == "no suspect frame belongs to decode"
    assert blamed.last_line == "2 failed, 1 passed"
    unblamed = project.run("--leakcheck-blame=other,another")
    assert unblamed.last_line == "3 passed"
