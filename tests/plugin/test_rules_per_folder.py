"""``leakcheck_rules``: other settings for the tests of a folder, below marks and the command line."""

from __future__ import annotations

import pytest

from projects import Project

RULES = """
    [pytest]
    leakcheck_scope = all
    leakcheck_rules =
        tests/vendored/**: off
        tests/net/**: resources=thread
        tests/strict/**: unclosed=fail
        tests/alone: isolate max_time=20
        tests/gone/**: off
"""
LEAKY = """
    import os
    import pytest

    KEPT = []

    def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    def test_marked(): KEPT.append(os.open(__file__, os.O_RDONLY))
"""
UNCLOSED = """
    import os

    class Stream:
        def __init__(self): self.me, self.file = self, os.open(__file__, os.O_RDONLY)
        def __del__(self): os.close(self.file)

    def test_cycle(): Stream()
"""


@pytest.mark.laboratory
def test_each_folder_has_its_own_settings(project: Project) -> None:
    project.write("pytest.ini", RULES)
    for folder in ("vendored", "net", "alone", "rest"):
        project.write(f"tests/{folder}/test_{folder}.py", LEAKY)
    for arguments in ((), ("-n", "2")):
        ran = project.run(*arguments)
        red = {one["test"]: one["resource"] for one in ran.findings if one["colour"] == "red"}
        assert red == {
            "tests/vendored/test_vendored.py::test_marked": "fd",
            "tests/net/test_net.py::test_marked": "fd",
            "tests/alone/test_alone.py::test_leak": "fd",
            "tests/alone/test_alone.py::test_marked": "fd",
            "tests/rest/test_rest.py::test_leak": "fd",
            "tests/rest/test_rest.py::test_marked": "fd",
        }, ran.text
        isolated = {one["test"] for one in ran.recordings if one["environment"].get("isolated")}
        assert isolated == {f"tests/alone/test_alone.py::{name}" for name in ("test_leak", "test_marked")}
        assert "1 off by leakcheck_rules" in ran.text
        unused = "leakcheck_rules: tests/gone/**: matches no file that has tests: patterns begin at the root directory"
        assert ran.text.count(unused) == 1
        assert ran.text.count("matches no file") == 2
    assert unused not in project.run("tests/rest").text


def test_the_command_line_overrides_a_rule(project: Project) -> None:
    project.write("pytest.ini", RULES)
    project.write("tests/net/test_net.py", LEAKY)
    ran = project.run("--leakcheck-resources=fd")
    assert {one["test"]: one["verdict"] for one in ran.findings if one["resource"] == "fd"} == {
        "tests/net/test_net.py::test_leak": "leak",
        "tests/net/test_net.py::test_marked": "leak",
    }


def test_what_only_the_collector_releases_fails_where_a_rule_says_so(project: Project) -> None:
    project.write("pytest.ini", RULES)
    for folder in ("strict", "rest"):
        project.write(f"tests/{folder}/test_{folder}.py", UNCLOSED)
    ran = project.run("--leakcheck-resources=fd")
    said = {one["test"]: (one["verdict"], one["colour"]) for one in ran.findings}
    assert said == {
        "tests/strict/test_strict.py::test_cycle": ("unclosed", "red"),
        "tests/rest/test_rest.py::test_cycle": ("unclosed", "yellow"),
    }, ran.text


def test_a_wrong_line_is_an_error_even_without_the_option(project_here: Project) -> None:
    project_here.write("pytest.ini", "[pytest]\nleakcheck_rules = tests/net/**: max_time=none\n")
    ran = project_here.run_test_here("def test_it(): pass", leakcheck=False)
    assert ran.status == 4
    assert (
        "leakcheck_rules = 'tests/net/**: max_time=none': max_time=none: must be a number of seconds above 0"
        in ran.text
    )
