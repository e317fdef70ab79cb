"""Find the chosen calls of a test in one run, and raise an exception at one of them in later runs.

The profile function of the thread (`sys.setprofile`) sees each call, also of a C function, before
it is made. What it raises there propagates into the caller. The interpreter then removes the
profile function. One that was there before, such as that of a tracer which searches for the cause
of a leak, is called meanwhile, and put back by a trace function at the event of the exception.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import errno
import inspect
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import count, islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_harness, is_standard, iter_outwards
from pytest_leakcheck.config.budget import did_you_mean
from pytest_leakcheck.config.settings import ALL_FAILURES
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import AWAIT, ITERATE, Fault, Site

# A function of the program: its file and its qualified name.
Function: TypeAlias = tuple[str, str]
_VALID: Final = (
    "Name a function, a method or a module that can be imported, such as os.open, "
    f"{AWAIT!r} or {ITERATE!r}"
)
_NEXT: Final = ("__next__", "__anext__")
_MESSAGE: Final = "injected by pytest-leakcheck"
# What 'all' stands for: what acquires or transfers something, not what releases it. If that fails,
# something remains.
DEFAULT: Final = (
    "open",
    "io.TextIOWrapper.write",
    "io.TextIOWrapper.read",
    "io.BufferedWriter.write",
    "io.BufferedReader.read",
    "os.open",
    "os.read",
    "os.write",
    "os.fdopen",
    "os.mkdir",
    "os.rename",
    "os.replace",
    "os.link",
    "os.symlink",
    "os.stat",
    "os.listdir",
    "os.scandir",
    "shutil.copyfile",
    "shutil.copyfileobj",
    "tempfile.mkstemp",
    "tempfile.mkdtemp",
    "socket.socket.connect",
    "socket.socket.bind",
    "socket.socket.listen",
    "socket.socket.accept",
    "socket.socket.send",
    "socket.socket.sendall",
    "socket.socket.recv",
    "socket.socket.recv_into",
    "ssl.SSLSocket.do_handshake",
    "subprocess.Popen",
    "subprocess.Popen.communicate",
    "threading.Thread.start",
    "json.loads",
    "json.load",
    "json.dumps",
    "json.dump",
    "pickle.loads",
    "pickle.load",
    "pickle.dumps",
    "pickle.dump",
)
# The packages whose functions raise `OSError`.
_OF_SYSTEM: Final = frozenset(
    {
        "builtins",
        "fcntl",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "posix",
        "posixshmem",
        "posixsubprocess",
        "pty",
        "select",
        "selectors",
        "shutil",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "termios",
        "threading",
    }
)
# Functions of a chosen module that are left out: if what releases something fails, it remains.
_RELEASING: Final = frozenset({"__aexit__", "__del__", "__exit__", "aclose", "close"})


class InjectedError(ValueError):
    """The exception that ``failures`` raises in place of a call outside the operating system.

    A function that opens, reads, writes, connects or starts raises an `OSError` with ``errno.EIO``.
    Any other, such as a parser or a function of the project, raises this `ValueError`. The message
    of both is "injected by pytest-leakcheck".
    """


class Targets:
    """The chosen functions; `name_of` recognizes a call of one of them."""

    def __init__(self, words: Iterable[str]) -> None:
        """Resolve names of functions and modules, or raise `InputError`.

        The default list skips what does not exist here.
        """
        # Codes by their number: to hash one would compare its whole content.
        self._codes: dict[int, tuple[str, CodeType]] = {}
        self._files: dict[str, bool] = {}
        self._folders: tuple[str, ...] = ()
        # C functions by their last name.
        self._of_c: dict[str, list[tuple[object, str]]] = {}
        self.has_waits = self.has_items = False
        for word in words:
            if word == AWAIT:
                self.has_waits = True
            elif word == ITERATE:
                self.has_items = True
            elif word == ALL_FAILURES:
                for name in DEFAULT:
                    self._add(name, _resolve(name))
            else:
                self._add(word, _resolve(word))

    def _add(self, name: str, found: object) -> None:
        if isinstance(found, ModuleType):
            self._add_module(name, found)
        elif isinstance(found, (BuiltinFunctionType, MethodDescriptorType)):
            self._of_c.setdefault(found.__name__, []).append((found, name))
        elif (code := _code_of(found)) is not None:
            self._codes.setdefault(id(code), (name, code))
        else:
            what = (
                "a class without an __init__ in Python"
                if inspect.isclass(found)
                else f"a {type(found).__name__}"
            )
            raise InputError(f"{name!r} is {what}. {_VALID}")

    def _add_module(self, name: str, module: ModuleType) -> None:
        file = getattr(module, "__file__", None) or ""
        if hasattr(module, "__path__"):
            self._folders += tuple(f"{folder}{os.sep}" for folder in module.__path__)
        elif file.endswith(".py"):
            self._files[file] = True
        if not file.endswith(".py") or is_standard(file):
            for last, value in vars(module).items():
                if isinstance(value, BuiltinFunctionType) and last not in _RELEASING:
                    self._of_c.setdefault(value.__name__, []).append((value, f"{name}.{last}"))

    def name_of(self, frame: FrameType, kind: str, called: Any) -> str:
        """Return the name of a chosen function about to run; empty for others, or if it resumes."""
        if kind == "c_call":
            for target, name in self._of_c.get(called.__name__, ()):
                if called is target or _descriptor_of(called) is target:
                    return name
            return ""
        code = frame.f_code
        if (chosen := self._codes.get(id(code))) is not None:
            name = chosen[0]
        elif self._is_in_module(code):
            name = _name_of(frame)
        else:
            return ""
        # A generator or a coroutine that is resumed stands on another line.
        return (
            name if frame.f_lineno == code.co_firstlineno or not code.co_flags & _SUSPENDED else ""
        )

    def _is_in_module(self, code: CodeType) -> bool:
        file = code.co_filename
        chosen = self._files.get(file)
        if chosen is None:
            chosen = self._files[file] = file.startswith(self._folders)
        return chosen and code.co_name not in _RELEASING and not code.co_name.startswith("<")


def _name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_qualname}"


_GENERATES: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_SUSPENDED: Final = _GENERATES | inspect.CO_COROUTINE


@lru_cache(maxsize=16)
def targets_of(words: tuple[str, ...]) -> Targets:
    """Resolve these words once in a session."""
    return Targets(words)


def _resolve(name: str) -> object:
    """Return the object of a dotted name that starts with a module; raise `InputError` if none."""
    words = name.split(".")
    if len(words) == 1 and hasattr(builtins, name):
        return getattr(builtins, name)
    for length in range(len(words), 0, -1):
        module = ".".join(words[:length])
        try:
            found: Any = import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise InputError(f"{name!r}: importing {module} failed: {error}") from None
            continue
        except Exception as error:  # noqa: BLE001 - whatever the module of a project raises
            raise InputError(
                f"{name!r}: importing {module} failed: {type(error).__name__}: {error}"
            ) from None
        for word in words[length:]:
            if not hasattr(found, word):
                owner = getattr(found, "__name__", module)
                raise InputError(
                    f"{name!r}: {owner} has no {word!r}.{did_you_mean(word, dir(found))} {_VALID}"
                )
            found = getattr(found, word)
        return found
    raise InputError(f"{name!r}: there is no module {words[0]!r}. {_VALID}")


def _code_of(found: Any) -> CodeType | None:
    """Return the code of a Python function without its decorators, or of a class's constructor."""
    if inspect.isclass(found):
        found = found.__init__
    elif isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    if isinstance(found, MethodType):
        found = found.__func__
    if callable(found):
        found = inspect.unwrap(found)
    return found.__code__ if isinstance(found, FunctionType) else None


