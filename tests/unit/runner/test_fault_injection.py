"""Calls are listed as they are made, and each of them can be made to raise, in Python and in C."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
    calls = CallList(Targets([word]), ())
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
    valid = "Name a function, a method or a module that can be imported, such as os.open, or 'await'"
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
