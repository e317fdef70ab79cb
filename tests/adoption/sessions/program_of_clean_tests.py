"""Tests without a leak."""

from __future__ import annotations

import time
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("number", range(200))
def test_sorted(number: int, tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text(str(number))
    assert sorted(range(number, -1, -1))[0] == 0


@pytest.mark.parametrize("number", range(20))
class TestShared:
    @pytest.fixture(scope="class")
    def shared(self) -> dict[str, int]:
        return {}

    def test_it(self, number: int, shared: dict[str, int]) -> None:
        shared["last"] = number


@pytest.mark.parametrize("number", range(5))
def test_slow(number: int) -> None:
    time.sleep(0.05)


class TestProperties:
    @settings(max_examples=5, deadline=None)
    @given(st.integers())
    def test_of_one_class(self, number: int) -> None:
        assert number == int(str(number))


class TestOtherProperties:
    @settings(max_examples=5, deadline=None)
    @given(st.text())
    def test_of_another(self, text: str) -> None:
        assert text == "".join(text)


class TestUnit(unittest.TestCase):
    def setUp(self) -> None:
        self.numbers = [1]

    def test_unit(self) -> None:
        self.assertEqual(self.numbers, [1])

    @unittest.skip("not here")
    def test_left_out(self) -> None:
        raise AssertionError


@pytest.mark.parametrize("numbers", [iter([1, 2]), iter([1]), (n for n in (1, 2, 3))])
def test_used_up(numbers: Iterator[int]) -> None:
    assert next(numbers) == 1


def test_only_once(runs: list[int] = []) -> None:
    runs.append(1)
    assert len(runs) == 1


RUNS: list[int] = []


def test_only_four_times() -> None:
    RUNS.append(1)
    assert len(RUNS) < 5


@pytest.mark.parametrize("number", range(3))
def test_skips(number: int) -> None:
    pytest.skip("not on this machine")


@pytest.mark.parametrize("number", range(3))
def test_fails(number: int) -> None:
    assert number < 0


@pytest.mark.xfail(reason="known defect", strict=True)
def test_xfails() -> None:
    assert 0


@pytest.mark.parametrize("number", range(5))
def test_module_state(number: int, numbers: set[int] = set()) -> None:
    numbers.add(number)
