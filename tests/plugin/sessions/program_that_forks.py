"""Tests that fork, and come back in both processes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest


def begin(name: str) -> None:
    path = Path(name)
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size > 60:
        os._exit(9)


def fork() -> int:
    # Python 3.12 and later warn of a fork beside threads, such as that of pytest-rerunfailures.
    with warnings.catch_warnings(action="ignore"):
        child = os.fork()
    if child:
        os.waitpid(child, 0)
    return child


pytestmark = [pytest.mark.fd_budget(0), pytest.mark.leakcheck(iterations=13, warmup=1, resources=["fd"])]


@pytest.fixture
def undone() -> Iterator[None]:
    yield
    with Path("undone").open("a") as file:
        file.write("x")


def test_returns(undone: None) -> None:
    begin("returns")
    fork()


def test_exits() -> None:
    begin("exits")
    if not fork():
        sys.exit()


def test_raises() -> None:
    begin("raises")
    if not fork():
        raise ValueError("in the child")


def test_interrupted() -> None:
    begin("interrupted")
    if not fork():
        raise KeyboardInterrupt


@pytest.fixture
def forking() -> None:
    fork()


def test_in_set_up(forking: None) -> None:
    begin("set_up")


def test_waited_for() -> None:
    begin("waited")
    if not fork():
        os._exit(0)


def test_after() -> None:
    begin("after")
