"""Subtests."""

from __future__ import annotations

import pytest


def test_all_pass(subtests: pytest.Subtests) -> None:
    for number in range(3):
        with subtests.test("number", number=number):
            pass


def test_one_fails(subtests: pytest.Subtests) -> None:
    for number in range(3):
        with subtests.test("number", number=number):
            assert number != 1


def test_fails_after_them(subtests: pytest.Subtests) -> None:
    with subtests.test("first"):
        pass
    assert 0


@pytest.mark.xfail
def test_known(subtests: pytest.Subtests) -> None:
    with subtests.test("first"):
        assert 0
