"""Tests that fail, skip or end at the second size."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

pytestmark = pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")


def is_second(n: int) -> bool:
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} ")
    print("size", n)
    return n == 2


def test_raises(n: int) -> None:
    if is_second(n):
        raise ValueError("broken at two")


def test_skips(n: int) -> None:
    if is_second(n):
        pytest.skip("no such size")


def test_killed(n: int) -> None:
    if is_second(n):
        os.kill(os.getpid(), 9)


def test_exits(n: int) -> None:
    if is_second(n):
        os._exit(0)


def test_killed_beside_a_child(n: int) -> None:
    if is_second(n):
        ready, told = os.pipe()
        child: Any = os.fork() or (os.write(told, b"x"), time.sleep(60))  # type: ignore[func-returns-value]
        os.read(ready, 1)
        os.kill(child, 15)
        os.waitpid(child, 0)
        os.kill(os.getpid(), 9)


def test_keeps_its_law(n: int) -> None:
    is_second(n)
