"""A program whose calls may fail."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator

LOCK = threading.Lock()
COUNT: list[int | None] = []


def read(path: str = "/dev/zero") -> bytes:
    descriptor = os.open(path, os.O_RDONLY)  # of the file
    text = os.read(descriptor, 1)  # of the text
    os.close(descriptor)
    return text


def read_safely(path: str = "/dev/zero") -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1)  # of the safe text
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def open_many(number: int) -> None:
    for _ in range(number):
        os.close(os.open("/dev/zero", os.O_RDONLY))


def read_in_turns() -> None:
    COUNT.append(None)
    if len(COUNT) % 3 or len(COUNT) < 30:
        read_safely()


def read_with_lock() -> None:
    LOCK.acquire()  # of the lock
    read_safely()
    json.loads("1")
    LOCK.release()


def raise_in_turns() -> None:
    COUNT.append(None)
    try:
        json.loads("1")
    except ValueError:
        raise (KeyError if len(COUNT) % 2 else IndexError)


def parse_open_file() -> None:
    file = open("/dev/zero", "rb")
    json.loads("1")
    file.close()


def parse_and_catch() -> None:
    file = open("/dev/zero", "rb")
    try:
        json.loads("1")
    except ValueError:
        return
    file.close()


def chunks() -> Iterator[bytes]:
    descriptor = os.open("/dev/zero", os.O_RDONLY)  # of the chunks
    for _ in range(2):
        yield os.read(descriptor, 1)
    os.close(descriptor)


def chunks_safely() -> Iterator[bytes]:
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        for _ in range(2):
            yield os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def leak_twice() -> None:
    kept = []
    for _ in range(2):
        kept.append(os.open("/dev/zero", os.O_RDONLY))
        kept.append(json.loads("1"))
    for one in kept[::2]:
        os.close(one)
    first = os.dup(0)
    os.read(os.open("/dev/null", os.O_RDONLY) if first is None else first, 0)  # type: ignore[redundant-expr]
    os.close(first)


def read_json() -> None:
    try:
        json.loads("1")
    except ValueError:
        pass


def remember() -> None:
    try:
        json.loads("1")
    except ValueError:
        if not COUNT:
            COUNT.append(os.open("/dev/zero", os.O_RDONLY))


class Client:
    def __init__(self) -> None:
        self.descriptor = os.open("/dev/zero", os.O_RDONLY)

    def fetch(self) -> bytes:
        return os.read(self.descriptor, 1)

    def chunks(self) -> Iterator[bytes]:
        yield self.fetch()

    def close(self) -> None:
        os.close(self.descriptor)
