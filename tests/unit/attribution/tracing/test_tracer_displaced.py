"""What a tracer displaces is in force again after it, and what the program sets meanwhile is kept."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from pytest_leakcheck.attribution.tracing.backends import Tracer
from traced import PLAIN, Counting, trace

MONITORED = sys.version_info >= (3, 12)


def inner(n: int) -> int:
    return len("a" * n)


def hook(*_: object) -> None: ...


def test_what_was_in_force_before_is_so_after() -> None:
    before, before_threads, before_trace = sys.getprofile(), threading.getprofile(), sys.gettrace()  # type: ignore[attr-defined, unused-ignore]
    tracer = Tracer(Counting(__file__), PLAIN)
    try:
        sys.setprofile(hook)
        threading.setprofile(hook)
        sys.settrace(hook)
        for _ in range(2):
            tracer.arm()
            inner(2)
            tracer.disarm()
            assert sys.getprofile() is hook
            assert threading.getprofile() is hook  # type: ignore[attr-defined, unused-ignore]
            assert sys.gettrace() is hook
    finally:
        sys.settrace(before_trace)
        sys.setprofile(before)
        threading.setprofile(before_threads)
        tracer.close()
    assert tracer.interrupted == ""


@pytest.mark.skipif(MONITORED, reason="sys.monitoring leaves sys.setprofile alone")
@pytest.mark.parametrize("own", [hook, None])
def test_a_program_that_sets_its_own_profile_function_keeps_it(own: Any) -> None:
    listener = Counting(__file__)
    tracer = Tracer(listener, PLAIN)

    def program() -> None:
        inner(1)
        sys.setprofile(own)
        inner(2)

    before = sys.getprofile()
    try:
        tracer.arm()
        program()
        tracer.disarm()
        assert sys.getprofile() is own
        assert "sys.setprofile" in tracer.interrupted
        seen = listener.events
        tracer.arm()
        inner(2)
        tracer.disarm()
        assert listener.events == seen
        assert sys.getprofile() is own
    finally:
        sys.setprofile(before)
        tracer.close()


@pytest.mark.skipif(MONITORED, reason="sys.monitoring leaves sys.setprofile alone")
def test_a_thread_that_outlives_the_iteration_gets_what_was_displaced() -> None:
    go, seen = threading.Event(), []

    def stay() -> None:
        go.wait()
        inner(1)
        seen.append(sys.getprofile())

    before = threading.getprofile()  # type: ignore[attr-defined, unused-ignore]
    threading.setprofile(hook)
    try:
        thread = threading.Thread(target=stay)
        trace(Counting(__file__), thread.start)
        go.set()
        thread.join()
    finally:
        threading.setprofile(before)
    assert seen == [hook]
