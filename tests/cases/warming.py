"""Clean: caches and pools that fill up to a bound, and stay there."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import socket
import string
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from cases.case import Case, drain, numbers

NUMBERS = numbers()


class Turns:
    """Counts the calls of an arm from its first one."""

    calls = itertools.count()

    @classmethod
    def begin(cls) -> None:
        cls.calls = itertools.count()


@functools.lru_cache(maxsize=40)
def squares(number: int) -> list[int]:
    return [number * number]


@functools.lru_cache(maxsize=128)
def thumbnails(number: int) -> bytes:
    return bytes(3000 + number % 7)


@functools.lru_cache(maxsize=1000)
def pages(number: int) -> list[bytes]:
    return [bytes(1000), b"%d" % number]


WORDS = [f"word_{number}" for number in range(50)]
INTERNED: dict[str, int] = {}
SOCKETS: deque[socket.socket] = deque()
BUFFERS: list[bytearray] = []
WINDOW: deque[list[int]] = deque(maxlen=30)
MEMO: dict[int, list[int]] = {}
ROW = [0]


def words_interned() -> None:
    word = sys.intern("word_" + str(next(NUMBERS) % 50))
    INTERNED[word] = next(NUMBERS)


def patterns() -> None:
    re.search(rf"id={next(NUMBERS) % 30}(\d+)", "id=12345")


def connection_from_pool() -> None:
    # Eight at most: the ninth call gets the one that has rested longest.
    if len(SOCKETS) < 8:
        SOCKETS.append(socket.socket(socket.AF_UNIX))
    SOCKETS[0].getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    SOCKETS.rotate()


def buffer_from_pool() -> None:
    taken = [BUFFERS.pop() if BUFFERS else bytearray(2000) for _ in range(1 + next(Turns.calls) % 5)]
    taken.append(bytearray(2000))
    BUFFERS.extend(taken)
    del BUFFERS[64:]


def window() -> None:
    WINDOW.append([next(NUMBERS)])


def memo_of_few_keys() -> None:
    MEMO.setdefault(next(NUMBERS) * 7 % 60, [1])


def template() -> None:
    string.Template("$name has $n").substitute(name=f"n{next(NUMBERS) % 9}", n=next(NUMBERS))


class Executor:
    """A pool of threads that is used for ever, and starts a thread when none is idle."""

    pool: ThreadPoolExecutor

    @classmethod
    def start(cls) -> None:
        cls.pool = ThreadPoolExecutor(4)

    @classmethod
    def use(cls) -> None:
        list(cls.pool.map(abs, range(8)))

    @classmethod
    def stop(cls) -> None:
        cls.pool.shutdown()


LAZY = ("colorsys", "quopri", "netrc", "stringprep", "plistlib", "sched", "cmd", "fileinput")


def lazy_import() -> None:
    """One more module in each of the first calls."""
    importlib.import_module(LAZY[min(next(Turns.calls), len(LAZY) - 1)])


def uneven_growth_of_a_dict() -> None:
    """Keys come and go, so that the table is rebuilt now and then, larger or smaller."""
    at = next(Turns.calls) % 40
    for key in range(at * 20):
        MEMO[key] = ROW
    for key in range(at * 20):
        del MEMO[key]


CASES = (
    Case("lru_cache_warms_up", clean=lambda: squares(next(NUMBERS) % 40), teardown=squares.cache_clear),
    Case("lru_cache_fills", clean=lambda: thumbnails(next(NUMBERS)), teardown=thumbnails.cache_clear,
         doubt="it is full when nearly half of the calls are over, and what is left shows no floor yet"),
    Case("lru_cache_outlasts_the_run", clean=lambda: pages(next(NUMBERS)), teardown=pages.cache_clear,
         doubt="a thousand entries are more than the calls: it is still filling when the run ends"),
    Case("words_interned", clean=words_interned, teardown=INTERNED.clear),
    Case("patterns_compiled", clean=patterns),
    Case("connection_pool", clean=connection_from_pool, teardown=drain(SOCKETS, socket.socket.close)),
    Case("buffer_pool", clean=buffer_from_pool, setup=Turns.begin, teardown=BUFFERS.clear),
    Case("deque_with_a_bound", clean=window, teardown=WINDOW.clear),
    Case("memo_of_few_keys", clean=memo_of_few_keys, teardown=MEMO.clear),
    Case("templates", clean=template),
    Case("executor_reused", clean=Executor.use, setup=Executor.start, teardown=Executor.stop),
    Case("lazy_imports", clean=lazy_import, setup=Turns.begin),
    Case("dict_rebuilt", clean=uneven_growth_of_a_dict, setup=Turns.begin, teardown=MEMO.clear),
)  # fmt: skip
