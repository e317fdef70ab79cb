"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from projects import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A user's project, still empty."""
    return Project(tmp_path)
