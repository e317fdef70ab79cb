"""Put the ceiling of a repeated test (a set of limits) into force during its set-up, call and tear-down.

Between these phases, pytest makes reports and the counters are read, and neither may fail in place of the test.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import pytest

from pytest_leakcheck.plugin.stash import REPEATING

_Returned = TypeVar("_Returned")


class LimitedPhases:
    """The hooks around the phases; registered in the subprocess of an isolated test, where each ceiling is set."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, _Returned, _Returned]:
        __tracebackhide__ = True
        with _ceiling_of(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, _Returned, _Returned]:
        __tracebackhide__ = True
        with _ceiling_of(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, _Returned, _Returned]:
        __tracebackhide__ = True
        with _ceiling_of(item):
            return (yield)


def _ceiling_of(item: pytest.Item) -> AbstractContextManager[None]:
    return item.stash[REPEATING].repetition.ceiling if REPEATING in item.stash else nullcontext()
