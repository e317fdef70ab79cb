"""Failing paths: a call of the test raises in each iteration, and what then remains is found, with its line."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from projects import Project, line_of

SESSIONS = Path(__file__).with_name("sessions")
PROGRAM = "program_with_failing_paths.py"


def arms() -> dict[str, tuple[str, str]]:
    """The functions of the program: what raises, and what then remains."""
    tree = ast.parse((SESSIONS / "arms_of_failing_paths.py").read_text(encoding="utf-8"))
    found: dict[str, tuple[str, str]] = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ARMS"
    )
    return found


def findings(project: Project) -> list[dict[str, Any]]:
    return [line for line in project.lines() if "test" in line]


@pytest.mark.parametrize("half", [0, 1])
def test_each_leak_is_found_with_its_line_and_no_fixed_arm_is_red(project: Project, half: int) -> None:
    project.copy("arms_of_failing_paths.py")
    text = project.copy(PROGRAM, PROGRAM).read_text(encoding="utf-8")
    chosen = dict(list(arms().items())[half::2])
    outcome = project.run("--tb=no", "--leakcheck-max-time=600", "-k", " or ".join(f"[{name}-" for name in chosen))
    assert [one["test"] for one in findings(project) if one["colour"] == "red" and "fault" not in one] == []
    red: dict[str, set[tuple[str, str, int]]] = {}
    for one in findings(project):
        if one["colour"] == "red":
            # The name of an iterator follows.
            function, _, _ = one["fault"]["function"].partition(" ")
            where = function, one["verdicts"][0]["resource"], one["site"]["line"]
            red.setdefault(one["test"].partition("[")[2], set()).add(where)
    assert red == {
        f"{name}-leaky]": {(raises, resource, line_of(name, text))} for name, (raises, resource) in chosen.items()
    }, outcome.text
    assert outcome.last_line.startswith(f"{len(chosen)} failed, {len(chosen)} passed, ")
    assert re.search(r"failing paths: (\d+) of \1 calls made to raise", outcome.text)
    if "shards" in chosen:
        # Of three calls at one line, the second and the third leave the others open.
        shards = [
            one["fault"]["number"] for one in findings(project) if "shards-leaky" in one["test"] and "fault" in one
        ]
        assert shards == [1, 2, 3]


def test_there_are_twenty_pairs() -> None:
    assert len(arms()) >= 20
    assert [resource for raises, resource in arms().values() if raises == "iterate"] == ["thread", "disk", "fd"]


def test_the_page_shows_what_the_tests_report(project: Project) -> None:
    """Each block of Python with a report after it, without the statement that releases."""
    page = (Path(__file__).parents[2] / "docs" / "failing-paths.md").read_text(encoding="utf-8")
    shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 2
    for code, report in shown:
        leaky = re.sub("(try|finally):", "if True:", code)
        if "return" in code:
            leaky = leaky.replace("return os.read", "text = os.read").replace(
                "os.close(file)", "os.close(file); return text"
            )
        project.write("test_it.py", leaky)
        text = project.run().text
        # The number of open descriptors is that of the machine.
        for line in re.sub(r"\d+ → \d+", "", report).splitlines():
            assert line.strip() in re.sub(r"\d+ → \d+", "", text), text


CLIENT = (SESSIONS / "program_of_a_client.py").read_text(encoding="utf-8")
FIXED = "text = None\n    try: text = os.read(descriptor, 1)\n    except OSError: pass"


def write(project: Project, tests: str) -> None:
    project.copy("program_of_a_client.py", "client.py")
    project.write(
        "test_it.py", f"    import client, json, os, sys, pytest\n    leakcheck = pytest.mark.leakcheck\n{tests}"
    )


def verdicts(project: Project) -> dict[tuple[str, str, int], str]:
    """The outcome of each failing path, by test, function and number of the call."""
    return {
        (one["test"].partition("::")[2], one["fault"]["function"], one["fault"]["number"]): one["verdicts"][0][
            "verdict"
        ]
        for one in findings(project)
        if "fault" in one
    }


def test_the_outcome_of_the_test_is_that_of_its_ordinary_run(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["os.read"])
    def test_fails_then(): assert client.read_safely() == b"\\0"

    @leakcheck(failures=["os.read"])
    def test_catches_it():
        with pytest.raises(OSError): client.read("/nowhere")
        client.read_safely()

    @leakcheck(failures=["os.read"])
    @pytest.mark.xfail(strict=True)
    def test_expected_to_fail(): assert client.read_safely() == b"x"

    @leakcheck(failures=["os.read"])
    def test_leaks(): client.read()

    @leakcheck(failures=["os.read"])
    def test_that_fails(): assert client.read_safely() == b"x"

    @leakcheck(failures=["os.read"])
    def test_that_leaks_anyway(): os.open("/dev/zero", os.O_RDONLY); client.read()
    """,
    )
    outcome = project.run()
    assert outcome.last_line == "3 failed, 2 passed, 1 xfailed", outcome.text
    assert verdicts(project) == {
        ("test_fails_then", "os.read", 1): "ok",
        ("test_catches_it", "os.read", 1): "ok",
        ("test_leaks", "os.read", 1): "leak",
    }
    opens, reads = (line_of(what, CLIENT) for what in ("the file", "the text"))
    assert f"fd +1.0/iter — client.py:{opens} os.open() if os.read raises at client.py:{reads}" in outcome.text
    assert f"if os.read raises at call 1 from client.py:{reads} in read()" in outcome.one_line
    assert "6 tests: 2 ok · 2 leak · 2 not judged" in outcome.text
    why = "1 left out, beyond 20 of a test or its max_time, or because it leaks or fails anyway"
    assert f"failing paths: 3 of 4 calls made to raise; {why}" in outcome.one_line
    counts = {one["test"].partition("::")[2]: one["failing"] for one in findings(project) if "failing" in one}
    assert counts["test_that_leaks_anyway"] == {"found": 1, "judged": 0}
    # The name of a cause has the place of the fault.
    assert "-fd-read-read" in next(one["fingerprint"] for one in findings(project) if one["colour"] == "red")