def _descriptor_of(called: Any) -> object:
    """Return the method of a class of C that a bound method comes from; None of a function."""
    owner = called.__self__
    if owner is None or isinstance(owner, ModuleType):
        return None
    classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    return next(
        (vars(one)[called.__name__] for one in classes if called.__name__ in vars(one)), None
    )


def _is_left_out(frame: FrameType, left_out: Collection[Function]) -> bool:
    code = frame.f_code
    return (code.co_filename, code.co_qualname.partition(".<locals>")[0]) in left_out


def _find_caller(frame: FrameType | None, left_out: Collection[Function]) -> FrameType | None:
    """Return the program frame that calls; None for the runner, imports and left-out functions."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_harness(file):
            return None
        if not is_standard(file) and not file.startswith("<"):
            name = frame.f_code.co_qualname
            return None if _is_left_out(frame, left_out) or name == "<module>" else frame
        if file.startswith("<frozen importlib"):
            return None
        frame = frame.f_back
    return None


def _hands_out(frame: FrameType, outer: FrameType, value: object) -> bool:
    """Return whether a frame that returns to an `outer` one is an iterator's, with an item."""
    code, awaits = frame.f_code, _instruction(outer) == "SEND"
    if code.co_flags & inspect.CO_GENERATOR:
        # Of a chain of ``yield from``, the outermost one does. Python 3.13 stands on the
        # instruction after the yield.
        yields = _instruction(frame) in ("YIELD_VALUE", "RESUME")
        return yields and not awaits and code.co_name[0] != "<"
    if awaits and sys.version_info < (3, 12) and not _enters(outer):
        # After ``return await``, the exception would come outside of ``try`` and ``with``.
        after = outer.f_lasti + 2 + 2 * outer.f_code.co_code[outer.f_lasti + 1]
        if not _instruction(outer, after).startswith(("STORE_", "UNPACK_")):
            return False
    if code.co_flags & inspect.CO_ASYNC_GENERATOR:
        # Else, it waits.
        return type(value).__name__ == "async_generator_wrapped_value"
    return _instruction(frame).startswith("RETURN_")


