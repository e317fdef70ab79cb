"""The package under test. Each function that a test calls leaks once per call, or in each second call."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from typing import Any

OPENED: list[int] = []
SOCKETS: list[socket.socket] = []
THREADS: list[threading.Thread] = []
ORDERS: list[Any] = []
NAMES: list[bytes] = []
PAGES: list[bytearray] = []
DRAFTS: list[str] = []
SEEN: list[int] = []
WAIT = threading.Event()


def open_log() -> None:
    OPENED.append(os.open(__file__, os.O_RDONLY))


def connect() -> None:
    SOCKETS.append(socket.socket())


def watch() -> None:
    thread = threading.Thread(target=WAIT.wait, daemon=True)
    thread.start()
    THREADS.append(thread)


def order() -> None:
    ORDERS.append({"items": []})


def name(calls: list[int] = [0]) -> None:
    calls[0] += 1
    NAMES.append(b"%09d" % calls[0])


def render() -> None:
    PAGES.append(bytearray(3000))


def draft() -> None:
    handle, path = tempfile.mkstemp(prefix="draft")
    os.close(handle)
    DRAFTS.append(path)


def visit(calls: list[int] = [0]) -> None:
    calls[0] += 1
    if calls[0] % 2:
        SEEN.append(os.open(__file__, os.O_RDONLY))


class Client:
    history: list[Any] = []

    def send(self) -> None:
        self.history.append([self])
