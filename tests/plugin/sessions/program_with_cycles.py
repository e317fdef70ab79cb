"""Cycles, with the collector and without."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest


class Cycle:
    def __init__(self) -> None:
        self.me, self.file = self, os.open(__file__, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.file)


@pytest.fixture(scope="class")
def child() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.fd_budget(0)
def test_on() -> None:
    Cycle()


@pytest.mark.fd_budget(0)
class TestOff:
    @pytest.fixture(scope="class", autouse=True)
    def off(self) -> Iterator[None]:
        gc.disable()
        yield
        gc.enable()
        gc.collect()

    def test_off(self) -> None:
        Cycle()

    def test_off_beside_a_child(self, child: None) -> None:
        Cycle()


@pytest.mark.fd_budget(0, unclosed="allow")
def test_allowed() -> None:
    Cycle()


@pytest.mark.fd_budget(0, unclosed="warn")
def test_warned() -> None:
    Cycle()


@pytest.mark.leakcheck
def test_by_default() -> None:
    Cycle()


def test_left_as_it_was() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert gc.callbacks == []
