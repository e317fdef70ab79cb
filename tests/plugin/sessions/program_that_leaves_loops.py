"""Loops that are left early."""

from __future__ import annotations

import os

import pytest

from pytest_leakcheck import Leakcheck

KEPT: list[int] = []


def test_break(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        if step == 5:
            break
    for step in leakcheck.steps(thread=0):
        pass


def test_return(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        if step == 5:
            return


def test_exception(leakcheck: Leakcheck) -> None:
    with pytest.raises(ValueError):
        for step in leakcheck.steps(fd=0):
            raise ValueError


def test_suspended(leakcheck: Leakcheck) -> None:
    steps = leakcheck.steps(fd=0)
    for _ in range(6):
        next(steps)


def test_never_begun(leakcheck: Leakcheck) -> None:
    leakcheck.steps(fd=0)


def test_to_the_end(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        pass


def test_after_the_leak_is_known(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        KEPT.append(os.open(__file__, os.O_RDONLY))
        if step == 21:
            break
