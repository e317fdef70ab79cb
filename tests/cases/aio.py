"""Tasks, handles and waiters on an event loop that lives as long as the program."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any
from weakref import WeakSet

from cases.case import Case, leak

TASKS: set[asyncio.Task[Any]] = set()
STREAMS: list[AsyncIterator[int]] = []
BEATS: WeakSet[Beat] = WeakSet()


class Loop:
    """The loop of the service, with a task that runs as long, a queue and an event."""

    loop: asyncio.AbstractEventLoop
    loading: asyncio.Task[None]
    queue: asyncio.Queue[list[int]]
    stopped: asyncio.Event

    @classmethod
    def start(cls) -> None:
        cls.loop = asyncio.new_event_loop()
        cls.loading = cls.loop.create_task(asyncio.sleep(3600))
        cls.queue = asyncio.Queue()
        cls.stopped = asyncio.Event()

    @classmethod
    def stop(cls) -> None:
        for task in asyncio.all_tasks(cls.loop):
            task.cancel()
        cls.turn()
        cls.loop.run_until_complete(cls.loop.shutdown_asyncgens())
        TASKS.clear()
        STREAMS.clear()
        cls.loop.close()
        cls.queue = asyncio.Queue()

    @classmethod
    def turn(cls) -> None:
        cls.loop.run_until_complete(asyncio.sleep(0))


def sleeper_forgotten() -> None:
    TASKS.add(Loop.loop.create_task(asyncio.sleep(3600)))
    Loop.turn()


def sleeper_cancelled() -> None:
    task = Loop.loop.create_task(asyncio.sleep(3600))
    TASKS.add(task)
    Loop.turn()
    task.add_done_callback(TASKS.discard)
    task.cancel()
    Loop.turn()
    Loop.turn()


def waiter_forgotten() -> None:
    # The event keeps the waiter alive, and the waiter its task: no other reference is needed.
    Loop.loop.create_task(Loop.stopped.wait())
    Loop.turn()


def waiter_times_out() -> None:
    async def wait() -> None:
        done, waiting = await asyncio.wait([asyncio.ensure_future(Loop.stopped.wait())], timeout=0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*done, *waiting, return_exceptions=True)

    Loop.loop.run_until_complete(wait())


def call_scheduled() -> None:
    Loop.loop.call_later(3600, print, [1, 2, 3])
    Loop.turn()


def call_made() -> None:
    Loop.loop.call_later(0, [1, 2, 3].clear)
    Loop.turn()
    Loop.turn()


class Beat:
    """A connection with a heartbeat, which is never stopped."""

    def __init__(self, seconds: float) -> None:
        self.ends, self.seconds = socket.socketpair(), seconds
        BEATS.add(self)

    def close(self) -> None:
        for end in self.ends:
            end.close()

    def arm(self) -> None:
        Loop.loop.call_later(self.seconds, self.beat)

    def beat(self) -> None:
        self.arm()

    def beat_here(self) -> None:
        Loop.loop.call_later(self.seconds, self.beat_here)


def sockets_until_call() -> None:
    beat = Beat(0)
    Loop.loop.call_later(32, beat.close)
    Loop.turn()


def beating() -> None:
    Beat(0.03).arm()
    Loop.turn()


def beating_slowly() -> None:
    Beat(32).beat_here()
    Loop.turn()


def beating_once() -> None:
    beat = Beat(0)
    Loop.loop.call_later(0, beat.close)
    Loop.turn()
    Loop.turn()


def stop_beating() -> None:
    for beat in list(BEATS):
        beat.close()
    Loop.stop()


def queue_never_drained() -> None:
    Loop.queue.put_nowait([1, 2, 3])


def queue_drained() -> None:
    Loop.queue.put_nowait([1, 2, 3])
    Loop.queue.get_nowait()


async def ticks() -> AsyncIterator[int]:
    for number in range(3):
        yield number


async def take_first(*, close: bool) -> None:
    stream = ticks()
    await stream.__anext__()
    if close:
        await stream.aclose()  # type: ignore[attr-defined]
        return
    STREAMS.append(stream)


def callback_added() -> None:
    done: list[asyncio.Task[None]] = []
    Loop.loading.add_done_callback(done.append)
    Loop.turn()


def callback_removed() -> None:
    done: list[asyncio.Task[None]] = []
    Loop.loading.add_done_callback(done.append)
    Loop.turn()
    Loop.loading.remove_done_callback(done.append)


CASES = (
    leak("sleeper_forgotten", "task object", sleeper_forgotten, sleeper_cancelled, Loop.stop,
         setup=Loop.start, line="create_task(asyncio.sleep(3600))", owner=(".TASKS", "Loop.loop._scheduled")),
    leak("waiter_forgotten", "task object", waiter_forgotten, waiter_times_out, Loop.stop,
         setup=Loop.start, line="create_task(Loop.stopped.wait())", owner="Loop.stopped._waiters"),
    leak("call_scheduled", "object", call_scheduled, call_made, Loop.stop,
         setup=Loop.start, line="call_later(3600", owner="Loop.loop._scheduled"),
    Case("sockets_until_call", clean=sockets_until_call, setup=Loop.start, teardown=stop_beating,
         doubt="the loop closes each pair after 32 s"),
    leak("beating", "fd object", beating, beating_once, stop_beating, setup=Loop.start, line="socket.socketpair()"),
    leak("beating_slowly", "fd object", beating_slowly, beating_once, stop_beating,
         setup=Loop.start, line="socket.socketpair()"),
    leak("queue_never_drained", "object", queue_never_drained, queue_drained, Loop.stop,
         setup=Loop.start, line="put_nowait([1, 2, 3])", owner="Loop.queue._queue"),
    leak("stream_suspended", "object",
         lambda: Loop.loop.run_until_complete(take_first(close=False)),
         lambda: Loop.loop.run_until_complete(take_first(close=True)),
         Loop.stop,
         setup=Loop.start, line=("stream = ticks()", "await stream.__anext__()", "STREAMS.append(stream)"),
         owner=".STREAMS"),
    leak("callback_added", "object", callback_added, callback_removed, Loop.stop,
         setup=Loop.start, line="Loop.loading.add_done_callback(", owner="Loop.loading._callbacks"),
)  # fmt: skip
