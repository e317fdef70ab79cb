"""Work without leaks, and the leaks that are planted in it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow  # noqa: F401, ICN001 - what it allocates is read
import pytest

from sized_leaks import Planted

PLANTED: list[Planted] = []
RANDOM = Random(5)
TREE = {str(number): list(range(number)) for number in range(60)}


def planted(*arguments: Any, **more: Any) -> Planted:
    PLANTED.append(Planted(*arguments, **more))
    return PLANTED[-1]


@pytest.fixture(scope="session", autouse=True)
def release() -> Iterator[None]:
    yield
    for one in PLANTED:
        one.release()


def fast() -> None:
    sorted([3, 1, 2])


def busy() -> None:
    json.loads(json.dumps(TREE))
    [bytearray(RANDOM.randrange(600, 5000)) for _ in range(20)]


def slow() -> None:
    time.sleep(0.01)


def slow_and_busy() -> None:
    for _ in range(20):
        busy()
