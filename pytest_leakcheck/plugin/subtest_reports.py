"""Keep the reports of subtests from other plugins while a test is repeated.

A subtest logs its report itself, as soon as it ends. Every plugin that receives it counts it: the JUnit file lists the
subtest again, and a subtest that fails in a later iteration ends the session with ``-x``, or with exit status 1.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pluggy
import pytest


class _SilentHooks:
    """The hooks of an item, except that a logged report is only kept."""

    __slots__ = ("_hooks", "pytest_runtest_logreport")

    def __init__(self, hooks: pluggy.HookRelay, keep: Callable[..., None]) -> None:
        self._hooks = hooks
        self.pytest_runtest_logreport = keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)


@contextlib.contextmanager
def kept_apart(session: pytest.Session) -> Iterator[list[pytest.TestReport]]:
    """Yield a list that collects the reports that tests log, instead of logging them.

    pytest has no option for this, but items take their hooks from `Session.gethookproxy`, which this function replaces.
    """
    of_session = session.gethookproxy
    reports: list[pytest.TestReport] = []

    def keep(*, report: pytest.TestReport) -> None:
        reports.append(report)

    def silent(fspath: os.PathLike[str]) -> _SilentHooks:
        return _SilentHooks(of_session(fspath), keep)

    session.gethookproxy = silent  # type: ignore[method-assign,assignment]
    try:
        yield reports
    finally:
        del session.gethookproxy
