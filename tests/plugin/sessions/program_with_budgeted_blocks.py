"""Blocks with a budget: leaky, within it, fixed, unclosed, and one that fails."""

from __future__ import annotations

import os

from pytest_leakcheck import Leakcheck

KEPT: list[int] = []


def test_leaky(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=0, rss="64 MiB"):
        KEPT.append(os.open(__file__, os.O_RDONLY))


def test_within(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=1):
        KEPT.append(os.open(__file__, os.O_RDONLY))


def test_fixed(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=0, rss="64 MiB"):
        os.close(os.open(__file__, os.O_RDONLY))


class Cycle:
    def __init__(self) -> None:
        self.me, self.file = self, os.open(__file__, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.file)


def test_unclosed(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=0):
        Cycle()


def test_own_failure(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=0):
        KEPT.append(os.open(__file__, os.O_RDONLY))
        raise ValueError("mine")