def test_a_path_that_does_not_repeat_is_not_judged(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["os.read"])
    def test_not_reached(): client.read_in_turns()

    @leakcheck(failures=["json.loads"])
    def test_raises_in_turns(): client.raise_in_turns()

    @leakcheck(failures=["json.loads"])
    def test_blocks(): client.read_with_lock()
    """,
    )
    outcome = project.run()
    assert outcome.last_line == "3 passed", outcome.text
    reasons = {one["test"].partition("::")[2]: one["verdicts"][0] for one in findings(project) if "fault" in one}
    assert {one["verdict"] for one in reasons.values()} == {"inconclusive"}
    assert reasons["test_not_reached"]["reason"].endswith(" did not reach the call")
    differs = "not judged: iteration 2 raised IndexError, the first one raised KeyError"
    swapped = differs.replace("IndexError", "X").replace("KeyError", "IndexError").replace("X", "KeyError")
    assert reasons["test_raises_in_turns"]["reason"] in (differs, swapped)
    locks, reads = (line_of(what, CLIENT) for what in ("the lock", "the safe text"))
    assert reasons["test_blocks"]["reason"] == f"not repeatable: iteration 2 blocked at client.py:{locks}"
    assert "3 tests: 3 ok" in outcome.text
    assert f"if os.read raises at client.py:{reads}: not judged: iteration " in outcome.one_line


def test_what_the_test_itself_does_is_left_out(project: Project) -> None:
    write(
        project,
        """
    @pytest.fixture
    def opened():
        descriptor = os.open("/dev/zero", os.O_RDONLY)
        client.read_safely()
        yield descriptor
        os.close(descriptor)
        client.read_safely()

    @leakcheck(failures=["os.open", "os.read"])
    def test_own_calls(opened):
        descriptor = os.open("/dev/zero", os.O_RDONLY)
        os.close(descriptor)

    @leakcheck(failures=["os.read"])
    def test_closes_by_hand():
        one = client.Client()
        one.fetch()
        one.close()
    """,
    )
    outcome = project.run()
    assert outcome.last_line == "2 passed", outcome.text
    # The set-up of a fixture counts, and not its tear-down, nor what test and fixture call themselves. What a test has
    # received and does not release as it fails is its own.
    assert verdicts(project) == {
        ("test_own_calls", "os.open", 1): "inconclusive",
        ("test_own_calls", "os.read", 1): "ok",
        ("test_closes_by_hand", "os.read", 1): "inconclusive",
    }
    assert (
        "created at test_it.py:19, and test_closes_by_hand() fails at line 20 without releasing it" in outcome.one_line
    )


def test_the_number_and_the_time_are_bounded(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["os.open"])
    def test_many(): client.open_many(50)

    @leakcheck(failures=["os.open"], max_time=0.000001)
    def test_no_time(): client.open_many(5)
    """,
    )
    outcome = project.run()
    counts = {one["test"].partition("::")[2]: one["failing"] for one in findings(project) if "failing" in one}
    assert counts == {"test_many": {"found": 50, "judged": 20}, "test_no_time": {"found": 5, "judged": 0}}
    assert len(verdicts(project)) == 20
    assert "failing paths: 20 of 55 calls made to raise; 35 left out" in outcome.text


