"""Tests that leak or not, each within a moment."""

from __future__ import annotations

import os
import time

import pytest

KEPT: list[int] = []


def _leak() -> None:
    time.sleep(0.01)
    KEPT.append(os.open(__file__, os.O_RDONLY))


def _clean() -> None:
    time.sleep(0.01)
    os.close(os.open(__file__, os.O_RDONLY))


@pytest.mark.fd_budget(0)
@pytest.mark.parametrize("n", range(5))
def test_leaky(n: int) -> None:
    _leak()


@pytest.mark.fd_budget(0)
@pytest.mark.parametrize("n", range(5))
def test_clean(n: int) -> None:
    _clean()


@pytest.mark.fd_budget(0)
@pytest.mark.leakcheck(isolate=True)
def test_leaky_isolated() -> None:
    _leak()


@pytest.mark.fd_budget(0)
@pytest.mark.leakcheck(isolate=True)
def test_clean_isolated() -> None:
    _clean()
