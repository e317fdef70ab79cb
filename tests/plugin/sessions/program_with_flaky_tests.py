"""Tests that fail at first."""

from __future__ import annotations

from pathlib import Path

import pytest

KEPT: list[int] = []
RUNS = Path(__file__).with_name("runs")


def attempt(name: str) -> int:
    with RUNS.open("a") as file:
        file.write(f"{name} ")
    return RUNS.read_text().split().count(name)


def test_flaky() -> None:
    assert attempt("flaky") == 3


def test_fails() -> None:
    assert attempt("fails") == 0


@pytest.mark.flaky(reruns=1)
def test_marked_flaky() -> None:
    assert attempt("marked") == 2


@pytest.fixture(scope="module")
def server() -> None:
    assert attempt("server") == 2


def test_set_up(server: None) -> None:
    pass


class TestIt:
    def test_state(self) -> None:
        assert not hasattr(self, "been_here")
        self.been_here = True
        assert attempt("state") == 2


def test_passes() -> None:
    pass


def test_subtests(subtests: pytest.Subtests) -> None:
    with subtests.test():
        assert attempt("subtests") == 0
