"""Threads that are never ended: started in Python, by the library, and in C."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from logging.handlers import QueueHandler, QueueListener
from multiprocessing.pool import ThreadPool

from cases import clib
from cases.case import Case, drain, kept, leak

STOP = threading.Event()
THREADS: list[threading.Thread] = []
TIMERS: list[threading.Timer] = []
POOLS: list[ThreadPoolExecutor] = []
OLD_POOLS: list[ThreadPool] = []
QUEUES: list[tuple[threading.Thread, queue.SimpleQueue[int | None]]] = []
LISTENERS: list[QueueListener] = []
HANDLES = clib.addresses()
LOOPS: list[tuple[threading.Thread, asyncio.AbstractEventLoop]] = []


def waiting_for_ever() -> None:
    thread = threading.Thread(target=STOP.wait, daemon=True)
    thread.start()
    THREADS.append(thread)


class Service:
    """What no list holds: its thread does."""

    def serve(self) -> None:
        STOP.wait()


def thread_forgotten() -> None:
    threading.Thread(target=Service().serve, name="forgotten").start()


def end_forgotten() -> None:
    STOP.set()
    for thread in threading.enumerate():
        if thread.name == "forgotten":
            thread.join()
    STOP.clear()


def joined() -> None:
    thread = threading.Thread(target=STOP.is_set, daemon=True)
    thread.start()
    thread.join()


def end_waiting() -> None:
    STOP.set()
    drain(THREADS, threading.Thread.join)()
    STOP.clear()


def end_timer(timer: threading.Timer) -> None:
    timer.cancel()
    timer.join()


def timer_armed() -> None:
    timer = threading.Timer(3600, STOP.set)
    timer.daemon = True
    timer.start()
    TIMERS.append(timer)


def close_pipe(*ends: int) -> None:
    for end in ends:
        os.close(end)


def pipe_until(seconds: float) -> None:
    timer = threading.Timer(seconds, close_pipe, os.pipe())
    timer.name = "pipe"
    timer.start()


def pipe_until_cancelled() -> None:
    ends = os.pipe()
    timer = threading.Timer(3600, close_pipe, ends)
    timer.start()
    end_timer(timer)
    close_pipe(*ends)


def end_timers_of_pipes() -> None:
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer) and timer.function is close_pipe:
            end_timer(timer)
            close_pipe(*timer.args)


def cancelled_timer_kept() -> None:
    timer = threading.Timer(32, print, socket.socketpair())
    timer.start()
    end_timer(timer)
    TIMERS.append(timer)


def cancelled_timer_closes() -> None:
    pair = socket.socketpair()
    timer = threading.Timer(32, print, pair)
    timer.start()
    end_timer(timer)
    close_pair(pair)


def close_pair(pair: Iterable[socket.socket]) -> None:
    for end in pair:
        end.close()


def executor_not_shut() -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(abs, -1).result()
    POOLS.append(pool)


def thread_pool_not_closed() -> None:
    pool = ThreadPool(1)
    pool.apply(abs, (-1,))
    OLD_POOLS.append(pool)


def end_pool(pool: ThreadPool) -> None:
    # Not by `terminate`: CPython's may wait for ever for the thread that hands out tasks.
    pool.close()
    pool.join()


def work_off(work: queue.SimpleQueue[int | None]) -> None:
    while work.get() is not None:
        pass


def start_worker() -> tuple[threading.Thread, queue.SimpleQueue[int | None]]:
    work: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    thread = threading.Thread(target=work_off, args=(work,), daemon=True)
    thread.start()
    work.put(1)
    return thread, work


def end_worker(worker: tuple[threading.Thread, queue.SimpleQueue[int | None]]) -> None:
    worker[1].put(None)
    worker[0].join()


def worker_without_sentinel() -> None:
    QUEUES.append(start_worker())


def log_listener_running() -> None:
    listener = QueueListener(queue.SimpleQueue(), logging.NullHandler())
    listener.start()
    QueueHandler(listener.queue).emit(logging.makeLogRecord({"msg": "once"}))
    LISTENERS.append(listener)


def thread_in_c() -> None:
    HANDLES.append(clib.start_thread(clib.PAUSE))


def start_loop() -> tuple[threading.Thread, asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
    return thread, loop


def end_loop(running: tuple[threading.Thread, asyncio.AbstractEventLoop]) -> None:
    thread, loop = running
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def loop_in_a_thread() -> None:
    LOOPS.append(start_loop())


CASES = (
    leak("thread_waiting_for_ever", "thread", waiting_for_ever, joined, end_waiting,
         line="thread.start()", owner=".THREADS"),
    leak("thread_forgotten", "thread", thread_forgotten, joined, end_forgotten, line=".start()"),
    kept("timer_armed", "thread", timer_armed, drain(TIMERS, end_timer),
         line="timer.start()", owner=".TIMERS"),
    leak("pipe_until_late_timer", "fd thread", partial(pipe_until, 3600), pipe_until_cancelled, end_timers_of_pipes,
         line=("os.pipe()", ".start()")),
    Case("pipe_until_timer", clean=partial(pipe_until, 32), teardown=end_timers_of_pipes,
         doubt="a timer closes each pipe after 32 s"),
    leak("cancelled_timer_kept", "fd object", cancelled_timer_kept, cancelled_timer_closes,
         drain(TIMERS, lambda timer: close_pair(timer.args)), line="socket.socketpair()", owner=".TIMERS"),
    kept("executor_not_shut", "thread", executor_not_shut, drain(POOLS, ThreadPoolExecutor.shutdown),
         line="pool.submit(abs", owner=".POOLS"),
    kept("thread_pool_not_closed", "fd thread", thread_pool_not_closed, drain(OLD_POOLS, end_pool),
         line="ThreadPool(1)", owner=".OLD_POOLS"),
    kept("worker_without_sentinel", "thread", worker_without_sentinel, drain(QUEUES, end_worker),
         line="thread.start()", owner=".QUEUES"),
    kept("log_listener_running", "thread", log_listener_running,
         drain(LISTENERS, QueueListener.stop),
         line="listener.start()", owner=".LISTENERS"),
    kept("thread_in_c", "thread", thread_in_c, drain(HANDLES, clib.stop_thread),
         line=("pthread_create(", "clib.start_thread(clib.PAUSE)"), owner=".HANDLES"),
    kept("loop_in_a_thread", "fd thread", loop_in_a_thread, drain(LOOPS, end_loop),
         line=("asyncio.new_event_loop()", "thread.start()"), owner=".LOOPS"),
)  # fmt: skip
