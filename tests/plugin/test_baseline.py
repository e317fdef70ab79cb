"""The file of known leaks: written once, it lets a suite pass until a leak is added, grows, or is fixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from projects import Outcome, Project

LIBRARY = """
    import os

    FILES, ROWS, CACHE = [], [], []

    def open_file(times):
        FILES.extend(os.open(__file__, os.O_RDONLY) for _ in range(times))

    def add_row(): ROWS.append([])
"""
SUITE = """
    import pytest
    from library import add_row, open_file

    TIMES = {times}

    def test_opens(): open_file(TIMES)

    @pytest.mark.parametrize("case", range(3))
    def test_opens_too(case): open_file(TIMES)

    def test_adds(): add_row()

    def test_clean(): pass
"""
ALL = ("--leakcheck-scope=all", "--leakcheck-min-time=0")
UPDATE = (*ALL, "--leakcheck-update-baseline")


@pytest.fixture
def suite(project: Project) -> Project:
    project.write("library.py", LIBRARY)
    project.write("test_it.py", SUITE.format(times=1))
    return project


def baseline_of(project: Project) -> Path:
    return project.folder / "leakcheck-baseline.json"


def entries(project: Project) -> list[dict[str, Any]]:
    data = json.loads(baseline_of(project).read_text(encoding="utf-8"))
    assert data["schema"] == 1
    known: list[dict[str, Any]] = data["known"]
    return known


def red(ran: Outcome) -> set[str]:
    return {one["test"].rpartition("::")[2] for one in ran.findings if one["colour"] == "red"}


def test_the_leaks_of_a_suite_are_written_once_and_known_from_then_on(suite: Project) -> None:
    written = suite.run(*UPDATE)
    assert written.status == 0, written.text
    assert "leakcheck-baseline.json: 2 added\n" in written.text
    files, rows = sorted(entries(suite), key=lambda one: str(one["resource"]))
    assert (files["resource"], files["rate"], files["owner"], files["verdict"]) == ("fd", 1.0, "library.FILES", "leak")
    assert files["tests"] == ["test_it.py::test_opens", *(f"test_it.py::test_opens_too[{n}]" for n in range(3))]
    assert (rows["resource"], rows["owner"], rows["tests"]) == ("object", "library.ROWS", ["test_it.py::test_adds"])
    assert (files["reason"], files["link"], files["expires"]) == ("", "", "")
    # What people write stays, and nothing else changes.
    text = baseline_of(suite).read_text(encoding="utf-8").replace('"reason": ""', '"reason": "issue 7"', 1)
    baseline_of(suite).write_text(text, encoding="utf-8")
    assert "leakcheck-baseline.json: 2 unchanged\n" in suite.run(*UPDATE, "-n", "2").text
    assert baseline_of(suite).read_text(encoding="utf-8") == text
    known = suite.run(*ALL)
    assert known.status == 0
    assert known.last_line == "6 passed"
    assert "\n6 tests: 1 ok · 5 known (2 causes) · " in known.text
    assert "known: fd +1.0/iter — library.py:6 " in known.text
    # A test with a mark is judged at its turn, which shows that its leak is known.
    marked = SUITE.replace("def test_adds", "@pytest.mark.leakcheck\n    def test_adds").format(times=1)
    suite.write("test_it.py", marked)
    assert "KNOWN" in suite.run(*ALL, "-v", "-k", "test_adds").text
    # Without the file they are leaks.
    assert suite.run(*ALL, "--leakcheck-no-baseline").last_line == "5 failed, 5 passed"


def test_what_everybody_adds_to_hides_no_new_leak(project: Project) -> None:
    project.write("test_old.py", "import atexit\ndef test_old(): atexit.register(len, [])\n")
    project.write("test_new.py", "import atexit\ndef test_new(): atexit.register(dict, path='b', more=[])\n")
    # As earlier versions wrote it.
    names = {"finding": "ad6b6f-object-atexit", "resource": "object", "verdict": "leak", "owner": "atexit", "site": ""}
    known = {**names, "rate": 2.0, "tests": ["test_old.py::test_old"], "seen": "2026-11-20"}
    baseline_of(project).write_text(json.dumps({"schema": 1, "known": [known]}), encoding="utf-8")
    ran = project.run(*ALL)
    assert red(ran) == {"test_new"}
    assert (
        "json: ad6b6f: an earlier version told fewer causes apart: update with --leakcheck-update-baseline" in ran.text
    )


@pytest.mark.laboratory
def test_a_leak_that_is_new_or_has_grown_is_red(suite: Project) -> None:
    suite.run(*UPDATE)
    suite.write(
        "test_it.py", SUITE.format(times=2) + "\n    def test_new(): library.CACHE.append([])\n    import library\n"
    )
    ran = suite.run(*ALL)
    assert red(ran) == {"test_opens", "test_opens_too[0]", "test_opens_too[1]", "test_opens_too[2]", "test_new"}
    assert "known leak: was +1.0/iter, is +2.0/iter" in ran.one_line
    assert ran.last_line == "5 failed, 7 passed"
    assert "leakcheck-baseline.json: 1 added, 1 changed, 1 unchanged\n" in suite.run(*UPDATE).text
    assert {one["rate"] for one in entries(suite)} == {1.0, 2.0}
    assert suite.run(*ALL).status == 0


@pytest.mark.laboratory
def test_a_leak_that_is_fixed_is_said_and_dropped_by_the_next_update(suite: Project) -> None:
    suite.run(*UPDATE)
    suite.write("library.py", LIBRARY.replace("ROWS.append([])", "pass"))
    # Only a run that judges all tests of an entry can tell.
    assert "fixed: " not in suite.run(*ALL, "-k", "test_opens or test_clean").text
    ran = suite.run(*ALL)
    assert ran.status == 0
    assert "fixed: library.ROWS: remove " in ran.text
    assert suite.run(*ALL, "--leakcheck-baseline-strict").status == 1
    assert "leakcheck-baseline.json: 1 fixed, 1 unchanged\n" in suite.run(*UPDATE).text
    assert [one["resource"] for one in entries(suite)] == ["fd"]


@pytest.mark.laboratory
def test_part_of_a_suite_never_takes_an_entry_away(suite: Project) -> None:
    suite.run(*UPDATE)
    before = baseline_of(suite).read_text(encoding="utf-8")
    suite.write("library.py", LIBRARY.replace("ROWS.append([])", "pass"))
    suite.write("test_it.py", SUITE.format(times=1).replace("test_opens(): open_file(TIMES)", "test_opens(): assert 0"))
    stopped = suite.run(*UPDATE, "-x")
    assert stopped.status != 0
    assert baseline_of(suite).read_text(encoding="utf-8") == before
    assert "unchanged" in suite.run(*UPDATE, "-k", "test_clean").text
    assert baseline_of(suite).read_text(encoding="utf-8") == before


@pytest.mark.laboratory
def test_tests_that_are_gone_are_pruned(suite: Project) -> None:
    suite.run(*UPDATE)
    suite.write("test_it.py", SUITE.format(times=1).replace("def test_adds", "def test_renamed"))
    assert "unchanged" in suite.run(*UPDATE).text
    assert len(entries(suite)) == 2
    prune = (*ALL, "--leakcheck-prune-baseline")
    refused = suite.run(*prune, "-k", "opens")
    assert refused.status == 4
    assert "--leakcheck-prune-baseline needs the whole suite, but -k selects a part of it" in refused.text
    assert suite.run(*prune).status == 0
    assert {test for one in entries(suite) for test in one["tests"]} >= {"test_it.py::test_renamed"}
    assert "test_it.py::test_adds" not in {test for one in entries(suite) for test in one["tests"]}


@pytest.mark.parametrize("option", ["--ignore=test_other.py", "--ignore-glob=*other*", "--stepwise"])
def test_no_part_of_a_suite_is_pruned(project: Project, option: str) -> None:
    project.write("test_it.py", "def test_it(): pass\n")
    refused = project.run("--leakcheck-prune-baseline", option, cache=True)
    assert refused.status == 4
    told = f"--leakcheck-prune-baseline needs the whole suite, but {option.partition('=')[0]} selects a part of it"
    assert told in refused.text


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["", "xdist"])
def test_what_a_conftest_deselects_is_not_pruned(project: Project, workers: tuple[str, ...]) -> None:
    project.write("test_it.py", "def test_kept(): pass\ndef test_left_out(): pass\n")
    entry = {"resource": "fd", "verdict": "leak", "rate": 1.0, "site": "", "seen": "2026-11-20"}
    known = [
        entry | {"finding": f"ad6b6f-{name}", "owner": name, "tests": [f"test_it.py::test_{name}"]}
        for name in ("gone", "left_out")
    ]
    text = json.dumps({"schema": 1, "known": known})
    conftest = "def pytest_collection_modifyitems(config, items): {}"
    # By pytest's hook, and without it.
    for deselects in ("config.hook.pytest_deselected(items=[items.pop()])", "del items[1:]", ""):
        project.write("conftest.py", conftest.format(deselects) if deselects else "")
        baseline_of(project).write_text(text, encoding="utf-8")
        ran = project.run("--leakcheck-prune-baseline", *workers)
        assert ran.status == 0, ran.text
        names = ["gone", "left_out"] if deselects else ["left_out"]
        assert [one["owner"] for one in entries(project)] == names
        assert ("nothing was pruned, because not all tests have run" in ran.one_line) == bool(deselects), ran.text


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["", "xdist"])
def test_what_could_not_be_collected_is_not_pruned(project: Project, workers: tuple[str, ...]) -> None:
    test, parameter = "def test_it(): pass\n", "@pytest.mark.parametrize('missing', [1])"
    files = {
        "test_is_run": test,
        "test_is_skipped": f"import pytest\npytest.skip('here', allow_module_level=True)\n{test}",
        "test_needs": f"import pytest\npytest.importorskip('no_such_module')\n{test}",
        "test_is_broken": f"import no_such_module\n{test}",
        "test_is_ignored": test,
        "test_of_class": f"import pytest\n{test}class TestIt:\n    {parameter}\n    def test_it(self): pass\n",
    }
    for name, text in files.items():
        project.write(f"{name}.py", text)
    project.write("conftest.py", "collect_ignore_glob = ['*ignored.py']")
    project.write("test_may_be_ignored.py", test)
    kept = [
        *(f"{name}.py::test_it" for name in files),
        "test_may_be_ignored.py::*",
        "test_of_class.py::TestIt::test_it",
    ]
    gone = [
        "test_is_run.py::test_gone",
        "test_is_gone.py::test_it",
        "test_has_gone.py::*",
        "test_of_class.py::test_gone",
    ]
    entry = {"finding": "a-fd", "resource": "fd", "verdict": "leak", "rate": 1.0, "owner": "FILES", "site": ""}
    text = json.dumps({"schema": 1, "known": [{**entry, "seen": "2026-11-20", "tests": kept + gone}]})
    baseline_of(project).write_text(text, encoding="utf-8")
    ran = project.run("--leakcheck-prune-baseline", "--continue-on-collection-errors", *workers)
    assert "2 errors" in ran.last_line, ran.text
    assert entries(project)[0]["tests"] == sorted(kept), ran.text


def test_a_whole_file_is_fixed_only_if_each_of_its_tests_was_judged(project: Project) -> None:
    project.write(
        "test_it.py", "import pytest\n@pytest.mark.parametrize('number', range(3))\ndef test_it(number): pass\n"
    )
    entry = {"finding": "ad6b6f-fd", "resource": "fd", "verdict": "leak", "rate": 1.0, "owner": "FILES", "site": ""}
    known = {**entry, "tests": ["test_it.py::*"], "seen": "2026-11-20", "reason": "issue 7"}
    baseline_of(project).write_text(json.dumps({"schema": 1, "known": [known]}), encoding="utf-8")
    assert "json: 1 unchanged\n" in project.run(*UPDATE, "--leakcheck-cases=one").text
    assert [one["reason"] for one in entries(project)] == ["issue 7"]
    assert "json: 1 fixed\n" in project.run(*UPDATE).text
    assert entries(project) == []


def test_an_explicit_budget_is_not_taken_back(project: Project) -> None:
    ran = project.run_test(
        """
        import os, pytest
        KEPT = []
        @pytest.mark.fd_budget(0)
        def test_it(): KEPT.append(os.open(__file__, os.O_RDONLY))
        """,
        *UPDATE,
    )
    assert ran.status == 1
    assert entries(project) == []


def test_wrong_use_is_an_error_and_harms_no_file(project_here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = project_here
    suite.write("library.py", LIBRARY)
    suite.write("test_it.py", SUITE.format(times=1))
    with monkeypatch.context() as patched:
        patched.setenv("CI", "1")
        refused = suite.run_here(*UPDATE)
    assert refused.status == 4
    assert "--leakcheck-update-baseline: CI is set, and a file that is written in CI hides new leaks" in refused.text
    assert not baseline_of(suite).exists()
    assert suite.run(*UPDATE, "--leakcheck-force-update", "-k", "opens", CI="1").status == 0
    missing = suite.run_here(*ALL, "--leakcheck-baseline=nowhere.json")
    assert (missing.status, "nowhere.json (command line): the file does not exist" in missing.text) == (4, True)
    good = baseline_of(suite).read_text(encoding="utf-8")
    for text, told in (
        ("{", "not JSON"),
        (good.replace('"schema": 1', '"schema": 9'), "schema 9 is not 1"),
        (good.replace('"expires": ""', '"expires": "soon"', 1), "'soon' is not a date: write 2027-01-31"),
        (good.replace('"rate": 1.0', '"rate": "1"', 1), ".rate: expected float, got '1'"),
    ):
        baseline_of(suite).write_text(text, encoding="utf-8")
        ran = suite.run_here(*UPDATE)
        assert (ran.status, told in ran.text) == (4, True), ran.text
        assert baseline_of(suite).read_text(encoding="utf-8") == text


@pytest.mark.laboratory
def test_an_entry_that_has_expired_or_is_for_another_platform_counts_no_more(suite: Project) -> None:
    suite.run(*UPDATE)
    good = baseline_of(suite).read_text(encoding="utf-8")
    baseline_of(suite).write_text(good.replace('"expires": ""', '"expires": "2020-01-31"'), encoding="utf-8")
    ran = suite.run(*ALL, "-k", "test_adds")
    assert ran.last_line == "1 failed, 1 passed, 5 deselected"
    assert "known leak: expired on 2020-01-31" in ran.one_line
    for only in ('{"platform": "win32"}', '{"python": "<3.10"}'):
        baseline_of(suite).write_text(good.replace('"link": ""', f'"link": "", "only": {only}'), encoding="utf-8")
        assert suite.run(*ALL, "-k", "test_adds").last_line == "1 failed, 5 deselected"


@pytest.mark.laboratory
def test_a_session_that_is_killed_leaves_the_file_as_it_was(suite: Project) -> None:
    suite.run(*UPDATE)
    before = baseline_of(suite).read_bytes()
    suite.write("test_dies.py", "import os, signal\ndef test_dies(): os.kill(os.getpid(), signal.SIGKILL)\n")
    assert suite.run(*UPDATE).status < 0
    suite.write("test_dies.py", "def test_dies(): raise KeyboardInterrupt\n")
    suite.write("library.py", LIBRARY.replace("ROWS.append([])", "pass"))
    assert suite.run(*UPDATE).status == 2
    assert baseline_of(suite).read_bytes() == before
    assert not list(suite.folder.glob("*leakcheck-baseline*tmp*"))
