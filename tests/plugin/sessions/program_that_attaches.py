"""Tests that attach texts to the report of allure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import allure
import pytest

KEPT: list[int] = []


@pytest.fixture
def page() -> Iterator[None]:
    allure.attach("opened", name="page")
    yield
    print("closed")


@pytest.mark.parametrize("n", [1])
@pytest.mark.object_budget(0)
def test_clean(n: int, page: None) -> None:
    print("hello")
    allure.dynamic.tag("quick")  # type: ignore[no-untyped-call]
    with allure.step("look"):
        allure.attach("seen", name="picture")


@pytest.mark.fd_budget(0)
def test_fails() -> None:
    allure.attach("seen", name="picture")
    assert 0


@pytest.mark.fd_budget(0)
def test_leaks() -> None:
    allure.attach("seen", name="picture")
    KEPT.append(os.open(os.devnull, os.O_RDONLY))
