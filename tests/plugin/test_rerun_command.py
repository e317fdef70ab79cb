"""The last row of a red report: a command that works in the folder of the user, and is not the one that was just run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from projects import Outcome, Project
from variants import variants

TEST = """
    import os
    import pytest

    KEPT = []

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("name", ["a", "$HOME"])
    def test_leak(name): KEPT.append(os.open(os.devnull, os.O_RDONLY))
"""
ROW = "  next         "


def command_in(outcome: Outcome) -> list[str]:
    """The command after the first red test, as a shell reads it; without one, an empty list."""
    row = next((line for line in outcome.text.splitlines() if line.startswith(ROW)), ROW)
    return shlex.split(row.removeprefix(ROW))


def runs(command: list[str], folder: Path, **environment: str) -> str:
    """What the command prints: it runs this test and no other."""
    assert command[0] == "pytest"
    text = subprocess.run(
        [sys.executable, "-m", *command, "-p", "no:cacheprovider"],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert "1 failed" in text, text
    assert "LeakError: fd +1.0/iter" in text
    return text


@pytest.mark.parametrize("options", variants([()], [("-n", "1"), ("--leakcheck-isolate",)]))
def test_it_measures_this_test_and_is_not_printed_again(project: Project, options: tuple[str, ...]) -> None:
    project.write("tests/test_it.py", TEST)
    node_id = "tests/test_it.py::test_leak[a]"
    command = command_in(project.run(*options, "-k", "a"))
    assert command[-1] == node_id
    assert ("--leakcheck-isolate" in command) == ("--leakcheck-isolate" in options)
    assert command_in(project.run(*options, node_id)) == []
    assert command_in(project.run(*options, f"./tests/../{node_id}", "-v")) == []


def test_a_shell_leaves_it_as_it_is(project: Project) -> None:
    command = command_in(project.run_test(TEST, "-k", "HOME"))
    assert command == ["pytest", "--leakcheck", "test_it.py::test_leak[$HOME]"]
    assert ROW not in runs(command, project.folder)


def test_it_holds_in_the_folder_in_which_pytest_was_started(project: Project) -> None:
    project.write("tests/test_it.py", TEST)
    inner = project.folder / "tests"
    text = subprocess.run(
        [sys.executable, "-m", "pytest", "--leakcheck", "-p", "no:cacheprovider", "-k", "a"],
        cwd=inner,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert f'{ROW}pytest --leakcheck "test_it.py::test_leak[a]"' in text
    runs(["pytest", "--leakcheck", "test_it.py::test_leak[a]"], inner)


@pytest.mark.laboratory
def test_an_installed_package_is_found_by_its_name(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("installed")
    for name, text in (("__init__.py", ""), ("tests/__init__.py", ""), ("tests/test_it.py", TEST)):
        project.write(str(elsewhere / "mypkg" / name), text)
    for selected in ("mypkg", "mypkg.tests.test_it"):
        outcome = project.run("--pyargs", selected, "-k", "a", PYTHONPATH=str(elsewhere))
        assert command_in(outcome)[2:] == ["--pyargs", "mypkg.tests.test_it::test_leak[a]"]
    text = runs(command_in(outcome), project.folder, PYTHONPATH=str(elsewhere))
    assert ROW not in text


def test_if_the_search_had_no_time_it_allows_more(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        from pytest_leakcheck.runner import diagnosis

        class Late(diagnosis.CauseSearch):
            def __init__(self, *arguments, **named):
                *others, _deadline = arguments
                super().__init__(*others, 0.0, **named)

        diagnosis.CauseSearch = Late
        """,
    )
    project.write("test_it.py", TEST)
    node_id = "test_it.py::test_leak[a]"
    outcome = project.run(node_id)
    assert outcome.finding("test_leak[a]")["site"] is None, outcome.text
    assert command_in(outcome) == ["pytest", "--leakcheck", "--leakcheck-max-time=120", node_id]
    # pytest-timeout limits the time: the option would not change it.
    assert command_in(project.run(node_id, "--timeout=20")) == []
