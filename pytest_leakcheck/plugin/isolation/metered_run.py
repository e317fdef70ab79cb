"""Run a test once in the child process, as a whole or as one rank of several, and record its peaks."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from typing import Final

import pytest

from pytest_leakcheck.model.recording import EXACT, Recording, Sizing
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.inert import Leakcheck, join_process_group
from pytest_leakcheck.plugin.isolation.messages import Messages
from pytest_leakcheck.runner.environment import Origin, describe_environment
from pytest_leakcheck.runner.peak_meter import Meter
from pytest_leakcheck.runner.processes.supervisor import Board


class SizedProtocol:
    """The hooks in a process that was started to run a test once for its peaks."""

    def __init__(self, sizing: Sizing, board: Board, write: Callable[[Messages], None]) -> None:
        self._sizing, self._board, self._write = sizing, board, write

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        with join_process_group() if self._sizing.engine == "gloo" else contextlib.nullcontext():
            return (yield)

    # The innermost wrapper, so that the work of other plugins is not measured.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        meter = item.config.stash[keys.METER] = Meter(self._sizing.resources, self._sizing.naming)
        if self._sizing.engine == "thread" and isinstance(item, pytest.Function):
            item.obj = _wrap_in_threads(item.obj, self._sizing.size)
        self._board.iteration += 1
        origin = Origin()
        meter.begin()
        try:
            result = yield
        finally:
            origin.leave_elsewhere(int(sys.exc_info()[0] is not None))
            series, peaks, phases = meter.end()
            self._board.iteration += 1
            del item.config.stash[keys.METER]
        recording = Recording(
            item.nodeid,
            series,
            stopped="iterations",
            unavailable=meter.unavailable,
            environment={**describe_environment(meter.device), **({EXACT: "between two calls"} if meter.exact else {})},
            peaks=peaks,
            phases=phases,
        )
        self._write(Messages(recordings=(recording,)))
        for culprit in meter.culprits():
            self._write(Messages(culprits=(culprit,)))
        return result


class Sized(Leakcheck):
    """The fixture in a run for the peaks: it measures gauges and checkpoints; loops run `n` steps, by default one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @property
    def rank(self) -> int:
        return int(getattr(_THREAD_RANK, "number", os.environ.get("RANK", "0")))

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:  # noqa: ARG002 - others use it
        meter = self._config.stash.get(keys.METER, None)
        if meter is None:
            raise RuntimeError(f"leakcheck.gauge({name!r}) was called outside of the test: call it in the test's body")
        meter.gauge(name, read, getattr(_THREAD_RANK, "number", None))

    def checkpoint(self, label: str) -> None:
        if keys.METER in self._config.stash:
            self._config.stash[keys.METER].checkpoint(label)


# `number` is the rank of a thread that `_wrap_in_threads` started.
_THREAD_RANK: Final = threading.local()


def _wrap_in_threads(body: Callable[..., object], count: int) -> Callable[..., None]:
    """Return a function that runs the body in `count` threads at once, and raises the error that occurred first."""

    def run(**arguments: object) -> None:
        failures: list[tuple[int, BaseException]] = []

        def rank(number: int) -> None:
            _THREAD_RANK.number = number
            try:
                body(**arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised below, in the test's own thread
                failures.append((number, error))

        started = range(count)
        threads = [threading.Thread(target=rank, args=(one,), name=f"rank-{one}", daemon=True) for one in started]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, error in failures[:1]:
            error.add_note(f"in rank {number} of {count} threads")
            raise error

    return run
