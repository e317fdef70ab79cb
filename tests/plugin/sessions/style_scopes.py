"""Fixtures of each scope."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

COUNTS = dict.fromkeys(["function", "class", "module", "session"], 0)


def counted(scope: Any) -> Any:
    @pytest.fixture(scope=scope, params=["a", "b"], name=f"of_{scope}")
    def fixture(request: pytest.FixtureRequest) -> Iterator[str]:
        COUNTS[scope] += 1
        yield request.param + str(COUNTS[scope])
        assert COUNTS[scope] > 0

    return fixture


of_function, of_class, of_module, of_session = map(counted, COUNTS)


def test_function(of_function: str) -> None:
    assert of_function[0] in "ab"


def test_module(of_module: str) -> None:
    assert of_module in ("a1", "b2")


def test_session(of_session: str) -> None:
    assert of_session in ("a1", "b2")


class TestClass:
    def test_class(self, of_class: str) -> None:
        assert of_class in ("a1", "b2")

    def test_class_again(self, of_class: str) -> None:
        assert of_class in ("a1", "b2")


@pytest.fixture(scope="module")
def list_of_module() -> Iterator[list[int]]:
    kept: list[int] = []
    yield kept
    kept.clear()


@pytest.fixture
def entry(list_of_module: list[int]) -> Iterator[list[int]]:
    list_of_module.append(1)
    yield list_of_module
    list_of_module.pop()


def test_a_function_fixture_over_a_module_fixture(entry: list[int]) -> None:
    assert entry == [1]


@pytest.mark.parametrize("of_function", ["c", "d"], indirect=True)
def test_indirect(of_function: str) -> None:
    assert of_function[0] in "cd"


@pytest.fixture(scope="module", autouse=True)
def cannot_be_set_up_twice(request: pytest.FixtureRequest) -> None:
    assert not hasattr(request.module, "SET_UP")
    request.module.SET_UP = True


def test_of_a_dynamic_fixture(request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue("entry") == [1]


def test_finalizers(request: pytest.FixtureRequest, list_of_module: list[int]) -> None:
    list_of_module.append(2)
    request.addfinalizer(list_of_module.clear)
