"""Work that leaks after a while, and pages that no allocator counts."""

from __future__ import annotations

import itertools
import mmap
import os
from typing import Any

import pytest

pytestmark = pytest.mark.leakcheck
KEPT: list[Any] = []
MEMORY = mmap.mmap(-1, 1 << 26)
PAGES, LATE, TWICE = (itertools.count() for _ in range(3))


def slowly_filled(name: str, number: int) -> None:
    # Memory is undecided while this grows, and other resources have long been judged.
    if number < 100:
        KEPT.append([name, [number]])


def test_leaks_after_a_while() -> None:
    number = next(LATE)
    slowly_filled("late", number)
    if number > 30 and number % 2:
        KEPT.append(os.open(__file__, os.O_RDONLY))


def test_opens_two_files_after_a_while() -> None:
    number = next(TWICE)
    slowly_filled("twice", number)
    if number in (7, 60):
        KEPT.append(os.open(__file__, os.O_RDONLY))


@pytest.mark.rss_budget()
def test_touches_a_new_page() -> None:
    at = 4096 * next(PAGES)
    MEMORY[at : at + 4096] = bytes(4096)


@pytest.mark.rss_budget()
def test_touches_one_page() -> None:
    MEMORY[:4096] = bytes(4096)
