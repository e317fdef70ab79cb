"""Tests that leave files in temporary folders of each scope."""

from __future__ import annotations

import os
import tempfile
from itertools import count
from pathlib import Path

import pytest

NUMBERS = count()
IMPORTED = tempfile.mkdtemp()


@pytest.fixture(scope="module")
def folder() -> str:
    return tempfile.mkdtemp()


def leave(*folder: str) -> None:
    path = os.path.join(*folder, "below")
    os.makedirs(path, exist_ok=True)
    # Python raises no audit event for it.
    os.mkfifo(f"{path}/{next(NUMBERS)}")


@pytest.mark.disk_budget
def test_imported() -> None:
    leave(IMPORTED)


@pytest.mark.leakcheck(resources=("disk",))
def test_of_fixture(folder: str) -> None:
    leave(folder)


@pytest.mark.disk_budget
def test_below() -> None:
    with open("where", "a") as where:
        where.write(tempfile.gettempdir() + "\n")
    leave(tempfile.gettempdir())


@pytest.mark.disk_budget(0)
def test_of_pytest(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tmp_path / "file").touch()
    # pytest removes it at the end.
    tmp_path_factory.mktemp("made")
