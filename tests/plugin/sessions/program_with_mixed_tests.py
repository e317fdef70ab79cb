"""Tests of each form, some of which leak."""

from __future__ import annotations

import os
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest

KEPT: list[int] = []


def leak() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


pytestmark = pytest.mark.fd_budget(0)


def test_leaks() -> None:
    leak()


def test_closes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("x")


def test_fails() -> None:
    leak()
    assert 0


def test_skips() -> None:
    pytest.skip("not here")


@pytest.mark.xfail
def test_xfails() -> None:
    assert 0


@pytest.mark.parametrize("number", range(2))
def test_cases(number: int) -> None:
    assert number < 1


class TestFixture:
    @pytest.fixture(scope="class")
    def shared(self) -> Iterator[list[int]]:
        yield []

    def test_leaks(self, shared: list[int]) -> None:
        leak()


class TestUnit(unittest.TestCase):
    def test_passes(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                pass

    def test_one_fails(self) -> None:
        for number in range(3):
            with self.subTest(number=number):
                assert number != 1


def test_leaks_in_a_subtest(subtests: pytest.Subtests) -> None:
    with subtests.test("one"):
        pass
    with subtests.test("two"):
        leak()


def test_a_subtest_fails(subtests: pytest.Subtests) -> None:
    with subtests.test("one"):
        assert 0
