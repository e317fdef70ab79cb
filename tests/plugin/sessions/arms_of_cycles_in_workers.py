"""A worker leaves to the collector what it opens, or closes it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.pool import Pool

import pytest

CONTEXT = "fork"
LEAKY = True


class Source:
    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY)  # of the cycle LEAK
        self.itself = self

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1

    __del__ = close


def read(path: str) -> int:
    source = Source(path)
    if not LEAKY:
        source.close()
    # The collector runs after some hundred or thousand new objects.
    return len([[] for _ in range(10_000)])


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with multiprocessing.get_context(CONTEXT).Pool(1) as pool:
        yield pool


@pytest.mark.fd_budget(0)
def test_read(pool: Pool) -> None:
    pool.apply(read, (__file__,))
