"""Descriptors: opened and kept, in Python and in C, on every path that forgets to close."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import select
import selectors
import socket
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO, Any

from cases import clib
from cases.case import drain, kept, leak, unique

FILES: list[IO[str]] = []
NUMBERS: array[int] = array("i")
SOCKETS: list[socket.socket] = []
SELECTORS: list[Any] = []
READERS: list[Iterator[str]] = []
STREAMS = clib.addresses()
LOOPS: list[asyncio.AbstractEventLoop] = []
CALLS = itertools.count()


def file_kept() -> None:
    FILES.append(open(os.devnull))


def file_in_a_with() -> None:
    with open(os.devnull) as file:
        file.read()


def pipe_half_closed() -> None:
    reading, writing = os.pipe()
    NUMBERS.append(writing)
    os.close(reading)


def pair_kept() -> None:
    left, right = socket.socketpair()
    left.sendall(b"?")
    right.recv(1)
    SOCKETS.append(right)
    left.close()


class Server:
    """Listens on an abstract address, which needs no file."""

    socket: socket.socket
    address: str

    @classmethod
    def listen(cls) -> None:
        cls.address = "\0" + unique("server")
        cls.socket = socket.socket(socket.AF_UNIX)
        cls.socket.bind(cls.address)
        cls.socket.listen()

    @classmethod
    def stop(cls) -> None:
        cls.socket.close()
        drain(SOCKETS, socket.socket.close)()


def connection_accepted() -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(Server.address)
        SOCKETS.append(Server.socket.accept()[0])


def connection_served() -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(Server.address)
        Server.socket.accept()[0].close()


def duplicate_in_c() -> None:
    NUMBERS.append(clib.dup(0))


def folder_in_c() -> None:
    STREAMS.append(clib.opendir(b"/"))


def epoll_kept() -> None:
    poll = select.epoll()
    poll.poll(0)
    SELECTORS.append(poll)


def selector_kept() -> None:
    SELECTORS.append(selectors.DefaultSelector())


def memfd_kept() -> None:
    NUMBERS.append(os.memfd_create(unique("memfd")))


def event_replaced() -> None:
    NUMBERS.append(os.eventfd(0))


def open_on_error() -> None:
    with contextlib.suppress(json.JSONDecodeError):
        file = open(os.devnull)
        FILES.append(file)
        json.load(file)
        FILES.remove(file)
        file.close()


def closed_on_error() -> None:
    with contextlib.suppress(json.JSONDecodeError), open(os.devnull) as file:
        FILES.append(file)
        try:
            json.load(file)
        finally:
            FILES.remove(file)


def every_fourth() -> None:
    number = os.open(os.devnull, os.O_RDONLY)
    if next(CALLS) % 4 == 0:
        NUMBERS.append(number)
        return
    os.close(number)


def every_one_closed() -> None:
    number = os.open(os.devnull, os.O_RDONLY)
    if next(CALLS) % 4 == 0:
        os.lseek(number, 0, os.SEEK_SET)
    os.close(number)


def lines() -> Iterator[str]:
    with open("/proc/self/status") as file:
        yield from file


def generator_suspended() -> None:
    reader = lines()
    next(reader)
    READERS.append(reader)


def loop_left_open() -> None:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    LOOPS.append(loop)


def unnamed_file_kept() -> None:
    FILES.append(tempfile.TemporaryFile("w+"))


close_numbers = drain(NUMBERS, os.close)
close_files = drain(FILES, lambda file: file.close())
close_selectors = drain(SELECTORS, lambda one: one.close())

CASES = (
    leak("file_kept", "fd", file_kept, file_in_a_with, close_files, line="open(os.devnull)", owner=".FILES"),
    kept("pipe_half_closed", "fd", pipe_half_closed, close_numbers, line="os.pipe()", owner=".NUMBERS"),
    kept("socket_pair_kept", "fd", pair_kept, drain(SOCKETS, socket.socket.close),
         line="socket.socketpair()", owner=".SOCKETS"),
    leak("connection_accepted", "fd", connection_accepted, connection_served, Server.stop,
         setup=Server.listen, line=".accept()", owner=".SOCKETS"),
    kept("duplicate_in_c", "fd", duplicate_in_c, close_numbers, line="clib.dup(0)", owner=".NUMBERS"),
    kept("folder_in_c", "fd", folder_in_c, drain(STREAMS, clib.closedir),
         line="clib.opendir(", owner=".STREAMS"),
    kept("epoll_kept", "fd", epoll_kept, close_selectors, line="select.epoll()", owner=".SELECTORS"),
    kept("selector_kept", "fd", selector_kept, close_selectors,
         line="selectors.DefaultSelector()", owner=".SELECTORS"),
    kept("memfd_kept", "fd", memfd_kept, close_numbers, line="os.memfd_create(", owner=".NUMBERS"),
    kept("event_replaced", "fd", event_replaced, close_numbers, line="os.eventfd(0)", owner=".NUMBERS"),
    leak("open_on_error", "fd", open_on_error, closed_on_error, close_files, line="open(os.devnull)", owner=".FILES"),
    leak("every_fourth_file", "fd", every_fourth, every_one_closed, close_numbers,
         line="os.open(os.devnull", owner=".NUMBERS"),
    kept("generator_suspended", "fd", generator_suspended,
         drain(READERS, lambda reader: reader.close()),  # type: ignore[attr-defined]
         line='open("/proc/self/status")', owner=".READERS"),
    kept("loop_left_open", "fd", loop_left_open, drain(LOOPS, lambda loop: loop.close()),
         line="asyncio.new_event_loop()", owner=".LOOPS"),
    kept("unnamed_file_kept", "fd", unnamed_file_kept, close_files,
         line="tempfile.TemporaryFile(", owner=".FILES"),
)  # fmt: skip
