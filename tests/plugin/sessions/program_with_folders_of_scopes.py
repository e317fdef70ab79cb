"""Folders of wider scopes, and folders that others have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.leakcheck(iterations=3)


def of_scope(scope: Any) -> type:
    class Test:
        @pytest.fixture(scope=scope)
        def tmp_path(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
            folder: Path = tmp_path_factory.mktemp(scope)
            (folder / "file").touch()
            return folder

        def test_one(self, tmp_path: Path) -> None:
            assert (tmp_path / "file").exists()

        def test_two(self, tmp_path: Path) -> None:
            assert (tmp_path / "file").exists()

    return Test


TestClass, TestModule, TestPackage, TestSession = map(of_scope, ["class", "module", "package", "session"])


@pytest.fixture
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numbered")


MADE: set[Path] = set()


def test_made_by_the_factory(numbered: Path) -> None:
    MADE.add(numbered)


def test_it_stays() -> None:
    assert len(MADE) > 3 and all(one.exists() for one in MADE)


def test_elsewhere(tmpdir: Path, testdir: Path) -> None:
    assert (tmpdir / "file").exists()
