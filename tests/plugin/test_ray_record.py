"""A judged session has Ray record where references are created, if Ray is installed and the user has not decided."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from projects import Project

NAME = "RAY_record_ref_creation_sites"
SHOW = f"import os\ndef test_it(): print('recorded:', os.environ.get({NAME!r}))"
OPTIONS = ("-o", "pythonpath=.", "-s")


@pytest.mark.parametrize(("option", "said"), [("--leakcheck-scope=all", "1"), ("-q", "None")])
def test_ray_records_in_a_judged_session(project: Project, option: str, said: str) -> None:
    project.write("ray/__init__.py", "")
    project.write("test_a.py", SHOW)
    assert f"recorded: {said}" in project.run(*OPTIONS, option, leakcheck=False).text


def test_what_the_user_has_set_stays(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "0")
    project.write("ray/__init__.py", "")
    project.write("test_a.py", SHOW)
    assert "recorded: 0" in project.run(*OPTIONS).text


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_nothing_is_set(project: Project) -> None:
    # A folder of this name is no package.
    project.write("ray/test_a.py", SHOW)
    assert "recorded: None" in project.run(*OPTIONS).text
