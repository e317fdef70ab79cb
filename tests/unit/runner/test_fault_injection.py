"""Calls are listed as they are made, and each of them can be made to raise, in Python and in C."""

from __future__ import annotations

import asyncio
import csv
import errno
import gc
import io
import json
import os
import re
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from functools import cached_property, wraps
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pytest_leakcheck import InjectedError
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Fault
from pytest_leakcheck.runner.fault_injection import (
    DEFAULT,
    CallList,
    CallObserver,
    FaultInjection,
    Targets,
    targets_of,
)

HERE = "test_fault_injection"
# Helpers that are no part of the program, but generators.
LEFT_OUT = {(__file__, "armed"), (__file__, "seen")}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    # The tests count as the program here: what the test runner calls directly is left out.
    monkeypatch.setattr("pytest_leakcheck.runner.fault_injection.is_harness", lambda _file: False)


def decorated(function: Callable[[], object]) -> Callable[[], object]:
    @wraps(function)
    def wrapper() -> object:
        return function()

    return wrapper


@decorated
def parse() -> object:
    return json.loads("{}")


class Thing:
    def __init__(self) -> None:
        self.made = True

    @classmethod
    def make(cls) -> Thing:
        return cls()

    @staticmethod
    def still() -> int:
        return 1

    @property
    def value(self) -> int:
        return 2

    @cached_property
    def kept(self) -> int:
        return 3

    def close(self) -> None: ...


def numbers() -> Iterator[int]:
    yield 1
    yield 2


async def coroutine() -> int:
    await asyncio.sleep(0)
    return 4


def connect() -> None:
    with socket.socket() as one, suppress(ConnectionRefusedError):
        one.connect(("127.0.0.1", 1))


def write() -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as file:
        file.write("x")


CALLS: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "os.open": (lambda: os.close(os.open(os.devnull, os.O_RDONLY)), OSError),
    "open": (lambda: open(os.devnull, "rb").close(), OSError),  # noqa: PTH123 - the built-in one
    "io.open": (lambda: io.open(os.devnull, "rb").close(), OSError),  # noqa: UP020 - the same
    "socket.socket.connect": (connect, OSError),
    "io.TextIOWrapper.write": (write, OSError),
    "threading.Thread.start": (lambda: threading.Thread(target=int).start(), OSError),
    "json.loads": (parse, InjectedError),
    f"{HERE}.parse": (parse, InjectedError),
    f"{HERE}.Thing": (lambda: [Thing()], InjectedError),
    f"{HERE}.Thing.make": (lambda: [Thing.make()], InjectedError),
    f"{HERE}.Thing.still": (lambda: [Thing.still()], InjectedError),
    f"{HERE}.Thing.value": (lambda: Thing().value, InjectedError),
    f"{HERE}.Thing.kept": (lambda: Thing().kept, InjectedError),
    f"{HERE}.numbers": (lambda: list(numbers()), InjectedError),
    f"{HERE}.coroutine": (lambda: asyncio.run(coroutine()), InjectedError),
}


@contextmanager
def armed(observer: CallObserver) -> Iterator[None]:
    observer.begin()
    observer.arm()
    try:
        yield
    finally:
        observer.disarm()


def listed(word: str, run: Callable[[], object]) -> CallList:
    calls = CallList(Targets([word]), LEFT_OUT)
    with armed(calls):
        run()
    return calls


@pytest.mark.parametrize("word", CALLS)
def test_a_call_is_listed_once_and_raises_in_each_run(word: str) -> None:
    run, expected = CALLS[word]
    calls = listed(word, run)
    # A generator and a coroutine are resumed, which is no call.
    assert len(calls) == 1
    (fault,) = calls.first(9)
    assert (fault.function, fault.number) == (word, 1)
    injection = FaultInjection(Targets([word]), (), fault)
    for _ in range(3):
        with pytest.raises(expected, match="injected by pytest-leakcheck") as raised, armed(injection):
            run()
        assert injection.raised
        if expected is OSError:
            assert isinstance(raised.value, OSError)
            assert raised.value.errno == errno.EIO
        assert sys.getprofile() is None


def three() -> int:
    opened = 0
    for _ in range(3):
        with suppress(OSError):
            os.close(os.open(os.devnull, os.O_RDONLY))
            opened += 1
    os.close(os.open(os.devnull, os.O_RDONLY))
    return opened


def test_the_first_call_of_each_line_comes_before_the_second_of_any() -> None:
    calls = listed("os.open", three)
    assert len(calls) == 4
    faults = calls.first(20)
    line = faults[0].site.line
    assert [(one.site.line - line, one.number) for one in faults] == [(0, 1), (2, 1), (0, 2), (0, 3)]
    assert calls.first(2) == faults[:2]
    assert faults[0].site.function == "three"


