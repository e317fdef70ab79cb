"""Show, in the controller of xdist, how far the session is and which test of a worker is slow.

Workers send nothing while they measure, so the line does not show iterations. It is drawn only while the controller
waits for its workers, by no other thread, and erased before the controller does anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from queue import Empty
from typing import Any, Final

import pytest

from pytest_leakcheck.config.time_left import format_duration
from pytest_leakcheck.plugin.chosen_tests import Sampling
from pytest_leakcheck.plugin.progress_line import SessionLine, estimate, open_line
from pytest_leakcheck.probes import clock
from pytest_leakcheck.report.progress_text import ItemProgress, SessionProgress, progress_line
from pytest_leakcheck.runner import progress

# Seconds between two drawings. The controller shares the machine with its workers.
_EVERY: Final = 1.0


class WorkersLine(SessionLine):
    """The hooks that show the line; registered in the controller."""

    def __init__(self, config: pytest.Config, sampling: Sampling) -> None:
        super().__init__(config, sampling)
        self._tests: Sequence[str] = ()
        self._workers: set[str] = set()
        self._done = 0
        # By worker: the test that it is running, and since when.
        self._running: dict[str, tuple[str, float]] = {}

    @pytest.hookimpl
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._workers.add(node.gateway.id)
        self._tests = ids

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Draw the line while xdist waits for events of its workers; xdist has no hook for that."""
        session: Any = self._config.pluginmanager.getplugin("dsession")
        if hasattr(session, "queue"):
            session.queue = _ObservedQueue(session.queue, self._draw, self._receive)
        self._line = open_line(self._config)
        try:
            return (yield)
        finally:
            self._receive(None)

    def _receive(self, event: Any) -> None:
        """Erase the line, and note an event of a worker before xdist handles it."""
        self._erase()
        name, values = event if isinstance(event, tuple) else ("", {})
        worker = values["node"].gateway.id if "node" in values else ""
        if name == "logstart":
            if not self._forecast.tests:
                self._begin()
            self._running[worker] = (values["nodeid"], clock.monotonic())
        elif name in ("logfinish", "errordown"):
            test, began = self._running.pop(worker, ("", 0.0))
            self._forecast.end(test, clock.monotonic() - began)
            self._done += name == "logfinish"

    def _begin(self) -> None:
        """State how long the session takes, if it is known. Only workers know which tests are measured."""
        self._forecast = self._sampling.forecast(self._tests, known=True)
        workers = max(1, len(self._workers))
        if line := estimate(self._config, self._sampling, self._forecast, len(self._tests), workers):
            self._config.pluginmanager.getplugin("terminalreporter").write_line(line)

    def _draw(self) -> None:
        now = clock.monotonic()
        slow = sorted((began, worker, test) for worker, (test, began) in self._running.items())
        slow = [one for one in slow if now - one[0] >= progress.AFTER]
        if self._line is None or not slow:
            return
        began, worker, test = slow[0]
        details = f"for {format_duration(now - began)}" + (f", {len(slow) - 1} more" if len(slow) > 1 else "")
        left = self._forecast.seconds_left(test, now - began)
        left = None if left is None else left / max(1, len(self._workers))
        session = SessionProgress(self._done, len(self._tests), len(self._red), left)
        item = ItemProgress(test.rpartition("::")[2], worker, details)
        self._line.draw(progress_line(item, session, self._line.width))


class _ObservedQueue:
    """The queue of events of xdist, which calls a function at intervals while it is empty, and another for each event."""

    def __init__(self, queue: Any, wait: Callable[[], None], receive: Callable[[Any], None]) -> None:
        self._queue, self._wait, self._receive = queue, wait, receive

    def get(self, **_options: object) -> Any:
        """Return the next event; raise `Empty` if there is none yet, on which xdist waits again."""
        try:
            event = self._queue.get(timeout=_EVERY)
        except Empty:
            self._wait()
            raise
        except BaseException:
            self._receive(None)
            raise
        self._receive(event)
        return event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