def test_the_option_the_second_pass_and_a_separate_process(project: Project) -> None:
    write(
        project,
        """
    def test_unmarked(): client.read()

    @leakcheck(failures=False)
    def test_not_here(): client.read()

    @leakcheck(failures=["json.loads"])
    def test_another(): client.read_with_lock()

    @leakcheck(isolate=True, failures=True)
    def test_isolated(): client.read()
    """,
    )
    project.write("pytest.ini", "[pytest]\nleakcheck_failures = os.read\n")
    outcome = project.run("--leakcheck-scope=all", "-k", "not another")
    leaks = {"test_unmarked": "leak", "test_isolated": "leak"}
    found = {test: verdict for (test, function, _), verdict in verdicts(project).items() if function == "os.read"}
    assert found == leaks, outcome.text
    assert "2 failed, 2 passed, 1 deselected" in outcome.text
    # A test without a mark passes, and its leak is one more report.
    assert "LEAK test_it.py::test_unmarked" in outcome.text
    outcome = project.run("--leakcheck-scope=all", "--leakcheck-failures=all", "-k", "unmarked or not_here")
    assert {test for test, _, _ in verdicts(project)} == {"test_unmarked", "test_not_here"}


def test_a_known_leak_of_a_failing_path_is_not_that_of_the_test_as_it_is(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["os.read"])
    def test_it(): client.read()
    """,
    )
    assert project.run("--leakcheck-update-baseline").last_line == "1 known"
    known = (project.folder / "leakcheck-baseline.json").read_text(encoding="utf-8")
    assert '"fault": "os.read in client.py:read"' in known
    assert project.run().last_line == "1 known"
    # Without the failing paths, nothing shows that it is fixed.
    project.write("test_it.py", (project.folder / "test_it.py").read_text().replace('failures=["os.read"]', ""))
    assert project.run("--leakcheck-update-baseline").last_line == "1 passed"
    assert (project.folder / "leakcheck-baseline.json").read_text(encoding="utf-8") == known
    # The same line leaks without a fault: that is another leak.
    project.write("client.py", CLIENT.replace("    os.close(descriptor)\n    return text", "    return text"))
    assert project.run().last_line == "1 failed"
    # With them, what is fixed is dropped, and comes again.
    project.write("client.py", CLIENT.replace("text = os.read(descriptor, 1)", FIXED))
    fixed = project.run("--leakcheck-update-baseline", "--leakcheck-failures=os.read")
    assert '"fault"' not in (project.folder / "leakcheck-baseline.json").read_text(encoding="utf-8"), fixed.text


def test_what_pytest_retains_of_a_failure_is_no_leak(project: Project) -> None:
    """Its frames refer to each other, so only the garbage collector would close the file of the failing frame."""
    write(
        project,
        """
    @leakcheck(failures=["json.loads"])
    def test_it(): client.parse_open_file()

    @pytest.fixture
    def before():
        # pytest itself forgets the last failure only when the body of the next test begins.
        assert not hasattr(sys, "last_value")

    def test_after(before): pass
    """,
    )
    project.write(
        "conftest.py",
        """
        import pytest
        from _pytest.python import Function

        format_failure = Function.repr_failure

        def counted(self, excinfo):
            print("FORMATTED")
            return format_failure(self, excinfo)

        Function.repr_failure = counted
        """,
    )
    outcome = project.run("-s")
    assert verdicts(project) == {("test_it", "json.loads", 1): "ok"}, outcome.text
    assert "FORMATTED" not in outcome.text
    assert "2 passed" in outcome.text


def test_a_descriptor_that_nothing_holds_is_red_in_the_first_search_of_a_session(project: Project) -> None:
    """What the search remembers of files meanwhile holds none."""
    project.write(
        "client.py",
        """
    import json, os
    def read():
        descriptor = os.open("/dev/zero", os.O_RDONLY)
        json.loads("1")
        os.close(descriptor)
    """,
    )
    project.write(
        "test_it.py",
        """
    import client, pytest
    @pytest.mark.leakcheck(failures=["json.loads"])
    def test_it():
        try: client.read()
        except ValueError: pass
    """,
    )
    project.run("--leakcheck-min-time=30")
    (path,) = (one for one in findings(project) if "fault" in one)
    assert [(one["resource"], one["iterations"]) for one in path["verdicts"] if one["verdict"] == "leak"] == [
        ("fd", 17)
    ]


def test_three_runs_decide_a_quiet_path(project: Project) -> None:
    """The first of them is the warm-up: what the program allocates once does not count.

    From Python 3.12 on, the first path of a session takes more: each function that runs after a call of `sys.setprofile`,
    so also ours, then allocates a block once.
    """
    write(
        project,
        """
    @leakcheck(failures=["json.loads"])
    def test_earlier(): client.read_json()

    @leakcheck(failures=["json.loads"])
    def test_it(): client.remember()
    """,
    )
    project.run()
    _earlier, path = (one for one in findings(project) if "fault" in one)
    assert {(one["verdict"], one["iterations"]) for one in path["verdicts"]} == {("ok", 2)}


def test_each_cause_of_a_test_has_a_block(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["json.loads"], resources=["fd"])
    def test_one(): client.leak_twice()

    @leakcheck(failures=["os.read", "json.loads"], resources=["fd"])
    def test_both(): client.leak_twice()
    """,
    )
    outcome = project.run()
    assert list(verdicts(project).values()) == ["leak"] * 5
    blocks = [line for line in outcome.text.splitlines() if line.startswith("fd +") and " if " in line]
    # Both calls of json.loads are one cause. One of the second test has a block already, but not the other.
    assert [line.rpartition(" if ")[2].partition(" raises")[0] for line in blocks] == [
        "json.loads",
        "json.loads",
        "os.read",
    ]
    assert outcome.last_line == "2 failed"


