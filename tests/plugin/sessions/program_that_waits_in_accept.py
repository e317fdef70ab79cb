"""A thread waits in accept, where no listing shows the descriptor."""

from __future__ import annotations

import os
import socket
import threading

import pytest

LISTENER = socket.create_server(("127.0.0.1", 0))
LEAKS = True


def descriptors() -> int:
    return os.stat("/proc/self/fd").st_size


def accept() -> None:
    connection, address = LISTENER.accept()
    connection.close()


def serve() -> threading.Thread:
    before = descriptors()
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()  # of test_serve LEAK
    while descriptors() == before:
        pass
    return thread


@pytest.mark.fd_budget(0)
def test_serve() -> None:
    thread = serve()
    if not LEAKS:
        socket.create_connection(LISTENER.getsockname()).close()
        thread.join()
