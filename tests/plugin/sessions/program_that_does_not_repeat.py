"""Tests that pass at first, and fail when they are repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

KEPT: list[int] = []


def leak() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


def count(name: str) -> int:
    with Path(name).open("a") as file:
        file.write("x")
    return Path(name).stat().st_size


@pytest.fixture(scope="module", autouse=True)
def outer() -> Iterator[None]:
    yield
    print("MODULE TORN DOWN")


@pytest.mark.fd_budget(0)
def test_counter() -> None:
    print("PRINTED IN ITERATION", count("counter"))
    KEPT.append(1)
    assert len(KEPT) < 8, "eighth time"


@pytest.mark.leakcheck
@pytest.mark.parametrize("lines", [iter([b"one", b"two"])])
def test_generator(lines: Iterator[bytes]) -> None:
    count("generator")
    assert list(lines) == [b"one", b"two"]


@pytest.mark.fd_budget(0)
def test_skips_later() -> None:
    if count("skips") > 4:
        pytest.skip("used up")


@pytest.mark.fd_budget(0)
@pytest.mark.xfail
def test_not_expected_to_pass() -> None:
    assert count("xfail") < 3


@pytest.fixture
def used_up() -> None:
    assert count("fixture") < 3, "used up"


@pytest.mark.fd_budget(0)
def test_set_up(used_up: None) -> None:
    count("set_up")


@pytest.mark.fd_budget(0)
def test_subtests(subtests: pytest.Subtests) -> None:
    count("subtests")
    with subtests.test("counted"):
        assert runs() < 3


def runs() -> int:
    return Path("subtests").stat().st_size
