"""Tests that put something else in the place of their folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

HERE, COUNT = Path(__file__).parent, [0]
pytestmark = pytest.mark.leakcheck(iterations=3)


def copied() -> Path:
    COUNT[0] += 1
    return shutil.copytree(HERE / "data", HERE / f"copy-{COUNT[0]}")


def test_another_folder(tmp_path: Path) -> None:
    # Made before, or it may get the inode of the other one.
    other = copied()
    tmp_path.rmdir()
    other.rename(tmp_path)


def test_a_link(tmp_path: Path) -> None:
    tmp_path.rmdir()
    tmp_path.symlink_to(copied())


def test_links_inside(tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(HERE / "data")
    (tmp_path / "file").symlink_to(HERE / "data" / "golden.txt")
    os.link(HERE / "data" / "golden.txt", tmp_path / "name")


def test_moved_away(tmp_path: Path) -> None:
    tmp_path.rename(copied() / "kept")


def test_removed_from_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