def _enters(frame: FrameType) -> bool:
    """Return whether a frame of `contextlib` hands the item to a ``with``, whose body raises."""
    return frame.f_code.co_filename == contextlib.__file__ and frame.f_code.co_name != "inner"


def _instruction(frame: FrameType, at: int | None = None) -> str:
    code, at = frame.f_code.co_code, frame.f_lasti if at is None else at
    # Python 3.12 stands on the cache of the instruction that has called.
    while dis.opname[code[at]] == "CACHE":
        at -= 2
    return dis.opname[code[at]]


def _site_of(frame: FrameType) -> Site:
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


class CallObserver:
    """Sees calls of chosen functions from `arm` to `disarm`, in the thread that called `arm`."""

    def __init__(self, targets: Targets, left_out: Collection[Function]) -> None:
        """Leave out the calls that these functions make: the test itself, and its fixtures."""
        self._targets, self._left_out = targets, left_out
        self._before: Any = None
        # Whether the coroutines that await the one that has begun to wait are still to follow.
        self._waits = False
        # The code that has received an item, what it is to raise, and the iterator.
        self._receiver: FrameType | None = None
        self._pending: list[Exception] = []
        self._dropped: CodeType | None = None
        self._traced: Any = None
        self._entered: dict[int, int] = {}
        self._in_with = False
        # A bound method is a new object at each access; this one is compared by identity.
        self._hook = self._on_event

    def begin(self) -> None:
        """Begin a run."""

    def arm(self) -> None:
        before = sys.getprofile()
        # A profiler in C, such as cProfile, cannot be called, nor put back.
        if before is None or callable(before):
            self._before = before
            sys.setprofile(self._hook)

    def disarm(self) -> None:
        if sys.getprofile() is self._hook:
            sys.setprofile(self._before)
        if self._traced is not None:
            sys.settrace(self._traced)
        self._before = self._traced = None

    def _on_event(self, frame: FrameType, kind: str, called: Any) -> None:
        error = self._find_error(frame, kind, called)
        if error is not None:
            if self._before is not None:
                self._put_back_at_exception(frame)
            try:
                raise error
            finally:
                # Its traceback has this frame: only the collector would free both.
                del error
        if self._targets.has_waits:
            self._on_wait(frame, kind, called)
        if self._targets.has_items and (
            frame.f_code.co_flags & _GENERATES or frame.f_code.co_name in _NEXT
        ):
            if kind == "call":
                self._entered[id(frame)] = frame.f_lasti
            # What is thrown into a generator leaves it where it was entered, with None.
            elif kind == "return" and (
                self._entered.pop(id(frame), -1) != frame.f_lasti or called is not None
            ):
                self._on_return(frame, called)
        if self._before is not None:
            self._before(frame, kind, called)
            if sys.getprofile() is not self._hook:
                # It has removed itself, because it is too slow.
                self._before = None
                sys.setprofile(self._hook)

    def _find_error(self, frame: FrameType, kind: str, called: Any) -> BaseException | None:
        """Return what is to be raised at this event."""
        if kind == "c_return" and frame is self._receiver:
            return self._leave()
        if kind == "call" and frame.f_code is self._dropped:
            # C code asks for the next item. It gets what closes the iterator, and its caller the
            # exception in place of that.
            self._dropped = None
            return GeneratorExit()
        if kind in ("call", "c_call") and (name := self._targets.name_of(frame, kind, called)):
            caller = _find_caller(frame if kind == "c_call" else frame.f_back, self._left_out)
            if caller is not None:
                return self._note(name, caller, called)
        return None

    def _on_return(self, frame: FrameType, value: object) -> None:
        """Have the code that receives an item from an iterator of the program raise there."""
        receiver = frame.f_back
        if (
            self._receiver is not None
            or receiver is None
            or _find_caller(frame, self._left_out) is not frame
            or (caller := _find_caller(receiver, ())) is None
            or not _hands_out(frame, receiver, value)
            or (error := self._note(f"{ITERATE} {_name_of(frame)}", caller, None)) is None
        ):
            return
        self._in_with = _enters(receiver)
        while receiver.f_back is not None and _enters(receiver):
            receiver = receiver.f_back
        self._pending, self._receiver, self._dropped = [error], receiver, frame.f_code
        self._traced = sys.gettrace()
        receiver.f_trace = self._on_receiver
        sys.settrace(self._on_receiver)
        receiver.f_trace_opcodes = True
        # Python 3.12 heeds what was set before, later versions what is set after.
        sys.settrace(self._on_receiver)

    def _on_receiver(self, frame: FrameType, kind: str, _called: Any) -> None:
        if frame is self._receiver and (
            # After ``END_SEND``, ``async with`` has entered its body.
            not (self._in_with and _instruction(frame) == "END_SEND")
            if kind == "opcode"
            else kind == "exception" and self._dropped is None
        ):
            sys.setprofile(self._before)
            raise self._leave()

    def _leave(self) -> Exception:
        self._receiver = self._dropped = None
        sys.settrace(self._traced)
        return self._pending.pop()

    def _on_wait(self, frame: FrameType, kind: str, called: Any) -> None:
        """Handle the event of a task that begins to wait for a future, in its innermost coroutine.

        Cancelled now, the task gets the exception where it waits.
        """
        if kind != "return":
            self._waits = False
        elif (
            not self._waits
            and frame.f_code.co_flags & inspect.CO_COROUTINE
            and getattr(called, "_asyncio_future_blocking", False) is True
        ):
            self._waits = True
            caller = _find_caller(frame, self._left_out)
            if caller is not None and self._note(AWAIT, caller, called) is not None:
                task = sys.modules["asyncio"].current_task()
                if task is not None:
                    task.cancel(_MESSAGE)

    def _note(self, name: str, caller: FrameType, called: Any) -> Exception | None:
        """Take note of a call, and return what it is to raise."""
        raise NotImplementedError

    def _put_back_at_exception(self, frame: FrameType) -> None:
        before, traced, of_frame = self._before, sys.gettrace(), frame.f_trace

        def put_back(frame: FrameType, kind: str, _error: Any) -> None:
            if kind == "exception":
                frame.f_trace = of_frame
                sys.settrace(traced)
                sys.setprofile(before)

        frame.f_trace = put_back
        sys.settrace(put_back)


