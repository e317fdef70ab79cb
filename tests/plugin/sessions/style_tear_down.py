"""Fixtures that fail as they are torn down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def checks() -> Iterator[dict[str, bool]]:
    state: dict[str, bool] = {}
    yield state
    assert state["done"]


def test_asserts_in_tear_down(checks: dict[str, bool]) -> None:
    checks["done"] = True


def test_fails_in_tear_down(checks: dict[str, bool]) -> None:
    checks["done"] = False


@pytest.fixture(scope="module")
def fails_at_the_end() -> Iterator[None]:
    yield
    raise ValueError("at the end of the module")


def test_passes(fails_at_the_end: None) -> None:
    pass


def test_last(fails_at_the_end: None) -> None:
    pass


@pytest.fixture(scope="class")
def skips_the_class() -> None:
    pytest.skip("by a fixture of the class")


@pytest.mark.usefixtures("skips_the_class")
class TestSkipped:
    def test_one(self) -> None:
        pass

    def test_two(self) -> None:
        pass