def test_the_stated_floors_are_those_of_the_tests_as_they_are(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(iterations=60, resources=["fd"])
    def test_it(): client.read_safely()
    """,
    )
    floors = [
        next(line for line in project.run("-v", *options).text.splitlines() if "sensitivity" in line)
        for options in ((), ("--leakcheck-failures=os.read",))
    ]
    assert floors[0] == floors[1]


def test_a_dropped_iterator_is_reported_and_known_like_a_call(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["iterate"])
    def test_it(): assert list(client.chunks()) == [b"\\0", b"\\0"]

    @leakcheck(failures=["iterate"])
    def test_keeps_its_own():
        one = client.Client()
        for chunk in one.chunks(): pass
        one.close()

    @leakcheck(failures=["iterate", "os.read"])
    def test_safe(): assert [len(one) for one in client.chunks_safely()] == [1, 1]
    """,
    )
    outcome = project.run("--leakcheck-html=page.html")
    assert outcome.last_line == "1 failed, 2 passed", outcome.text
    assert verdicts(project) == {
        ("test_it", "iterate client.chunks", 1): "leak",
        ("test_it", "iterate client.chunks", 2): "leak",
        ("test_keeps_its_own", "iterate client.Client.chunks", 1): "inconclusive",
        ("test_safe", "iterate client.chunks_safely", 1): "ok",
        ("test_safe", "iterate client.chunks_safely", 2): "ok",
        ("test_safe", "os.read", 1): "ok",
        ("test_safe", "os.read", 2): "ok",
    }
    opens, test = line_of("the chunks", CLIENT), 5
    assert f"fd +1.0/iter — client.py:{opens} if client.chunks is dropped at test_it.py:{test}" in outcome.text
    assert f"if client.chunks is dropped after item 1 at test_it.py:{test} in test_it()" in outcome.one_line
    assert "and test_keeps_its_own() fails at line 10 without releasing it" in outcome.one_line
    assert "failing paths: 7 of 7 calls made to raise" in outcome.text
    assert "client.chunks is dropped after item 1 at" in (project.folder / "page.html").read_text(encoding="utf-8")
    assert project.run("--leakcheck-update-baseline").last_line == "2 passed, 1 known"
    known = (project.folder / "leakcheck-baseline.json").read_text(encoding="utf-8")
    assert '"fault": "iterate client.chunks in test_it.py:test_it"' in known
    assert project.run().last_line == "2 passed, 1 known"


