"""Given back, but by the garbage collector alone: a descriptor in a reference cycle waits for it."""

from __future__ import annotations

import os
import select

from cases.case import leak


class Log:
    """A file, and a writer that knows its log: a cycle."""

    def __init__(self) -> None:
        self.number = os.open(os.devnull, os.O_WRONLY)
        self.write = self.to_number

    def to_number(self, text: bytes) -> int:
        return os.write(self.number, text)

    def close(self) -> None:
        if self.number >= 0:
            os.close(self.number)
            self.number = -1

    __del__ = close


def log_not_closed() -> None:
    Log().write(b"a line")


def log_closed() -> None:
    log = Log()
    log.write(b"a line")
    log.close()


class Watch:
    """Polls, and calls itself back."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.callbacks = {0: self.ready}

    def ready(self) -> bool:
        return bool(self.poll.poll(0))


def watch_not_closed() -> None:
    Watch().ready()


def watch_closed() -> None:
    watch = Watch()
    watch.ready()
    watch.poll.close()


class Pool:
    """Polls for its engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.poll = select.epoll()


class Engine:
    """Has a pool that knows it: a cycle."""

    def __init__(self) -> None:
        self.pool = Pool(self)


class Bind:
    """A cycle as well, and nothing hangs from it."""

    def __init__(self) -> None:
        self.known = {self}


def engine_not_closed() -> None:
    Engine()
    Bind()


def engine_closed() -> None:
    engine = Engine()
    engine.pool.poll.close()
    Bind()


def frame_in_a_cycle() -> None:
    poll = select.epoll()
    try:
        poll.poll(0)
        raise LookupError
    except LookupError as error:
        # The error knows the frame, and the frame the error.
        kept = error
    assert kept.__traceback__ is not None


def frame_let_go() -> None:
    poll = select.epoll()
    try:
        poll.poll(0)
        raise LookupError
    except LookupError as error:
        assert error.__traceback__ is not None


CASES = (
    leak("log_in_a_cycle", "fd", log_not_closed, log_closed,
         line="os.open(os.devnull, os.O_WRONLY)", owner="cycle of Log, method", verdict="unclosed"),
    leak("watch_in_a_cycle", "fd", watch_not_closed, watch_closed,
         line="select.epoll()", owner="cycle of Watch, method", verdict="unclosed"),
    leak("engine_beside_a_cycle", "fd", engine_not_closed, engine_closed,
         line="self.poll = select.epoll()", owner="cycle of Engine, Pool", verdict="unclosed"),
    leak("frame_in_a_cycle", "fd", frame_in_a_cycle, frame_let_go,
         line="select.epoll()", owner="cycle of LookupError, traceback, frame of frame_in_a_cycle() local 'kept'",
         verdict="unclosed"),
)  # fmt: skip
