"""encodings: a cache keeps the name of each unknown encoding that was looked up."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1", "python==3.13.0", "python==3.14.0")

NUMBERS = count()


def look_up(name: str) -> None:
    # With a dot, no module of that name is imported: pytest would keep its name as well.
    with suppress(LookupError):
        b"x".decode(f"unknown.{name}")


@pytest.mark.leakcheck
def test_leaky() -> None:
    for _ in range(10):
        look_up(str(next(NUMBERS)))


@pytest.mark.leakcheck
def test_control() -> None:
    look_up("name")