def test_one_call_raises_and_the_others_are_made() -> None:
    fault = listed("os.open", three).first(9)[-1]
    injection = FaultInjection(Targets(["os.open"]), (), fault)
    with armed(injection):
        assert three() == 2
    # It has raised: set-up and body are armed one after the other.
    injection.arm()
    assert sys.getprofile() is None
    assert injection.raised


def test_a_module_stands_for_its_functions_but_not_for_those_that_release() -> None:
    def run() -> None:
        thing = Thing.make()
        thing.close()
        parse()

    names = [one.function.rpartition("test_fault_injection.")[2] for one in listed(HERE, run).first(20)]
    assert names[1:] == ["Thing.make", "Thing.__init__", "decorated.<locals>.wrapper", "parse"]
    assert [one.function for one in listed("json", parse).first(20)] == [
        "json.loads",
        "json.decoder.JSONDecoder.decode",
        "json.decoder.JSONDecoder.raw_decode",
    ]
    # One of the standard library has functions of C beside those of its file.
    assert [one.function for one in listed("os", lambda: os.close(os.open(os.devnull, 0))).first(9)] == ["os.open"]


def test_a_profile_function_sees_the_other_calls_and_is_put_back() -> None:
    seen: list[str] = []

    def profile(frame: FrameType, kind: str, _called: Any) -> None:
        if frame.f_code.co_name in ("three", "after", "parse"):
            seen.append(f"{kind} {frame.f_code.co_name}")

    def after() -> None: ...

    fault = listed("os.open", three).first(1)[0]
    for word, one, run in (
        ("os.open", fault, three),
        (f"{HERE}.parse", listed(f"{HERE}.parse", parse).first(1)[0], parse),
    ):
        seen.clear()
        injection = FaultInjection(Targets([word]), (), one)
        sys.setprofile(profile)
        try:
            with armed(injection), suppress(InjectedError):
                run()
            after()
            assert sys.getprofile() is profile
            assert sys.gettrace() is None
        finally:
            sys.setprofile(None)
        assert seen[-2:] == ["call after", "return after"]
    assert injection.raised


def test_a_profile_function_that_removes_itself_leaves_the_injection() -> None:
    def gives_up(_frame: FrameType, _kind: str, _called: Any) -> None:
        sys.setprofile(None)

    fault = listed("os.open", three).first(9)[-1]
    injection = FaultInjection(Targets(["os.open"]), (), fault)
    sys.setprofile(gives_up)
    try:
        with armed(injection):
            assert three() == 2
    finally:
        sys.setprofile(None)
    assert injection.raised


def test_a_profiler_in_c_stays() -> None:
    import cProfile

    fault = listed("os.open", three).first(1)[0]
    profiler = cProfile.Profile()
    profiler.enable()
    try:
        with armed(FaultInjection(Targets(["os.open"]), (), fault)):
            # From 3.12 on it is a tool of sys.monitoring, and is not disturbed.
            assert three() == (3 if sys.version_info < (3, 12) else 2)
    finally:
        profiler.disable()
    assert profiler.getstats()


def test_calls_of_functions_that_are_left_out_and_of_other_threads_are_not_seen() -> None:
    here = three.__code__.co_filename
    calls = CallList(Targets(["os.open", "json.loads"]), {(here, "three")})
    with armed(calls):
        three()
        other = threading.Thread(target=parse)
        other.start()
        other.join()
        parse()
    (fault,) = calls.first(9)
    assert fault.function == "json.loads"


