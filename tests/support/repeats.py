"""Repeating a function under a plan, and things for it to keep."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.runner.repetition import Repetition

Work = Callable[[], object]


class Clock:
    """Time that passes only as a test says: what the measuring and other processes take of it is not asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: self.now)

    def take(self, seconds: float) -> None:
        self.now += seconds


def repeat(work: Work, *budgets: Budget, gauges: dict[str, Callable[[], int]] | None = None, **effort: Any) -> Result:
    repetition = Repetition(Plan("test_a.py::test_b", budgets, Effort(**{"min_time": 0, **effort})), gauges)
    repetition.begin()
    try:
        work()
        while repetition.iteration_done():
            work()
    except OSError as error:
        return repetition.end("failed", error)
    return repetition.end()


def verdict_on(work: Work, *budgets: Budget, **effort: Any) -> Verdict:
    (verdict,) = repeat(work, *budgets, **effort).verdicts
    return verdict


def open_null() -> int:
    return os.open("/dev/null", os.O_RDONLY)


@contextlib.contextmanager
def descriptors() -> Iterator[list[int]]:
    kept: list[int] = []
    try:
        yield kept
    finally:
        for descriptor in kept:
            os.close(descriptor)


class Owner:
    """Holds a descriptor, and unless it is fixed also itself."""

    def __init__(self, *, cyclic: bool = True) -> None:
        self.itself = self if cyclic else None
        self.descriptor = open_null()

    def __del__(self) -> None:
        os.close(self.descriptor)
