"""Clean: descriptors, threads, processes, files and segments that are made and given back within a call."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from cases.case import Case, unique

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def program_run() -> None:
    assert subprocess.run(["echo", "done"], capture_output=True, check=True).stdout == b"done\n"


def files_made_and_removed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(4):
            (Path(folder) / f"part{number}").write_bytes(bytes(number * 1000))


def segment_made_and_unlinked() -> None:
    segment = SharedMemory(unique("transient"), create=True, size=20_000)
    other = SharedMemory(segment.name)
    assert other.size >= 20_000
    other.close()
    segment.close()
    segment.unlink()


def locks_made_and_dropped() -> None:
    with SPAWN.Lock(), FORK.Lock(), SPAWN.Semaphore(2):
        pass


def queue_between_processes() -> None:
    queue = FORK.SimpleQueue()
    queue.put([1, 2, 3])
    queue.get()
    queue.close()


def sockets_over_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _address = server.accept()
        with client, accepted:
            client.sendall(b"hello")
            accepted.recv(5)


def executor_each_time() -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(abs, range(6)))


def threads_joined() -> None:
    threads = [threading.Thread(target=sorted, args=([3, 1, 2],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def gathered() -> list[int]:
    async def one(number: int) -> int:
        await asyncio.sleep(0)
        return number

    return await asyncio.gather(*(one(number) for number in range(5)))


def loop_each_time() -> None:
    assert asyncio.run(gathered()) == [0, 1, 2, 3, 4]


def stack_unwound() -> None:
    with contextlib.ExitStack() as stack:
        for number in range(3):
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(bytes(number))
        stack.callback(len, "last")


def worker_joined() -> None:
    worker = FORK.Process(target=abs, args=(-1,))
    worker.start()
    worker.join()
    worker.close()


CASES = (
    Case("program_run", clean=program_run),
    Case("files_made_and_removed", clean=files_made_and_removed),
    Case("segment_made_and_unlinked", clean=segment_made_and_unlinked),
    Case("locks_made_and_dropped", clean=locks_made_and_dropped),
    Case("queue_between_processes", clean=queue_between_processes),
    Case("sockets_over_loopback", clean=sockets_over_loopback),
    Case("executor_each_time", clean=executor_each_time),
    Case("threads_joined", clean=threads_joined),
    Case("loop_each_time", clean=loop_each_time),
    Case("stack_unwound", clean=stack_unwound),
    Case("worker_joined", clean=worker_joined),
)
