"""JUnit's XML: the first line of a failure, and properties for readers that do not parse text."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from projects import Outcome, Project
from variants import variants

SUITE = """
    import os, pytest
    KEPT = []

    @pytest.mark.fd_budget(0)
    def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    def test_clean(): pass

    @pytest.mark.fd_budget(0)
    def test_does_not_repeat():
        assert len(KEPT) < 40
        KEPT.extend(range(40))

    @pytest.mark.scaling_budget("jobs", [2, 4, 8], fd="O(1)")
    def test_sizes(jobs):
        files = [os.open(os.devnull, os.O_RDONLY) for number in range(jobs)]
        os.getpid()
        for file in files:
            os.close(file)
"""


def read(project: Project) -> dict[str, list[tuple[str, str]]]:
    """Return the properties of each test; the parser rejects a file that is not well-formed."""
    cases = ET.parse(project.folder / "junit.xml").iter("testcase")
    return {
        case.attrib["name"]: [(one.attrib["name"], one.attrib["value"]) for one in case.iter("property")]
        for case in cases
    }


def ids_of(outcome: Outcome) -> dict[str, str]:
    return {one["test"].rpartition("::")[2]: one["fingerprint"] for one in outcome.findings}


@pytest.mark.parametrize("options", variants([()], [("-n", "1"), ("--leakcheck-isolate",)]), ids=" ".join)
def test_each_property_once_and_one_on_a_green_test(project: Project, options: tuple[str, ...]) -> None:
    outcome = project.run_test(SUITE, "--junit-xml=junit.xml", *options)
    ids, found = ids_of(outcome), read(project)
    assert found["test_leak"] == [
        ("leakcheck.fd", "leak 1/iter"),
        ("leakcheck.finding", ids["test_leak"]),
        ("leakcheck.site", "test_it.py:5"),
    ]
    assert found["test_clean"] == [("leakcheck.floor", "fd 1 in 2 iter")]
    assert found["test_does_not_repeat"] == [
        ("leakcheck.fd", "inconclusive"),
        ("leakcheck.finding", ids["test_does_not_repeat"]),
    ]
    assert found["test_sizes"] == [
        ("leakcheck.fd", "over_budget O(n)"),
        ("leakcheck.finding", ids["test_sizes"]),
        ("leakcheck.site", "test_it.py:17"),
    ]
    text = (project.folder / "junit.xml").read_text(encoding="utf-8")
    assert 'message="LeakError: fd +1.0/iter — test_it.py:5 os.open() (17 iterations)' in text


def test_a_known_leak_has_the_id_of_its_entry(project: Project) -> None:
    project.write("test_it.py", SUITE.replace("@pytest.mark.fd_budget(0)", "@pytest.mark.leakcheck"))
    scope = ("-k", "test_leak")
    project.run("--leakcheck-update-baseline", *scope)
    project.run("--junit-xml=junit.xml", *scope)
    [entry] = json.loads((project.folder / "leakcheck-baseline.json").read_text(encoding="utf-8"))["known"]
    properties = dict(read(project)["test_leak"])
    assert (properties["leakcheck.known"], properties["leakcheck.fd"]) == (entry["finding"], "leak 1/iter")


@pytest.mark.laboratory
@pytest.mark.parametrize("options", variants([()], [("-n", "1")]), ids=" ".join)
def test_a_lost_test_and_one_that_is_not_judged_have_theirs(project: Project, options: tuple[str, ...]) -> None:
    project.copy("program_with_lost_tests.py")
    outcome = project.run("--junit-xml=junit.xml", *options)
    ids, found = ids_of(outcome), read(project)
    assert found.pop("test_own_failure") == []
    told = {test: properties[0] for test, properties in found.items()}
    assert told == {
        "test_sizes_lost": ("leakcheck.fd", "inconclusive"),
        "test_sizes_unavailable": ("leakcheck.arrow", "unavailable"),
        "test_lost": ("leakcheck.process", "inconclusive"),
        "test_lost_late": ("leakcheck.process", "inconclusive"),
        "test_unavailable": ("leakcheck.arrow", "unavailable"),
    }
    for test, properties in found.items():
        assert properties[1:] == [("leakcheck.finding", ids[test])]


def test_what_is_no_text_does_not_break_the_file(project: Project) -> None:
    """Node ids, values and messages with control characters, unpaired surrogates and markup."""
    outcome = project.run_test(
        r"""
        import os, pytest
        KEPT = {}

        @pytest.mark.parametrize("text", ["\x00\x1b[31m", "</testcase>&", "\udcff", "]]>", "\ufffe"])
        @pytest.mark.fd_budget(0, reason="</property> \x08 & \udcff")
        def test_odd(text):
            print(text.encode("utf-8", "replace"))
            KEPT.setdefault(text + "<\x07>", []).append(os.open(__file__, os.O_RDONLY))
        """,
        "--junit-xml=junit.xml",
    )
    assert len(outcome.findings) == 5
    found = read(project)
    assert len(found) == 5
    assert all(("leakcheck.fd", "leak 1/iter") in properties for properties in found.values())
