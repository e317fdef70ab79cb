"""Tests that check where their temporary folders are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pytest_leakcheck import Leakcheck

NAMES = ("TMPDIR", "TEMP", "TMP", "PYTEST_DEBUG_TEMPROOT")
BEFORE = [one in os.environ for one in NAMES if one != "TMPDIR"]


def check(tmp_path: Path, factory: pytest.TempPathFactory) -> None:
    assert tmp_path.is_relative_to(tempfile.gettempdir())
    assert tmp_path.parent == factory.getbasetemp()
    assert [one in os.environ for one in NAMES if one != "TMPDIR"] == BEFORE
    assert all(os.environ[one] == tempfile.gettempdir() for one in NAMES[:3] if one in os.environ)
    (tmp_path / "file").write_text("kept")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.mark.leakcheck(iterations=5)
def test_marked(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, made: Path) -> None:
    check(tmp_path, tmp_path_factory)
    assert made.is_relative_to(tempfile.gettempdir().partition("/leakcheck-")[0])


def test_fixture(leakcheck: Leakcheck, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(tmp_path, tmp_path_factory)
    for _ in leakcheck.steps(100, fd=0):
        pass


def test_unmarked(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, made: Path) -> None:
    check(tmp_path, tmp_path_factory)
    assert made.is_dir()