class CallList(CallObserver):
    """Lists the calls of one run."""

    def __init__(self, targets: Targets, left_out: Collection[Function]) -> None:
        super().__init__(targets, left_out)
        # The first call of each function from each line, and how many there were.
        self._calls: dict[tuple[str, str, int], Fault] = {}
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def _note(self, name: str, caller: FrameType, called: Any) -> None:  # noqa: ARG002 - as declared
        key = name, caller.f_code.co_filename, caller.f_lineno
        self._counts[key] += 1
        if key not in self._calls:
            outer = (one for one in iter_outwards(caller) if _is_left_out(one, self._left_out))
            entry = next(map(_site_of, outer), None)
            self._calls[key] = Fault(name, _site_of(caller), 1, entry)

    def __len__(self) -> int:
        return self._counts.total()

    def first(self, most: int) -> list[Fault]:
        """Return so many calls: the first of each line and function, then the second, and so on."""
        return [*islice(self._in_turn(), min(most, len(self)))]

    def _in_turn(self) -> Iterator[Fault]:
        for number in count(1):
            for key, fault in self._calls.items():
                if number <= self._counts[key]:
                    yield replace(fault, number=number)


class FaultInjection(CallObserver):
    """Raises an exception in place of one call per run; `raised`: whether it did so in this one."""

    def __init__(self, targets: Targets, left_out: Collection[Function], fault: Fault) -> None:
        super().__init__(targets, left_out)
        self._fault = fault
        self._calls, self.raised = 0, False

    def begin(self) -> None:
        self._calls, self.raised = 0, False

    def arm(self) -> None:
        if not self.raised:
            super().arm()

    def _note(self, name: str, caller: FrameType, called: Any) -> Exception | None:
        fault, code = self._fault, caller.f_code
        if (
            name != fault.function
            or caller.f_lineno != fault.site.line
            or code.co_filename != fault.site.file
        ):
            return None
        self._calls += 1
        if self._calls != fault.number:
            return None
        self.raised = True
        return _error_of(name, called)


def _error_of(name: str, called: Any) -> Exception:
    owner = getattr(called, "__self__", None)
    module = getattr(called, "__module__", None) or type(owner).__module__
    package = (name if called is None else module).partition(".")[0].lstrip("_")
    if package in _OF_SYSTEM or "." not in name:
        return OSError(errno.EIO, _MESSAGE)
    return InjectedError(_MESSAGE)
