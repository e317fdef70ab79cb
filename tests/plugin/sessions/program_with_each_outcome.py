"""Tests that end in each way that a test can."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_leakcheck import LeakError

pytestmark = pytest.mark.fd_budget(0)
KEPT: list[Any] = []


def test_skips() -> None:
    pytest.skip("not here")


@pytest.mark.skipif(True, reason="never here")
def test_skipif() -> None:
    pass


@pytest.mark.xfail(reason="known")
def test_xfail() -> None:
    assert False


@pytest.mark.xfail(raises=LeakError, strict=True)
def test_known_leak() -> None:
    KEPT.append(open(__file__))


def test_fails(record_property: Callable[[str, object], None]) -> None:
    print("said before")
    print("to stderr", file=sys.stderr)
    record_property("answer", 42)
    assert [1, 2] == [1, 3], "my own failure"


def test_subtests(subtests: pytest.Subtests) -> None:
    for number in range(3):
        with subtests.test("number", number=number):
            assert number != 1


@pytest.fixture
def broken() -> None:
    raise ValueError("set-up")


def test_set_up(broken: None) -> None:
    pass


@pytest.fixture
def breaks() -> Iterator[None]:
    yield
    raise ValueError("tear-down")


def test_tear_down(breaks: None) -> None:
    pass


def test_warns() -> None:
    warnings.warn("look out", FutureWarning)


def test_clean() -> None:
    print("all is well")
