"""Which installed files belong to the project under test."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.call_paths import is_own
from pytest_leakcheck.attribution.project_packages import belongs_to_project, set_project


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    set_project(Path("/nowhere"), ())
    is_own.cache_clear()


def file_of(name: str) -> str:
    return next(str(one.locate()) for one in distribution(name).files or () if one.suffix == ".py")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", "[project]\nname = 'PSUtil'"),
        ("pyproject.toml", "[tool.poetry]\nname = 'psutil'"),
        ("setup.cfg", "[metadata]\nname = psutil"),
    ],
)
def test_the_files_of_the_distribution_of_that_name(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    set_project(tmp_path, ())
    is_own.cache_clear()
    assert belongs_to_project(file_of("psutil"))
    assert is_own(file_of("psutil"))
    assert not belongs_to_project(file_of("pytest"))


@pytest.mark.parametrize(
    "text", ["", "[project]\nname = 'not-installed'", "[project]\ndynamic = ['name']", "= broken", "\xff"]
)
def test_a_project_of_no_name_has_no_installed_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text.encode("latin-1"))
    (tmp_path / "setup.cfg").write_bytes(text.encode("latin-1"))
    set_project(tmp_path, ("not_installed_either",))
    assert not belongs_to_project(file_of("psutil"))


def test_packages_that_are_named_belong_to_it(tmp_path: Path) -> None:
    set_project(tmp_path, ("psutil",))
    assert belongs_to_project(file_of("psutil"))
