from __future__ import annotations

import gc
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from pytest_leakcheck.attribution.inspection import name_of_called
from pytest_leakcheck.attribution.tracing.backends import Tracer
from pytest_leakcheck.attribution.tracing.tracer import STOPPED, UNLIMITED, Event, Handler, Throttle
from traced import PLAIN, trace

MONITORED = sys.version_info >= (3, 12)
HERE = __file__


class Recorder:
    """Keeps the events of this file as text, and no frame."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.files: set[str] = set()
        self.rounds = 0

    def begin(self) -> None:
        self.rounds += 1

    def handler(self) -> Handler:
        return self._on_event

    def _on_event(self, event: Event, frame: FrameType, called: Any) -> None:
        self.files.add(frame.f_code.co_filename)
        if frame.f_code.co_filename == HERE and event not in ("begin", "end"):
            name = name_of_called(called) if event in ("c_call", "c_return") else ""
            self.events.append((event, frame.f_code.co_name, name))


def recorded(work: Callable[[], object]) -> list[tuple[str, str, str]]:
    recorder = Recorder()
    tracer = trace(recorder, work)
    assert tracer.interrupted == ""
    return recorder.events


def plain_calls() -> None:
    inner(3)


def inner(n: int) -> int:
    return len(str.lower("x" * n))


def test_calls_and_returns_of_python_and_c() -> None:
    assert recorded(plain_calls) == [
        ("call", "plain_calls", ""),
        ("call", "inner", ""),
        ("c_call", "inner", "str.lower"),
        ("c_return", "inner", "str.lower"),
        ("c_call", "inner", "len"),
        ("c_return", "inner", "len"),
        ("return", "inner", ""),
        ("return", "plain_calls", ""),
    ]


def counting() -> Iterator[int]:
    try:
        yield 1
        yield 2
    except KeyError:
        yield 3


def with_generator() -> None:
    stream = counting()
    for _ in stream:
        break
    stream.throw(KeyError)  # type: ignore[attr-defined]
    stream.close()  # type: ignore[attr-defined]


def test_a_generator_is_entered_and_left_at_each_step() -> None:
    events = [event for event, function, _called in recorded(with_generator) if function == "counting"]
    assert events == ["call", "return"] * 3


@pytest.mark.skipif(not MONITORED, reason="only a thread itself can set its profile function")
def test_threads_that_began_before_are_seen() -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(inner, 1).result()
        events = recorded(lambda: executor.submit(inner, 1).result())
    assert ("call", "inner", "") in events


class Failing(Recorder):
    def _on_event(self, event: Event, frame: FrameType, called: Any) -> None:
        super()._on_event(event, frame, called)
        if called is len:
            raise LookupError("of our own")


def test_a_failing_listener_is_not_heard_by_the_program() -> None:
    recorder = Failing()
    tracer = trace(recorder, plain_calls, rounds=2)
    assert tracer.interrupted == "the listener failed: LookupError: of our own"
    assert [called for _event, _function, called in recorder.events].count("len") == 1


class Signalling(Recorder):
    """As if the user pressed a key, or a timeout ran out, in the middle of our own work."""

    def _on_event(self, event: Event, frame: FrameType, called: Any) -> None:
        super()._on_event(event, frame, called)
        if called is len:
            os.kill(os.getpid(), signal.SIGUSR1)
            sum(range(10))


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_what_a_signal_raises_reaches_the_program(error: type[BaseException]) -> None:
    def handler(*_: object) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    profile = sys.getprofile()
    try:
        with pytest.raises(error):
            trace(Signalling(), plain_calls)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sys.getprofile() is profile


class Thing:
    pass


def test_nothing_is_kept_alive() -> None:
    references = []

    def local() -> None:
        thing = Thing()
        references.append(weakref.ref(thing))
        inner(2)

    recorder = Recorder()
    tracer = Tracer(recorder, PLAIN)
    gc.disable()
    try:
        tracer.arm()
        local()
        tracer.disarm()
        assert references[0]() is None
    finally:
        gc.enable()
        tracer.close()


@pytest.mark.skipif(not MONITORED, reason="sys.monitoring")
def test_a_tool_id_in_use_is_left_alone_and_none_at_all_is_said() -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    taken = [tool for tool in range(6) if monitoring.get_tool(tool) is None]
    for tool in taken:
        monitoring.use_tool_id(tool, "another")
    try:
        with pytest.raises(RuntimeError, match="another"):
            Tracer(Recorder())
        monitoring.free_tool_id(taken[-1])
        tracer = Tracer(Recorder())
        assert monitoring.get_tool(taken[-1]) == "pytest-leakcheck"
        tracer.close()
        assert monitoring.get_tool(taken[-1]) is None
        assert [monitoring.get_tool(tool) for tool in taken[:-1]] == ["another"] * (len(taken) - 1)
    finally:
        for tool in taken[:-1]:
            monitoring.free_tool_id(tool)


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def test_too_many_events_are_left_out_from_the_deepest_on() -> None:
    recorder = Recorder()
    results = []
    tracer = trace(recorder, lambda: results.append(fib(22)), rounds=3, plain_seconds=0.0)
    assert results == [17711] * 3
    assert tracer.coarse
    assert tracer.interrupted == ""
    # At the limit, a function of Python looks as one of C.
    assert ("c_call", "fib", "fib") in recorder.events


class Clocks:
    """The clocks of a throttle; `pass_time` advances both, or only the time of day if another process runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = 0.0
        monkeypatch.setattr("pytest_leakcheck.attribution.tracing.tracer.monotonic", lambda: self.now)
        monkeypatch.setattr("pytest_leakcheck.attribution.tracing.tracer.process_time", lambda: self.cpu)

    def pass_time(self, seconds: float, cpu: float) -> None:
        self.now += seconds
        self.cpu += cpu


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def spend(limits: Throttle, clocks: Clocks, depth: int, seconds: float, cpu: float) -> int:
    """Spend time on an event, and return the limit after it."""
    began = clocks.now
    clocks.pass_time(seconds, cpu)
    limits.spend(depth, began)
    return limits.limit


def test_the_throttle_does_not_charge_what_other_processes_take(clocks: Clocks) -> None:
    limits = Throttle(0.0)
    assert spend(limits, clocks, 20, 0.05, 0.001) == UNLIMITED
    assert not limits.coarse
    assert spend(limits, clocks, 20, 0.05, 0.05) == STOPPED


def test_names_run_no_code_of_the_program() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

    class Strange(metaclass=Meta):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    assert name_of_called(Strange).endswith("Strange")
    assert name_of_called(object.__new__(Strange)).endswith("Strange")
    assert name_of_called([].append) == "list.append"
    assert name_of_called(dict.fromkeys) == "dict.fromkeys"
    assert name_of_called(os.dup) == "dup"
    assert name_of_called(fib.__code__) == "fib"


def endless(n: int) -> int:
    return endless(n + 1)


def test_a_recursion_without_end_ends_as_it_does() -> None:
    def work() -> None:
        with pytest.raises(RecursionError):
            endless(0)

    before = sys.getprofile()
    tracer = trace(Recorder(), work)
    assert sys.getprofile() is before
    # Where it is the interpreter that takes the profile function out, that is said.
    assert "recursion" in tracer.interrupted or not tracer.interrupted