def test_what_a_module_does_while_it_is_imported_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "opening_one.py").write_text("import os\nos.close(os.open(os.devnull, 0))\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def run() -> None:
        __import__("opening_one")

    assert len(listed("os.open", run)) == 0
    # Nor what the import itself opens and reads.
    monkeypatch.delitem(sys.modules, "opening_one")
    assert [one.function for one in listed("io", run).first(9)] == []


def test_the_entry_is_the_innermost_line_of_the_test() -> None:
    def inner() -> None:
        three()

    name = f"{test_the_entry_is_the_innermost_line_of_the_test.__qualname__}"
    calls = CallList(Targets(["os.open"]), {(__file__, name)})
    with armed(calls):
        inner()
    entry = calls.first(1)[0].entry
    assert entry is not None
    assert (entry.function, entry.line) == (inner.__code__.co_qualname, inner.__code__.co_firstlineno + 1)


# What iterators and their receivers do.
SEEN: list[object] = []


def note(what: object) -> None:
    SEEN.append(what)


@contextmanager
def seen() -> Iterator[None]:
    """Note how a block ends."""
    try:
        yield
    except BaseException as error:
        SEEN.append(type(error).__name__)
        raise
    SEEN.append("ended")


def items() -> Generator[int, None, None]:
    with seen():
        yield 0
        yield 1


def delegating() -> Iterator[int]:
    yield from items()


def bare() -> Iterator[None]:
    for _ in range(2):
        yield


@contextmanager
def context() -> Iterator[None]:
    with seen():
        yield


@asynccontextmanager
async def async_context() -> AsyncIterator[None]:
    with seen():
        await asyncio.sleep(0)
        yield


async def async_items() -> AsyncIterator[int]:
    with seen():
        await asyncio.sleep(0)
        yield 0
        await asyncio.sleep(0)
        yield 1


class Items:
    def __init__(self) -> None:
        self.left = [1, 0]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        await asyncio.sleep(0)
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()


def in_loop() -> None:
    for one in items():
        note(one)


def in_one_line() -> None:
    for one in items(): note(one)  # fmt: skip  # noqa: E701


def in_loop_of_delegating() -> None:
    for one in delegating():
        note(one)


def in_c_loop() -> None:
    for one in enumerate(items()):
        note(one[0])


def in_class_loop() -> None:
    with seen():
        for one in Items():
            note(one)


def in_reader() -> None:
    with seen():
        list(csv.DictReader(str(one) for one in items()))


def in_list() -> None:
    with seen():
        list(items())


def in_class_list() -> None:
    with seen():
        list(Items())


def in_comprehension() -> None:
    with seen():
        [SEEN.append(one) for one in items()]  # type: ignore[func-returns-value]


def in_next() -> int:
    with seen(), closing(items()) as them:
        return next(them)


def in_with() -> None:
    with context(): SEEN.append("body")  # fmt: skip  # noqa: E701


def in_stack() -> None:
    with ExitStack() as stack:
        stack.enter_context(context())
        SEEN.append("body")


def in_decorated() -> None:
    @context()
    def function() -> None:
        SEEN.append("body")

    function()


async def in_async_loop() -> None:
    them = async_items()
    with seen():
        async for one in them:
            note(one)


async def in_async_class_loop() -> None:
    with seen():
        async for one in Items():
            note(one)


async def in_async_with() -> None:
    async with async_context():
        SEEN.append("body")


# How the iterator and its receiver end if they are dropped after the first and after the second item. `in_next` receives
# one only; the first name is that of the iterator.
RAISED, CLOSED = "InjectedError", "GeneratorExit"
RECEIVERS: dict[Callable[[], object], tuple[str, list[list[object]]]] = {
    in_loop: ("items", [[CLOSED], [0, CLOSED]]),
    in_one_line: ("items", [[CLOSED], [0, CLOSED]]),
    in_loop_of_delegating: ("delegating", [[CLOSED], [0, CLOSED]]),
    in_c_loop: ("items", [[CLOSED], [0, CLOSED]]),
    in_class_loop: ("Items.__next__", [[RAISED], [0, RAISED]]),
    in_reader: ("items", [[CLOSED, RAISED]] * 2),
    in_list: ("items", [[CLOSED, RAISED]] * 2),
    in_class_list: ("Items.__next__", [[RAISED]] * 2),
    in_comprehension: ("items", [[CLOSED, RAISED], [0, CLOSED, RAISED]]),
    in_next: ("items", [[CLOSED, RAISED]]),
    in_with: ("context", [[RAISED]]),
    in_stack: ("context", [[RAISED]]),
    in_decorated: ("context", [[RAISED]]),
    lambda: asyncio.run(in_async_loop()): ("async_items", [[RAISED, CLOSED], [0, RAISED, CLOSED]]),
    lambda: asyncio.run(in_async_class_loop()): ("Items.__anext__", [[RAISED], [0, RAISED]]),
    lambda: asyncio.run(in_async_with()): ("async_context", [[RAISED]]),
}


@pytest.mark.parametrize(("run", "expected"), RECEIVERS.items())
def test_what_receives_an_item_raises_and_the_iterator_is_dropped(
    run: Callable[[], object], expected: tuple[str, list[list[object]]]
) -> None:
    name, ends = expected
    faults = listed("iterate", run).first(9)
    assert [(one.iterator.rpartition(f"{HERE}.")[2], one.number) for one in faults] == [
        (name, number) for number in range(1, len(ends) + 1)
    ]
    for fault, end in zip(faults, ends, strict=True):
        injection = FaultInjection(Targets(["iterate"]), LEFT_OUT, fault)
        for _ in range(2):
            SEEN.clear()
            with pytest.raises(InjectedError, match="injected by pytest-leakcheck"), armed(injection):
                run()
            # A frame of the traceback may hold the iterator for longer.
            assert sorted(map(str, SEEN)) == sorted(map(str, end))
            assert injection.raised
            assert (sys.getprofile(), sys.gettrace()) == (None, None)


def test_an_iterator_that_is_closed_or_thrown_into_hands_out_nothing() -> None:
    def run() -> None:
        for close in (lambda one: one.close(), lambda one: one.throw(KeyError), lambda _one: None):
            them = bare()
            next(them)
            with suppress(KeyError):
                close(them)

    assert len(listed("iterate", run)) == 3
    assert len(listed("iterate", lambda: [None for _ in bare()])) == (2 if sys.version_info[:2] != (3, 13) else 1)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="the exception comes within try and with there")
