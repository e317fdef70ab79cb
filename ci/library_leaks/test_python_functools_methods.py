"""functools: each object whose ``singledispatchmethod`` was called stays, because the cache of its methods refers to it."""

from __future__ import annotations

from functools import singledispatchmethod

import pytest

RELEASES = ("python==3.13.0",)


class Shape:
    """Its method ``scale`` is chosen by the type of its argument."""

    @singledispatchmethod
    def scale(self, factor: object) -> str:
        return str(factor)

    def plain(self, factor: object) -> str:
        return str(factor)


@pytest.mark.leakcheck
def test_leaky() -> None:
    Shape().scale(2)


@pytest.mark.leakcheck
def test_control() -> None:
    Shape().plain(2)


KEPT: list[Shape] = []


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(Shape())
    KEPT[-1].plain(2)
