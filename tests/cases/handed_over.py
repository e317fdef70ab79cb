"""Work that the test hands to a thread or a process that lives on, and which leaks there.

The line that leaks in the thread is right, and so is the line that hands the work over. The line that waits for the end
of the work is wrong.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import queue
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from math import inf
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.pool import ThreadPool
from multiprocessing.process import BaseProcess
from typing import IO, Any, ClassVar

from cases.case import drain, in_turn, leak

FORK: ForkContext = multiprocessing.get_context("fork")
SPAWN: SpawnContext = multiprocessing.get_context("spawn")
FILES: list[IO[str]] = []
NUMBERS: array[int] = array("i")
ROWS: list[Any] = []
BUFFERS: list[bytes] = []
EXECUTORS: list[ProcessPoolExecutor] = []
CHILDREN: list[asyncio.subprocess.Process] = []

close_numbers = drain(NUMBERS, os.close)


def open_and_keep() -> None:
    FILES.append(open(os.devnull))


def open_and_close() -> None:
    with open(os.devnull) as file:
        file.read()


class Pools:
    """Threads that live as long as the program, each with one more way to hand work to it."""

    executor: ThreadPoolExecutor
    pool: ThreadPool
    loop: asyncio.AbstractEventLoop

    @classmethod
    def start(cls) -> None:
        cls.executor = ThreadPoolExecutor(1)
        cls.executor.submit(abs, -1).result()
        cls.pool = ThreadPool(1)
        cls.pool.apply(abs, (-1,))
        cls.loop = asyncio.new_event_loop()

    @classmethod
    def stop(cls) -> None:
        cls.loop.run_until_complete(cls.loop.shutdown_default_executor())
        cls.loop.close()
        cls.executor.shutdown()
        cls.pool.close()
        cls.pool.join()
        close_numbers()
        drain(FILES, lambda file: file.close())()
        ROWS.clear()
        BUFFERS.clear()


def hand_to_executor(work: Callable[[], None]) -> None:
    future = Pools.executor.submit(work)
    future.result()


def number_from_executor() -> None:
    NUMBERS.append(Pools.executor.submit(os.open, os.devnull, os.O_RDONLY).result())


def number_from_pool() -> None:
    NUMBERS.append(Pools.pool.apply(os.open, (os.devnull, os.O_RDONLY)))


async def open_beside_loop() -> int:
    return await asyncio.get_running_loop().run_in_executor(None, os.open, os.devnull, os.O_RDONLY)


def number_from_loop() -> None:
    NUMBERS.append(Pools.loop.run_until_complete(open_beside_loop()))


def rows_parsed_in_executor() -> None:
    ROWS.extend(Pools.executor.map(json.loads, ["[1, 2, 3]"]))


def buffer_made_in_executor() -> None:
    BUFFERS.append(Pools.executor.submit(bytes, 5000).result())


def run_in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Consumer:
    """A thread that takes its work from a queue."""

    jobs: queue.Queue[Callable[[], None] | None]
    thread: threading.Thread

    @classmethod
    def start(cls) -> None:
        cls.jobs = queue.Queue()
        cls.thread = threading.Thread(target=cls.consume, daemon=True)
        cls.thread.start()

    @classmethod
    def consume(cls) -> None:
        while (job := cls.jobs.get()) is not None:
            job()
            cls.jobs.task_done()

    @classmethod
    def stop(cls) -> None:
        cls.jobs.put(None)
        cls.thread.join()
        drain(FILES, lambda file: file.close())()


def hand_to_consumer(work: Callable[[], None]) -> None:
    Consumer.jobs.put(work)
    Consumer.jobs.join()


class Reaper:
    """A thread that closes what it has got a while later, as a server does with a connection."""

    got: ClassVar[deque[tuple[float, int]]] = deque()
    stop: threading.Event
    thread: threading.Thread

    @classmethod
    def start(cls) -> None:
        cls.stop = threading.Event()
        cls.thread = threading.Thread(target=cls.reap)
        cls.thread.start()

    @classmethod
    def reap(cls) -> None:
        while not cls.stop.wait(0.01):
            while cls.got and cls.got[0][0] < time.monotonic():
                os.close(cls.got.popleft()[1])

    @classmethod
    def end(cls) -> None:
        cls.stop.set()
        cls.thread.join()
        drain(cls.got, lambda one: os.close(one[1]))()


def hand_to_reaper(seconds: float) -> None:
    Reaper.got.append((time.monotonic() + seconds, os.open(os.devnull, os.O_RDONLY)))
    # So that the process does not run out of them.
    time.sleep(0.005)


def executor_of_processes() -> ProcessPoolExecutor:
    executor = ProcessPoolExecutor(1, mp_context=FORK)
    executor.submit(abs, -1).result()
    return executor


def process_executor_not_shut() -> None:
    EXECUTORS.append(executor_of_processes())


def process_executor_shut() -> None:
    executor_of_processes().shutdown()


def serve(requests: Connection) -> None:
    """Do what a worker process is asked to do, until it is asked for nothing more."""
    files = []
    while request := requests.recv():
        file = open(os.devnull)
        if request == "keep":
            files.append(file)
        else:
            file.close()
        requests.send("done")


class Worker:
    """A process that serves requests."""

    process: BaseProcess
    requests: ClassVar[Connection]

    @classmethod
    def start(cls, context: ForkContext | SpawnContext) -> None:
        cls.requests, requests = context.Pipe()
        cls.process = context.Process(target=serve, args=(requests,), daemon=True)
        cls.process.start()
        requests.close()
        cls.ask("close")

    @classmethod
    def ask(cls, request: str) -> None:
        cls.requests.send(request)
        cls.requests.recv()

    @classmethod
    def stop(cls) -> None:
        cls.requests.send("")
        cls.process.join()
        cls.process.close()
        cls.requests.close()


class Loop:
    """An event loop in a thread of its own, which lives as long as the program."""

    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @classmethod
    def start(cls) -> None:
        cls.loop = asyncio.new_event_loop()
        cls.thread = threading.Thread(target=cls.loop.run_forever, daemon=True)
        cls.thread.start()

    @classmethod
    def stop(cls) -> None:
        while CHILDREN:
            asyncio.run_coroutine_threadsafe(end(CHILDREN.pop()), cls.loop).result()
        cls.loop.call_soon_threadsafe(cls.loop.stop)
        cls.thread.join()
        cls.loop.close()
        drain(FILES, lambda file: file.close())()


async def end(child: asyncio.subprocess.Process) -> None:
    child.kill()
    await child.wait()


async def perform(work: Callable[[], None]) -> None:
    work()


def hand_to_loop(work: Callable[[], None]) -> None:
    asyncio.run_coroutine_threadsafe(perform(work), Loop.loop).result()


async def start_child() -> None:
    CHILDREN.append(await asyncio.create_subprocess_exec("sleep", "1000"))


async def start_and_end_child() -> None:
    await start_child()
    await end(CHILDREN.pop())


def child_of_loop() -> None:
    asyncio.run_coroutine_threadsafe(start_child(), Loop.loop).result()


def child_of_loop_ended() -> None:
    asyncio.run_coroutine_threadsafe(start_and_end_child(), Loop.loop).result()


CASES = (
    leak("file_opened_in_executor", "fd", partial(hand_to_executor, open_and_keep),
         partial(hand_to_executor, open_and_close), Pools.stop,
         setup=Pools.start, line=("FILES.append(open(os.devnull))", "Pools.executor.submit(work)"), owner=".FILES"),
    leak("number_from_executor", "fd", number_from_executor, in_turn(number_from_executor, close_numbers), Pools.stop,
         setup=Pools.start, line="NUMBERS.append(Pools.executor.submit(", owner=".NUMBERS"),
    leak("number_from_pool", "fd", number_from_pool, in_turn(number_from_pool, close_numbers), Pools.stop,
         setup=Pools.start, line="NUMBERS.append(Pools.pool.apply(", owner=".NUMBERS"),
    leak("number_from_loop", "fd", number_from_loop, in_turn(number_from_loop, close_numbers), Pools.stop,
         setup=Pools.start, line=("run_in_executor(None, os.open", "NUMBERS.append(Pools.loop.run_until_complete("),
         owner=".NUMBERS"),
    leak("rows_parsed_in_executor", "object block", rows_parsed_in_executor,
         in_turn(rows_parsed_in_executor, ROWS.clear), Pools.stop,
         setup=Pools.start, line="ROWS.extend(Pools.executor.map(", owner=".ROWS"),
    leak("buffer_made_in_executor", "heap", buffer_made_in_executor,
         in_turn(buffer_made_in_executor, BUFFERS.clear), Pools.stop,
         setup=Pools.start, line="BUFFERS.append(Pools.executor.submit(", owner=".BUFFERS"),
    leak("file_opened_in_a_thread", "fd", partial(run_in_a_thread, open_and_keep),
         partial(run_in_a_thread, open_and_close), drain(FILES, lambda file: file.close()),
         line="FILES.append(open(os.devnull))", owner=".FILES"),
    leak("file_opened_by_a_consumer", "fd", partial(hand_to_consumer, open_and_keep),
         partial(hand_to_consumer, open_and_close), Consumer.stop,
         setup=Consumer.start, line=("FILES.append(open(os.devnull))", "Consumer.jobs.put(work)"), owner=".FILES"),
    leak("number_closed_late_by_a_thread", "fd", partial(hand_to_reaper, inf), partial(hand_to_reaper, 0.6),
         Reaper.end,
         setup=Reaper.start, line="Reaper.got.append(", owner="Reaper.got",
         doubt="how many wait for the thread varies on a busy machine", timed=True),
    leak("file_opened_in_loop_of_a_thread", "fd", partial(hand_to_loop, open_and_keep),
         partial(hand_to_loop, open_and_close), Loop.stop,
         setup=Loop.start, line=("FILES.append(open(os.devnull))", "run_coroutine_threadsafe(perform(work)"),
         owner=".FILES"),
    leak("child_started_in_loop_of_a_thread", "process fd thread", child_of_loop, child_of_loop_ended, Loop.stop,
         setup=Loop.start, line=("create_subprocess_exec(", "run_coroutine_threadsafe(start_child()"),
         owner=".CHILDREN"),
    leak("process_executor_not_shut", "fd thread process", process_executor_not_shut, process_executor_shut,
         drain(EXECUTORS, ProcessPoolExecutor.shutdown),
         line=("ProcessPoolExecutor(1", "executor.submit(abs"), owner=".EXECUTORS"),
    leak("file_kept_in_forked_worker", "fd", partial(Worker.ask, "keep"), partial(Worker.ask, "close"), Worker.stop,
         setup=partial(Worker.start, FORK), line="file = open(os.devnull)"),
    leak("file_kept_in_spawned_worker", "fd", partial(Worker.ask, "keep"), partial(Worker.ask, "close"), Worker.stop,
         setup=partial(Worker.start, SPAWN), line="file = open(os.devnull)"),
)  # fmt: skip
