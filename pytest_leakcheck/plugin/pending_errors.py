"""Keep pytest's pending errors, in ``__del__`` and in threads, apart from those of repeated runs.

pytest queues both, and reports them in a later phase or at the end of the session. Those of the
session's own runs must reach it. Those of repeated runs must not: each would be reported in
addition to the one of the first run.
"""

from __future__ import annotations

import gc
from collections import deque
from contextlib import suppress
from typing import Any, Self

import pytest
from _pytest.threadexception import thread_exceptions
from _pytest.unraisableexception import unraisable_exceptions


class PendingErrors:
    """A context around repeated runs, after which the queues of pytest are as they were before.

    It collects garbage when it begins, so that what the session's own runs have left is queued, and
    when it ends: what repeated runs leave is collected as each is read, but not if a test has
    disabled the collector.
    """

    def __init__(self, config: pytest.Config, generation: int = 2) -> None:
        """Take up to which generation garbage is collected."""
        self._generation = generation
        queues: list[deque[Any] | None] = [
            config.stash.get(unraisable_exceptions, None),
            config.stash.get(thread_exceptions, None),
        ]
        # With ``-p no:unraisableexception`` and the like, there is none.
        self._queues = [queue for queue in queues if queue is not None]
        self._kept: list[list[Any]] = []

    def __enter__(self) -> Self:
        self._collect(self._generation)
        self._kept = [list(queue) for queue in self._queues]
        self.drop()
        return self

    def __exit__(self, *_: object) -> None:
        self._collect(self._generation if gc.isenabled() else 2)
        self.drop()
        for queue, kept in zip(self._queues, self._kept, strict=True):
            queue.extend(kept)

    def _collect(self, generation: int) -> None:
        # An audit hook of a test may refuse it.
        with suppress(Exception):
            if self._queues:
                gc.collect(generation)

    def drop(self) -> None:
        """Drop errors of repeated runs; call it before each run: a queued error would fail it."""
        for queue in self._queues:
            queue.clear()
