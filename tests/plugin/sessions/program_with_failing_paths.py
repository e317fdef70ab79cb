"""A program that leaks if one of its calls raises: each function has a leaky and a fixed arm. A comment marks each leak."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pickle
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

LOOP = asyncio.new_event_loop()
OPEN: set[object] = set()
HANDLERS: list[object] = []
IDLE: list[int] = []
END = threading.Event()


class Connection:
    """A pool knows it from the moment at which it connects."""

    def __init__(self, address: str, *, fixed: bool) -> None:
        self.socket = socket.socket(socket.AF_UNIX)  # of handshake
        self.socket.connect(address)
        OPEN.add(self)
        try:
            self.socket.sendall(b"hello")
        except OSError:
            if fixed:
                self.close()
            raise

    def close(self) -> None:
        OPEN.discard(self)
        self.socket.close()


def handshake(*, fixed: bool, folder: Path) -> None:
    address = str(folder / "socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(address)
        server.listen()
        Connection(address, fixed=fixed).close()


def save(*, fixed: bool, folder: Path) -> None:
    """Write a file beside the target, and rename it; a write that fails leaves it."""
    descriptor, name = tempfile.mkstemp()  # of save
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump({"a": 1}, file)
        shutil.move(name, f"{folder}/saved")
    except BaseException:
        if fixed:
            os.unlink(name)  # not Path.unlink: a path interns its parts, which Python 3.12.1 never frees
        raise


def unpack(*, fixed: bool, **_others: object) -> None:
    """Copy files into a temporary folder; a copy that fails leaves it."""
    target = tempfile.mkdtemp()  # of unpack
    try:
        shutil.copyfile(__file__, f"{target}/copy")
    except OSError:
        if fixed:
            shutil.rmtree(target)
        raise
    shutil.rmtree(target)


def locked(*, fixed: bool, folder: Path) -> None:
    """Hold a lock on a file while the state is written."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)  # of locked
    fcntl.flock(lock, fcntl.LOCK_SH)
    if fixed:
        try:
            json.dumps({})
        finally:
            os.close(lock)
    else:
        json.dumps({})
        os.close(lock)


def serve(*, fixed: bool, folder: Path) -> None:
    """Start a worker, then open what it needs."""
    end = threading.Event()
    worker = threading.Thread(target=end.wait, daemon=True)
    worker.start()  # of serve
    try:
        log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    except OSError:
        if fixed:
            end.set()
            worker.join()
        raise
    os.close(log)
    end.set()
    worker.join()


def load(*, fixed: bool, **_others: object) -> None:
    """Read a file to its end, and parse it before it is closed."""
    descriptor = os.open(__file__, os.O_RDONLY)  # of load
    if fixed:
        with os.fdopen(descriptor) as file:
            json.loads(file.read()[:0] or "{}")
        return
    json.loads("{}")
    os.close(descriptor)


def shards(*, fixed: bool, **_others: object) -> None:
    """Open three files; if the last one cannot be opened, the others stay open."""
    if fixed:
        with ExitStack() as stack:
            for _ in range(3):
                stack.callback(os.close, os.open(__file__, os.O_RDONLY))
        return
    opened = [os.open(__file__, os.O_RDONLY) for _ in range(3)]  # of shards
    for one in opened:
        os.close(one)