def test_what_returns_an_awaited_item_is_left_out() -> None:
    async def run() -> int:
        return await anext(async_items())

    assert len(listed("iterate", lambda: asyncio.run(run()))) == 0


def test_iterators_that_the_test_itself_receives_from_count_but_not_its_own() -> None:
    name = "test_iterators_that_the_test_itself_receives_from_count_but_not_its_own"

    def own() -> Iterator[int]:
        yield 1

    calls = CallList(Targets(["iterate"]), {(__file__, name), *LEFT_OUT})
    with armed(calls):
        list(own())
        list(items())
    (fault, _) = calls.first(9)
    assert fault.iterator.endswith(".items")
    assert fault.entry == fault.site


@pytest.mark.parametrize("run", [in_loop, in_list, in_next, in_with])
def test_the_profile_and_the_trace_function_are_put_back_at_once(run: Callable[[], object]) -> None:
    profiled: list[str] = []

    def profile(_frame: FrameType, kind: str, called: Any) -> None:
        if kind == "c_call" and called.__name__ == "append":
            profiled.append(kind)

    def trace(_frame: FrameType, _kind: str, _value: object) -> None: ...

    injection = FaultInjection(Targets(["iterate"]), LEFT_OUT, listed("iterate", run).first(1)[0])
    before = sys.gettrace()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        with suppress(InjectedError), armed(injection):
            run()
        assert (sys.getprofile(), sys.gettrace()) == (profile, trace)
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    # It has seen how the iterator was closed.
    assert profiled
    assert injection.raised


def catches(raising: Callable[[], object]) -> None:
    kept = Thing()
    REFERENCES.append(weakref.ref(kept))
    with suppress(ValueError):
        raising()


REFERENCES: list[weakref.ref[Thing]] = []


@pytest.mark.parametrize(("word", "raising"), [("json.loads", parse), ("iterate", in_loop), ("iterate", in_list)])
def test_the_exception_is_not_part_of_a_cycle(word: str, raising: Callable[[], object]) -> None:
    """Else only the collector would free the variables of the program that catches it."""
    injection = FaultInjection(Targets([word]), LEFT_OUT, listed(word, lambda: catches(raising)).first(1)[0])
    gc.disable()
    try:
        with armed(injection):
            catches(raising)
        assert injection.raised
        assert REFERENCES[-1]() is None
    finally:
        gc.enable()


def test_the_default_list_exists() -> None:
    targets = targets_of(("all",))
    assert targets is targets_of(("all",))
    assert len(set(DEFAULT)) == len(DEFAULT)
    calls = CallList(targets, ())
    with armed(calls):
        write()
    assert [one.function for one in calls.first(9)] == ["open", "io.TextIOWrapper.write"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("os.opened", "'os.opened': os has no 'opened'. Did you mean 'open'?"),
        ("nowhere.at_all", "'nowhere.at_all': there is no module 'nowhere'."),
        ("sys.path", "'sys.path' is a list."),
        ("io.BytesIO", "'io.BytesIO' is a class without an __init__ in Python."),
    ],
)
def test_a_name_that_is_no_function_is_refused(word: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        Targets([word])
    valid = "Name a function, a method or a module that can be imported, such as os.open, 'await' or 'iterate'"
    assert str(refused.value) == f"{message} {valid}"


def test_a_module_that_cannot_be_imported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_one.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "lacking_one.py").write_text("import nowhere", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"importing broken_one\.x failed: ZeroDivisionError: division by zero"):
        Targets(["broken_one.x"])
    with pytest.raises(InputError, match="'lacking_one': importing lacking_one failed: No module named 'nowhere'"):
        Targets(["lacking_one"])


def test_another_fault_of_the_function_is_another_call() -> None:
    fault = listed("os.open", three).first(1)[0]
    other = Fault("os.open", fault.site, 9)
    injection = FaultInjection(Targets(["os.open"]), (), other)
    with armed(injection):
        assert three() == 3
    assert not injection.raised


def test_the_docs_list_the_default_functions() -> None:
    page = Path(__file__).parents[3] / "docs" / "failing-paths.md"
    listed = page.read_text(encoding="utf-8").split("The functions of `all`")[1].split("A function of the operating")[0]
    assert set(re.findall(r"`([\w.]+)`", listed)) == {*DEFAULT, "all"} - {"all"}
