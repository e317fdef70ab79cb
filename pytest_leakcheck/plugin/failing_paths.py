"""Find failing paths of a test (from a call that raises), and compare how their iterations end."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Self

import pytest

from pytest_leakcheck.attribution.call_paths import is_harness, iter_outwards
from pytest_leakcheck.model.culprit import Fault
from pytest_leakcheck.runner.fault_injection import (
    CallList,
    CallObserver,
    FaultInjection,
    Function,
    targets_of,
)

# So many calls of a test are made to raise. The others are counted.
MOST: Final = 20
# The methods of an item that format a failure.
_FORMATTERS: Final = ("repr_failure", "_repr_failure_py")


class ObservedCalls:
    """The hooks around an item's set-up and body, in whose context its calls are observed."""

    def __init__(self, item: pytest.Item, words: tuple[str, ...]) -> None:
        self._item, self._targets = item, targets_of(words)
        self._left_out = frozenset(_functions_of(item))
        self.observer: CallObserver

    def __enter__(self) -> Self:
        self._item.config.pluginmanager.register(self, "leakcheck-calls")
        # To format the traceback of a failure takes ten times as long as to run a small test.
        vars(self._item).update(dict.fromkeys(_FORMATTERS, _format_nothing))
        return self

    def __exit__(self, *_: object) -> None:
        self._item.config.pluginmanager.unregister(self)
        for name in _FORMATTERS:
            del vars(self._item)[name]

    def listed(self, run: Callable[[], object]) -> CallList:
        """Return the calls of one run."""
        calls = self.observer = CallList(self._targets, self._left_out)
        # The list of a run that ends early is shorter. A failing path that it does not have is not
        # repeated.
        with contextlib.suppress(Exception, pytest.exit.Exception):
            run()
        return calls

    def raise_at(self, fault: Fault) -> FailingPath:
        """Have this call raise from now on."""
        injection = self.observer = FaultInjection(self._targets, self._left_out, fault)
        return FailingPath(injection)

    # The innermost wrappers: what other plugins do is none of the test's.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self.observer.begin()
        with self._armed():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        with self._armed():
            return (yield)

    @contextlib.contextmanager
    def _armed(self) -> Iterator[None]:
        self.observer.arm()
        try:
            yield
        finally:
            self.observer.disarm()


class FailingPath:
    """The repetition of a test in which a call raises; each iteration must end as the first one."""

    def __init__(self, injection: FaultInjection) -> None:
        self._injection = injection
        self._ends: str | None = None

    def find_difference(self, error: BaseException | None) -> str:
        """Return how an iteration with this error differs from the first one; empty if not."""
        ends = f"raised {type(error).__name__}" if error is not None else "passed"
        if not self._injection.raised:
            return "did not reach the call"
        if self._ends is None:
            self._ends = ends
        return "" if ends == self._ends else f"{ends}, the first one {self._ends}"

    def release(self, error: BaseException | None) -> None:
        """Drop what pytest retains of an expected error; it and its variables are no leak."""
        # Frames of pytest refer to the error whose traceback has them, and to their callers that
        # have ended: only the garbage collector would free them, and what the frames of the program
        # hold.
        trace = error.__traceback__ if error is not None else None
        frames = list(iter_outwards(trace.tb_frame)) if trace is not None else []
        while trace is not None:
            frames.append(trace.tb_frame)
            trace = trace.tb_next
        for frame in frames:
            if is_harness(frame.f_code.co_filename):
                # One that runs refuses.
                with contextlib.suppress(RuntimeError):
                    frame.clear()
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)


def _format_nothing(*_: object, **__: object) -> str:
    return ""


def _functions_of(item: pytest.Item) -> Iterator[Function]:
    """Yield the functions whose own calls are no part of the program: the test and its fixtures."""
    functions: list[Any] = [getattr(item, "obj", None)]
    fixtures: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    functions += [
        definition.func for definitions in fixtures.values() for definition in definitions
    ]
    case = getattr(item, "cls", None)
    functions += [getattr(case, name, None) for name in ("setUp", "asyncSetUp", "setup_method")]
    for function in filter(callable, functions):
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is not None:
            yield code.co_filename, code.co_qualname