def run_child(*, fixed: bool, **_others: object) -> None:
    """Wait for the output of a child process."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)  # of run_child
    OPEN.add(child)
    try:
        child.communicate(b"\n")
    except OSError:
        if fixed:
            child.kill()
            child.communicate()
            OPEN.discard(child)
        raise
    OPEN.discard(child)


def pipe(*, fixed: bool, **_others: object) -> None:
    """Make a pipe for a child process that may not start."""
    reading, writing = os.pipe()  # of pipe
    try:
        with subprocess.Popen(["/bin/true"], stdout=writing):
            pass
    except OSError:
        if fixed:
            os.close(reading)
            os.close(writing)
        raise
    os.close(reading)
    os.close(writing)


def called_back() -> None:
    """Stand for what the user of the program has registered."""


def dispatch(*, fixed: bool, call: Callable[[], None] = called_back, **_others: object) -> None:
    """Note a handler while it runs."""
    handler = bytearray(5000)  # of dispatch
    HANDLERS.append(handler)
    if fixed:
        try:
            call()
        finally:
            HANDLERS.remove(handler)
    else:
        call()
        HANDLERS.remove(handler)


def share(*, fixed: bool, **_others: object) -> None:
    """Fill a segment of shared memory; it outlives the process if that fails."""
    segment = SharedMemory(create=True, size=64)  # of share
    try:
        data = pickle.dumps(1)  # in 3.15, the tracker of segments calls json.dumps itself
        memoryview(segment.buf or b"")[: len(data)] = data
    except ValueError:
        segment.close()
        if fixed:
            segment.unlink()
        raise
    segment.close()
    segment.unlink()


async def fetch() -> None:
    json.loads("{}")


async def both(*, fixed: bool) -> None:
    listening = asyncio.ensure_future(asyncio.sleep(3600))  # of gather
    OPEN.add(listening)
    try:
        await fetch()
    finally:
        if fixed or sys.exc_info()[0] is None:
            listening.cancel()
            OPEN.discard(listening)
            with suppress(asyncio.CancelledError):
                await listening


def gather(*, fixed: bool, **_others: object) -> None:
    LOOP.run_until_complete(both(fixed=fixed))


async def wait_for_reply(*, fixed: bool) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)  # of reply
    try:
        await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        if fixed:
            os.close(descriptor)
        raise
    os.close(descriptor)


def reply(*, fixed: bool, **_others: object) -> None:
    LOOP.run_until_complete(wait_for_reply(fixed=fixed))


class Session:
    """What is made before `__aenter__` returns is released by nothing if that is cancelled."""

    def __init__(self, *, fixed: bool) -> None:
        self.fixed = fixed

    async def __aenter__(self) -> None:
        self.descriptor = os.open(os.devnull, os.O_RDONLY)  # of session
        try:
            await asyncio.sleep(0.001)
        except BaseException:
            if self.fixed:
                os.close(self.descriptor)
            raise

    async def __aexit__(self, *_: object) -> None:
        os.close(self.descriptor)


async def use_session(*, fixed: bool) -> None:
    async with Session(fixed=fixed):
        await asyncio.sleep(0.001)


def session(*, fixed: bool, **_others: object) -> None:
    LOOP.run_until_complete(use_session(fixed=fixed))


async def list_batches(*, fixed: bool) -> AsyncGenerator[int, None]:
    descriptor = os.open(os.devnull, os.O_RDONLY)  # of batches
    try:
        yield 1
        yield 2
    finally:
        if fixed or sys.exc_info()[0] is None:
            os.close(descriptor)


async def read_batches(*, fixed: bool) -> None:
    async with aclosing(list_batches(fixed=fixed)) as batches:
        async for _batch in batches:
            await asyncio.sleep(0.001)


def batches(*, fixed: bool, **_others: object) -> None:
    LOOP.run_until_complete(read_batches(fixed=fixed))


def workers(*, fixed: bool, **_others: object) -> None:
    """Start two threads; if the second one cannot start, the first one waits for ever."""
    end, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(2):
            worker = threading.Thread(target=end.wait, daemon=True)
            worker.start()  # of workers
            started.append(worker)
    finally:
        if fixed or sys.exc_info()[0] is None:
            end.set()
            for worker in started:
                worker.join()


def request(*, fixed: bool, **_others: object) -> None:
    """Take a connection out of a pool, which opens another one if it is empty."""
    connection = IDLE.pop() if IDLE else os.open(os.devnull, os.O_WRONLY)  # of request
    try:
        os.write(connection, b"hello")
    except OSError:
        if fixed:
            IDLE.append(connection)
        raise
    IDLE.append(connection)


async def wait_for_child(*, fixed: bool) -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)  # of follow
    OPEN.add(child)
    try:
        await asyncio.sleep(0.001)
    finally:
        if fixed or sys.exc_info()[0] is None:
            child.communicate()
            OPEN.discard(child)


def follow(*, fixed: bool, **_others: object) -> None:
    LOOP.run_until_complete(wait_for_child(fixed=fixed))


def prefetched(*, fixed: bool) -> Generator[int, None, None]:
    """Fill a queue in a thread, which waits for ever if nothing takes its items (allenai/OLMo-core 721)."""
    items, end = queue.Queue[int | None](maxsize=1), threading.Event()

    def fill() -> None:
        for one in (1, 2, None):
            while not end.is_set():
                with suppress(queue.Full):
                    items.put(one, timeout=0.01 if fixed else None)
                    break

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()  # of prefetch
    try:
        while (item := items.get()) is not None:
            yield item
        filling.join()
    finally:
        if fixed:
            end.set()
            filling.join()


def prefetch(*, fixed: bool, **_others: object) -> None:
    for _item in prefetched(fixed=fixed):
        pass


@contextmanager
def working_folder(*, fixed: bool) -> Generator[str, None, None]:
    """Make a folder for the body of a `with` statement; it remains if that raises."""
    folder = tempfile.mkdtemp()  # of work
    try:
        yield folder
    finally:
        if fixed or sys.exc_info()[0] is None:
            shutil.rmtree(folder)


def work(*, fixed: bool, **_others: object) -> None:
    with working_folder(fixed=fixed) as folder:
        os.listdir(folder)


async def lines(*, fixed: bool) -> AsyncGenerator[int, None]:
    """Hand out a response as it arrives, and close the connection after its last line."""
    descriptor = os.open(os.devnull, os.O_RDONLY)  # of stream
    try:
        for number in range(2):
            await asyncio.sleep(0)
            yield number
    finally:
        if fixed or sys.exc_info()[0] is None:
            os.close(descriptor)


async def read_stream(*, fixed: bool) -> None:
    if fixed:
        async with aclosing(lines(fixed=True)) as arriving:
            async for _line in arriving:
                pass
        return
    async for _line in lines(fixed=False):
        pass


def stream(*, fixed: bool, **_others: object) -> None:
    LOOP.run_until_complete(read_stream(fixed=fixed))