def test_an_exception_that_the_program_catches_holds_none_of_its_variables(project: Project) -> None:
    """What only the collector could free would be a file that is not closed."""
    write(
        project,
        """
    @leakcheck(failures=["json.loads"])
    def test_it(): client.parse_and_catch()
    """,
    )
    outcome = project.run()
    assert verdicts(project) == {("test_it", "json.loads", 1): "ok"}, outcome.text


def test_the_page_and_junit_name_the_position(project: Project) -> None:
    write(
        project,
        """
    @leakcheck(failures=["os.read"])
    def test_it(): client.read()
    """,
    )
    project.run("--leakcheck-html=page.html", "--junitxml=junit.xml")
    page = (project.folder / "page.html").read_text(encoding="utf-8")
    reads = line_of("the text", CLIENT)
    assert f"os.read raises at call 1 from client.py:{reads} in read()" in " ".join(page.split())
    assert f"if os.read raises at client.py:{reads}" in (project.folder / "junit.xml").read_text(encoding="utf-8")


def test_an_unknown_function_is_refused_before_a_test_runs(project_here: Project) -> None:
    write(project_here, "    @leakcheck(failures=['os.opened'])\n    def test_it(): print('ran')\n")
    outcome = project_here.run_here()
    assert outcome.status == 2
    assert (
        "test_it.py::test_it: leakcheck(failures=['os.opened']): 'os.opened': os has no 'opened'. Did you mean 'open'? Name a"
        in outcome.one_line
    )
    assert "ran" not in outcome.text
    write(project_here, "    @leakcheck\n    def test_it(): print('ran')\n")
    project_here.write("test_other.py", "import pytest\n@pytest.mark.leakcheck\ndef test_other(): print('ran')\n")
    outcome = project_here.run_here("--leakcheck-failures=client.red", "--tb=short")
    assert "leakcheck_failures=client.red (command line): 'client.red': client has no 'red'." in outcome.one_line
    assert "1 error" in outcome.text


def test_nothing_of_it_is_imported_without_the_option(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import sys
        def pytest_unconfigure():
            print("IMPORTED", [one for one in ("failing_paths", "fault_injection") if any(one in name for name in sys.modules)])
        """,
    )
    write(project, "    @leakcheck\n    def test_it(): client.read()\n")
    assert "IMPORTED []" in project.run("-s").text
    assert "IMPORTED ['failing_paths', 'fault_injection']" in project.run("-s", "--leakcheck-failures=os.read").text
