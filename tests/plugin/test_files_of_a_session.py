"""What a session writes replaces only what is its own, and waits for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from projects import Project
from variants import variants

ALL = ("--leakcheck-scope=all", "--leakcheck-resources=fd")
LEAKY = """
    import os
    KEPT_A, KEPT_B = [], []
    def test_a(): KEPT_A.append(os.open(os.devnull, 0))
    def test_b(): KEPT_B.append(os.open(os.devnull, 0))
"""
KNOWN = {"schema": 1, "known": []}


@pytest.mark.parametrize("option", ["--leakcheck-json", "--leakcheck-html"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("test_it.py", "def test_it(): pass\n"),
        ("pytest.ini", "[pytest]\n"),
        ("notes.md", "# Notes\n"),
        ("leakcheck-baseline.json", json.dumps(KNOWN)),
        ("page.html", '<!doctype html>\n<html lang="en">\n<head>\n<title>of others</title>\n'),
        ("results.xml", "<?xml version='1.0'?>\n"),
    ],
)
def test_a_report_does_not_replace_a_file_of_another_kind(
    project_here: Project, option: str, name: str, text: str
) -> None:
    project_here.write("test_it.py", "def test_it(): pass\n")
    path = project_here.folder / name
    path.write_text(text)
    before = sorted(project_here.folder.rglob("*"))
    refused = project_here.run_here(*ALL, option, name, leakcheck=False)
    assert refused.status == 4
    assert f"{option}={name}" in refused.text
    assert path.read_text() == text
    assert [one for one in sorted(project_here.folder.rglob("*")) if "__pycache__" not in one.parts] == [
        one for one in before if "__pycache__" not in one.parts
    ]


def test_a_page_is_no_report_and_a_report_is_no_page(project: Project) -> None:
    project.write("test_it.py", "def test_it(): pass\n")
    wrote = project.run(*ALL, "--leakcheck-json=a.json", "--leakcheck-html=a.html", leakcheck=False)
    assert wrote.status == 0
    for option in ("--leakcheck-json=a.html", "--leakcheck-html=a.json"):
        assert project.run(*ALL, option, leakcheck=False).status == 4
    # Each is replaced by its own kind.
    again = project.run(*ALL, "--leakcheck-json=a.json", "--leakcheck-html=a.html", leakcheck=False)
    assert again.status == 0, again.text
    assert not [one.name for one in project.folder.iterdir() if one.name.endswith(".tmp")]


@pytest.mark.parametrize(
    "options",
    [
        ("--leakcheck-json=same", "--leakcheck-html=same"),
        ("--leakcheck-json=same", "--junit-xml=same"),
        ("--leakcheck-html=same", "--log-file=same"),
        ("--leakcheck-json=same", "--override-ini=log_file=same"),
        ("--leakcheck-json=same", "--leakcheck-baseline=same", "--leakcheck-update-baseline"),
        ("--leakcheck-json=leakcheck-baseline.json",),
        ("--leakcheck-json=./link", "--leakcheck-html=same"),
    ],
)
def test_two_options_with_one_file_are_refused(project_here: Project, options: tuple[str, ...]) -> None:
    (project_here.folder / "link").symlink_to("same")
    project_here.write("test_it.py", "def test_it(): pass\n")
    refused = project_here.run_here(*ALL, *options, leakcheck=False)
    assert (refused.status, "names the same file; name another one" in refused.text) == (4, True), refused.text


@pytest.mark.parametrize("options", [("--override-ini=log_file=same", "--log-file=other"), ("-p", "no:logging")])
def test_a_file_that_the_session_does_not_write_is_free(project_here: Project, options: tuple[str, ...]) -> None:
    project_here.write("test_it.py", "def test_it(): pass\n")
    ran = project_here.run_here(*ALL, "--leakcheck-json=same", *options, leakcheck=False)
    assert ran.status == 0, ran.text


@pytest.mark.parametrize("option", ["--leakcheck-json", "--leakcheck-html", "--leakcheck-baseline"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "."])
def test_what_is_no_regular_file_is_refused(project_here: Project, option: str, kind: str) -> None:
    os.mkfifo(project_here.folder / "pipe")
    project_here.write("test_it.py", "def test_it(): pass\n")
    refused = project_here.run_here(*ALL, f"{option}={kind}", leakcheck=False)
    assert (refused.status, "not a regular file; name a regular file" in refused.text) == (4, True), refused.text


def test_a_summary_that_is_a_pipe_is_left_alone(project: Project) -> None:
    pipe = project.folder / "pipe"
    os.mkfifo(pipe)
    ran = project.run_test(
        "def test_it(): pass", *ALL, leakcheck=False, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(pipe)
    )
    assert ran.status == 0
    assert "could not write GITHUB_STEP_SUMMARY=" in ran.one_line


def test_what_a_person_writes_during_a_session_stays(project: Project) -> None:
    known = project.folder / "leakcheck-baseline.json"
    project.write("test_it.py", LEAKY)
    assert project.run(*ALL, "--leakcheck-update-baseline", "-k", "test_a").status == 0
    edit = f"""
    import pathlib
    def test_c():
        path = pathlib.Path({str(known)!r})
        path.write_text(path.read_text().replace('"reason": ""', '"reason": "issue 7"').replace('"schema"', '"x": 1, "schema"'))
    """
    project.write("test_it.py", LEAKY + edit)
    ran = project.run(*ALL, "--leakcheck-update-baseline", "-k", "test_b or test_c")
    assert "1 added, 1 unchanged" in ran.one_line
    data = json.loads(known.read_text())
    assert (sorted(one["reason"] for one in data["known"]), data["x"]) == (["", "issue 7"], 1)


def test_an_invalid_edit_during_a_session_is_not_overwritten(project: Project) -> None:
    known = project.write("leakcheck-baseline.json", json.dumps(KNOWN))
    ran = project.run_test(
        f"import pathlib\ndef test_it(): pathlib.Path({str(known)!r}).write_text('<<<<<<< ours')",
        *ALL,
        "--leakcheck-update-baseline",
    )
    assert ran.status == 3
    assert "could not write the file of known leaks: " in ran.one_line
    assert known.read_text() == "<<<<<<< ours"


@pytest.mark.parametrize("workers", variants([()], [("-n", "2")]))
def test_an_update_lists_leaks_that_fail_no_test(project: Project, workers: tuple[str, ...]) -> None:
    ran = project.run_test(LEAKY, *ALL, "--leakcheck-fail-on=none", "--leakcheck-update-baseline", *workers)
    assert (ran.status, "2 added" in ran.one_line) == (0, True), ran.text
    # A budget in the code is no known leak.
    budget = "    import pytest\n    pytestmark = pytest.mark.fd_budget(0)\n"
    project.write("leakcheck-baseline.json", "")
    ran = project.run_test(budget + LEAKY, *ALL, "--leakcheck-fail-on=none", "--leakcheck-update-baseline")
    assert "no leaks" in ran.one_line, ran.text


@pytest.mark.laboratory
def test_eight_sessions_at_once_lose_nothing(project: Project) -> None:
    tests = "".join(f"def test_{n}(): KEPT_{n}.append(os.open(os.devnull, 0))\nKEPT_{n} = []\n" for n in range(8))
    (project.folder / "test_it.py").write_text(f"import os\n{tests}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ALL, "--leakcheck-update-baseline"]
    sessions = [
        subprocess.Popen(
            [*command, f"test_it.py::test_{n}"],
            cwd=project.folder,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "CI": ""},
        )
        for n in range(8)
    ]
    assert [one.wait() for one in sessions] == [0] * 8
    known = json.loads((project.folder / "leakcheck-baseline.json").read_text())["known"]
    assert sorted(one["owner"] for one in known) == [f"test_it.KEPT_{n}" for n in range(8)]
