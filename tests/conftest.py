"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from projects import Project
from pytest_leakcheck import panel


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A user's project, still empty."""
    return Project(tmp_path)


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, descriptors that are kept on purpose need not be waited for; the waiting is tested with threads."""
    monkeypatch.setattr(panel, "_SETTLE_DESCRIPTORS", 0.002)
