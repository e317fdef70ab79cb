"""Clean: memory and objects that come and go in uneven amounts."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import pickle
import random
import sqlite3
import sys
import threading
import warnings
from typing import Any

import numpy as np

from cases.case import Case, numbers

NUMBERS = numbers()
CALLS = itertools.count()
RANDOM = random.Random(7)
ROWS: list[list[int]] = []
SLOTS: list[bytes | None] = [None] * 256
LATEST: list[Any] = []
LOGGER = logging.getLogger("leakcheck.churn")


def cleared_every_25th() -> None:
    ROWS.append([1, 2, 3])
    if next(CALLS) % 25 == 24:
        ROWS.clear()


def sawtooth() -> None:
    """Grows by 200 KB a call, and falls back every ninth."""
    LATEST.append(bytearray(200_000))
    if len(LATEST) == 9:
        LATEST.clear()


def fragments() -> None:
    """A random tenth of the slots gets a new tenant of another size."""
    for _ in range(25):
        SLOTS[RANDOM.randrange(256)] = bytes(RANDOM.randrange(16, 3000))


def empty_slots() -> None:
    SLOTS[:] = [None] * 256


def cycles() -> None:
    for _ in range(20):
        knot: list[Any] = [[]]
        knot[0].append(knot)


def arrays_of_mixed_sizes() -> None:
    table = np.arange(RANDOM.randrange(10, 20_000), dtype=np.float64)
    LATEST[:] = [np.sort(table[::-1]).cumsum().mean()]


def text_round_trip() -> None:
    value = {"rows": [{"number": number, "name": f"n{number}"} for number in range(RANDOM.randrange(50))]}
    assert json.loads(json.dumps(value)) == value


def pickle_round_trip() -> None:
    value = [(number, str(number), {number: [number]}) for number in range(RANDOM.randrange(50))]
    assert pickle.loads(pickle.dumps(value)) == value


def dive(depth: int) -> int:
    return 1 + dive(depth - 1) if depth else 0


def deep_recursion() -> None:
    dive(200 + next(CALLS) % 3 * 100)


def recursion_without_end() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        with contextlib.suppress(RecursionError):
            dive(1_000_000)
    finally:
        sys.setrecursionlimit(limit)


def errors_caught() -> None:
    for number in range(5):
        try:
            try:
                [][number]
            except IndexError as error:
                raise LookupError(number) from error
        except LookupError as error:
            LATEST[:] = [str(error)]


def logged() -> None:
    LOGGER.warning("call %d took %.1f s", next(NUMBERS), RANDOM.random())


def warned() -> None:
    """A new text every time, as from a template; code that records warnings must release them."""
    with warnings.catch_warnings(record=True):
        warnings.warn(f"value {next(NUMBERS)} is out of range", UserWarning, stacklevel=1)


class Table:
    """One connection, used by every call."""

    connection: sqlite3.Connection

    @classmethod
    def open(cls) -> None:
        cls.connection = sqlite3.connect(":memory:")
        cls.connection.execute("create table t (n integer, s text)")

    @classmethod
    def use(cls) -> None:
        rows = [(number, "x" * RANDOM.randrange(80)) for number in range(20)]
        cls.connection.executemany("insert into t values (?, ?)", rows)
        cls.connection.execute("select count(*) from t where n > 3").fetchall()
        cls.connection.execute("delete from t")
        cls.connection.commit()

    @classmethod
    def close(cls) -> None:
        cls.connection.close()


class Churner:
    """A thread beside the tests that allocates and frees all the time, at its own pace."""

    stop = threading.Event()
    thread: threading.Thread

    @classmethod
    def start(cls) -> None:
        cls.stop.clear()
        cls.thread = threading.Thread(target=cls.run)
        cls.thread.start()

    @classmethod
    def run(cls) -> None:
        dice = random.Random(11)
        held: list[Any] = []
        while not cls.stop.wait(0.0005):
            held.append([bytearray(dice.randrange(1, 30_000)), {1: [2]}])
            del held[: -dice.randrange(1, 20)]

    @classmethod
    def end(cls) -> None:
        cls.stop.set()
        cls.thread.join()


def some_work() -> None:
    LATEST[:] = [sorted(str(number) for number in range(200))]


CASES = (
    Case("list_cleared_every_25th", clean=cleared_every_25th, teardown=ROWS.clear),
    Case("sawtooth_of_buffers", clean=sawtooth, teardown=LATEST.clear),
    Case("fragmented_heap", clean=fragments, teardown=empty_slots, doubt="a random walk of the sizes in the slots"),
    Case("cycles_collected", clean=cycles),
    Case("arrays_of_mixed_sizes", clean=arrays_of_mixed_sizes, teardown=LATEST.clear),
    Case("json_round_trip", clean=text_round_trip),
    Case("pickle_round_trip", clean=pickle_round_trip),
    Case("deep_recursion", clean=deep_recursion),
    Case("recursion_without_end", clean=recursion_without_end),
    Case("errors_caught", clean=errors_caught, teardown=LATEST.clear),
    Case("logged", clean=logged),
    Case("warned", clean=warned),
    Case("database_reused", clean=Table.use, setup=Table.open, teardown=Table.close),
    Case("busy_background_thread", clean=some_work, setup=Churner.start, teardown=Churner.end,
         doubt="the thread beside it holds another amount at each reading", process_wide=True),
)  # fmt: skip
