"""Hooks and marks that change items."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def report_after(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    assert request.node.passed_before is True


@pytest.fixture(autouse=True)
def name(request: pytest.FixtureRequest) -> None:
    request.node.passed_before = True


def test_state_of_the_node(report_after: None) -> None:
    pass


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "generated" in metafunc.fixturenames:
        metafunc.parametrize("generated", range(2), scope="module")


def test_generated(generated: int) -> None:
    assert generated in (0, 1)


@pytest.mark.parametrize("one", [1, pytest.param(2, marks=pytest.mark.xfail), pytest.param(3, marks=pytest.mark.skip)])
@pytest.mark.parametrize("two", ["a", "b"], ids=str.upper)
def test_marks_of_parameters(one: int, two: str) -> None:
    assert one == 1
