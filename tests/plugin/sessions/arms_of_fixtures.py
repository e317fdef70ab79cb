"""Fixtures that leak as they are set up, or torn down."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

LEAKY = True
KEPT: list[int] = []


@pytest.fixture
def pipeline() -> Iterator[int]:
    file = os.open(__file__, os.O_RDONLY)  # of test_setup LEAK
    yield file
    if LEAKY:
        KEPT.append(file)
    else:
        os.close(file)


@pytest.fixture
def summary() -> Iterator[None]:
    yield
    file = os.open(__file__, os.O_RDONLY)  # of test_teardown LEAK
    if not LEAKY:
        os.close(file)


@pytest.mark.fd_budget(0)
def test_setup(pipeline: int) -> None:
    pass


@pytest.mark.fd_budget(0)
def test_teardown(summary: None) -> None:
    pass
