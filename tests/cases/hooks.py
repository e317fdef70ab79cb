"""What a program registers with the interpreter and the library for good: each call adds one more."""

from __future__ import annotations

import atexit
import contextvars
import functools
import gc
import importlib.abc
import logging
import select
import signal
import sys
import types
from collections import deque
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from multiprocessing import util
from typing import Any, ClassVar

from cases.case import kept, leak, numbers, unique

NUMBERS = numbers()
LOGGER = logging.getLogger("leakcheck.cases")


def handler_added() -> None:
    LOGGER.addHandler(logging.NullHandler())
    LOGGER.debug("set up")


def handler_removed() -> None:
    handler = logging.NullHandler()
    LOGGER.addHandler(handler)
    LOGGER.debug("set up")
    LOGGER.removeHandler(handler)
    handler.close()


def logger_per_connection() -> None:
    logging.getLogger(f"leakcheck.cases.{next(NUMBERS)}").setLevel(logging.ERROR)


def logger_per_module() -> None:
    logging.getLogger(f"leakcheck.cases.{next(NUMBERS) % 4}").setLevel(logging.ERROR)


def forget_loggers() -> None:
    LOGGER.handlers.clear()
    known = LOGGER.manager.loggerDict
    for name in [name for name in known if name.startswith("leakcheck.cases.")]:
        del known[name]


def done(rows: list[int]) -> None:
    rows.clear()


def exit_registered() -> None:
    atexit.register(done, [next(NUMBERS)])


class Worker:
    """Polls, and is entered in a registry that forgets it once it is gone."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.finalizer = util.Finalize(self, self.poll.close)


def stop(worker: Worker) -> None:
    worker.finalizer()


def exit_keeps_worker() -> None:
    atexit.register(stop, Worker())


def worker_let_go() -> None:
    Worker()


class Signals:
    """Each call puts its own handler before the one that it found."""

    before: Any = None

    @classmethod
    def note(cls) -> None:
        cls.before = signal.getsignal(signal.SIGUSR1)

    @staticmethod
    def chained() -> None:
        earlier = signal.getsignal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda number, _frame: print(number, earlier))  # noqa: T201

    @staticmethod
    def put_back() -> None:
        earlier = signal.getsignal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda number, _frame: print(number, earlier))  # noqa: T201
        signal.signal(signal.SIGUSR1, earlier)

    @classmethod
    def restore(cls) -> None:
        signal.signal(signal.SIGUSR1, cls.before)


class Finder(importlib.abc.MetaPathFinder):
    """An import hook that finds nothing."""

    def find_spec(
        self, _name: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        return None


def import_hook_left() -> None:
    sys.meta_path.append(Finder())


def remove_import_hooks() -> None:
    sys.meta_path[:] = [one for one in sys.meta_path if type(one) is not Finder]


def search_path_grown() -> None:
    sys.path.append(f"/nonexistent/{unique('path')}")


def restore_search_path() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry.startswith("/nonexistent/leakcheck-")]


def module_left() -> None:
    module = types.ModuleType(unique("module"))
    exec("rows = [1, 2, 3]", module.__dict__)
    sys.modules[module.__name__] = module


def remove_modules() -> None:
    for name in [name for name in sys.modules if name.startswith("leakcheck-")]:
        del sys.modules[name]


class Dispatch:
    """Types made at run time, each with an implementation of its own."""

    show: Any = None

    @classmethod
    def begin(cls) -> None:
        cls.show = functools.singledispatch(lambda _value: "an object")

    @classmethod
    def per_request(cls) -> None:
        made = type("Row", (), {"__slots__": ()})
        cls.show.register(made, lambda _row: "a row")
        cls.show(made())

    @classmethod
    def once(cls) -> None:
        cls.show(type("Row", (), {"__slots__": ()})())

    @classmethod
    def end(cls) -> None:
        cls.show = None
        gc.collect()


class Variables:
    """Context variables live as long as the context that they are set in."""

    context = contextvars.Context()

    @classmethod
    def renew(cls) -> None:
        cls.context = contextvars.Context()

    @classmethod
    def made_per_call(cls) -> None:
        def handle() -> None:
            contextvars.ContextVar[list[int]](f"request_{next(NUMBERS)}").set([1, 2, 3])

        cls.context.run(handle)

    @classmethod
    def reset(cls) -> None:
        def handle() -> None:
            variable = contextvars.ContextVar[list[int]](f"request_{next(NUMBERS)}")
            variable.reset(variable.set([1, 2, 3]))

        cls.context.run(handle)


class Current:
    """The variables of the test's own context, from which none can be removed, beside a full list of recent calls."""

    recent: ClassVar[deque[list[str]]] = deque(maxlen=500)

    @classmethod
    def fill(cls) -> None:
        cls.recent.extend([f"call {number}"] for number in range(500))

    @classmethod
    def variable(cls) -> contextvars.ContextVar[str]:
        name = f"call_{next(NUMBERS)}"
        cls.recent.append([f"{name} began"])
        return contextvars.ContextVar[str](name)

    @classmethod
    def leave_set(cls) -> None:
        cls.variable().set("data")

    @classmethod
    def reset(cls) -> None:
        variable = cls.variable()
        variable.reset(variable.set("data"))


CASES = (
    leak("variable_left_set", "object block", Current.leave_set, Current.reset, setup=Current.fill,
         line=('cls.variable().set("data")', "contextvars.ContextVar[str](name)"), owner="context of the running thread"),
    leak("log_handler_added", "object", handler_added, handler_removed, forget_loggers,
         line="LOGGER.addHandler(logging.NullHandler())", owner="logging.getLogger('leakcheck.cases').handlers"),
    leak("logger_per_connection", "object", logger_per_connection, logger_per_module, forget_loggers,
         line="logging.getLogger(f", owner="Logger.manager.loggerDict"),
    kept("exit_registered", "object block", exit_registered, lambda: atexit.unregister(done),
         line="atexit.register(done", owner="atexit"),
    leak("exit_keeps_worker", "fd", exit_keeps_worker, worker_let_go, lambda: atexit.unregister(stop),
         line="self.poll = select.epoll()", owner="atexit"),
    leak("signal_handlers_chained", "object", Signals.chained, Signals.put_back, Signals.restore,
         setup=Signals.note, line="signal.signal(signal.SIGUSR1, lambda", owner="handler of SIGUSR1",
         process_wide=True),
    kept("import_hook_left", "object", import_hook_left, remove_import_hooks,
         line="sys.meta_path.append(Finder())", owner="sys.meta_path"),
    kept("search_path_grown", "block", search_path_grown, restore_search_path,
         line="sys.path.append(", owner="sys.path"),
    kept("module_left", "object", module_left, remove_modules,
         line=("module = types.ModuleType(", "exec(", "sys.modules[module.__name__] = module"), owner="sys.modules"),
    leak("dispatch_per_request", "object heap", Dispatch.per_request, Dispatch.once, Dispatch.end,
         setup=Dispatch.begin, line=('type("Row", ()', "cls.show.register(made"), owner="Dispatch.show"),
    leak("context_variable_per_call", "object block", Variables.made_per_call, Variables.reset, Variables.renew,
         line="contextvars.ContextVar[list[int]](", owner="Variables.context"),
)  # fmt: skip
