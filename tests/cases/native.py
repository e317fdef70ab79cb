"""Native memory: never freed, or held by a small Python object that is kept; and references lost in C."""

from __future__ import annotations

import bz2
import ctypes
import hashlib
import itertools
import os
import re
import select
import sqlite3
import ssl
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from xml.parsers import expat

import numpy as np

from cases import clib
from cases.case import Case, drain, kept, leak, numbers, unique

NUMBERS = numbers()
CALLS = itertools.count()
ADDRESSES = clib.addresses()
LOST = clib.addresses()
KEPT: list[Any] = []
RECENT: OrderedDict[int, BinaryIO] = OrderedDict()
API = ctypes.pythonapi
TABLE = {"rows": [3]}
FLAGS = {"fast": [True]}
# A reference that is released twice in each call must not be the last one.
SPARE = [FLAGS] * 1000
RELEASED = clib.addresses()
SLOTS: list[object] = [None] * 1000


def allocated(size: int) -> None:
    ADDRESSES.append(clib.malloc(size))


def allocated_case(name: str, size: int) -> Case:
    line = "ADDRESSES.append(clib.malloc(size))"
    return kept(name, "heap", partial(allocated, size), drain(ADDRESSES, clib.free), line=line, owner=".ADDRESSES")


def copied_text() -> None:
    ADDRESSES.append(clib.strdup(b"a name that C has copied " * 8))


def reply() -> int:
    address = clib.malloc(4000)
    ADDRESSES.append(address)
    return int(address)


def copied_reply() -> bytes:
    """A wrapper of a library in C that copies its answers and does not free them."""
    address = clib.malloc(4000)
    ADDRESSES.append(address)
    return ctypes.string_at(address, 4000)


def reply_copied() -> None:
    assert len(copied_reply()) == 4000


def reply_copied_to_array() -> None:
    rows = np.array(np.ctypeslib.as_array((ctypes.c_ubyte * 4000).from_address(reply())))
    assert rows.size == 4000


def every_tenth() -> None:
    address = clib.malloc(8192)
    if next(CALLS) % 10 == 0:
        ADDRESSES.append(address)
        return
    clib.free(address)


def every_one_freed() -> None:
    address = clib.malloc(8192)
    if next(CALLS) % 10 == 0:
        ctypes.memset(address, 0, 8192)
    clib.free(address)


def lost_on_error() -> None:
    address = clib.calloc(1, 3000)
    ADDRESSES.append(address)
    try:
        ctypes.string_at(address, 10).decode("ascii").index("x")
    except ValueError:
        return
    clib.free(ADDRESSES.pop())


def freed_on_error() -> None:
    address = clib.calloc(1, 3000)
    try:
        ctypes.string_at(address, 10).decode("ascii").index("x")
    except ValueError:
        return
    finally:
        clib.free(address)


def read_recent() -> None:
    """Open a file, and close the oldest of those that are kept open: as many come as go."""
    RECENT[next(NUMBERS)] = Path(os.devnull).open("rb")
    if len(RECENT) > 8:
        RECENT.popitem(last=False)[1].close()


def close_recent() -> None:
    while RECENT:
        RECENT.popitem()[1].close()
    drain(ADDRESSES, clib.free)()


def lost_beside_a_full_cache() -> None:
    ADDRESSES.append(clib.malloc(152))
    read_recent()


def freed_beside_a_full_cache() -> None:
    clib.free(clib.malloc(152))
    read_recent()


class Handle:
    """What each call opens in C, and the next one closes: a header, and a body behind it."""

    header = body = 0

    @classmethod
    def open(cls) -> None:
        cls.header = clib.malloc(3000)
        cls.body = clib.malloc(20_000)

    @classmethod
    def reopen(cls) -> None:
        clib.free(cls.header)
        clib.free(cls.body)
        cls.open()

    @classmethod
    def reopen_and_lose(cls) -> None:
        ADDRESSES.append(cls.header)
        clib.free(cls.body)
        cls.open()

    @classmethod
    def close(cls) -> None:
        clib.free(cls.header)
        clib.free(cls.body)
        drain(ADDRESSES, clib.free)()


def pattern_in_c() -> None:
    # 64 bytes are what regex_t takes in glibc; the compiled pattern hangs from it.
    compiled = clib.calloc(1, 64)
    clib.regcomp(compiled, b"a[0-9]*b", 0)
    ADDRESSES.append(compiled)


def free_pattern(compiled: int) -> None:
    clib.regfree(compiled)
    clib.free(compiled)


def keep(make: Callable[[], object]) -> None:
    KEPT.append(make())


def replace(make: Callable[[], object]) -> None:
    KEPT[:] = [make()]


def kept_case(name: str, kind: tuple[str, ...], make: Callable[[], object], *line: str) -> Case:
    """The leaky arm keeps all that it makes, the fixed one the last."""
    return Case(
        name,
        kind,
        partial(keep, make),
        partial(replace, make),
        teardown=KEPT.clear,
        line=line,
        owner=("cases.native.KEPT",),
    )


def unfinished_stream() -> Any:
    stream = zlib.compressobj(level=1, wbits=9, memLevel=1)
    stream.compress(b"never flushed")
    return stream


def unfinished_archive() -> Any:
    stream = bz2.BZ2Decompressor()
    stream.decompress(b"BZh91AY&SY")
    return stream


def open_database() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def close_databases() -> None:
    for connection in KEPT:
        connection.close()
    KEPT.clear()


def database_kept() -> None:
    KEPT.append(open_database())


class Database:
    """One connection for every call."""

    connection: sqlite3.Connection

    @classmethod
    def open(cls) -> None:
        cls.connection = open_database()
        cls.connection.executescript("create table t (n); insert into t values (1), (2)")

    @classmethod
    def close(cls) -> None:
        KEPT.clear()
        cls.connection.close()


class Reader:
    """What a function of the database reads from."""

    def __init__(self) -> None:
        self.poll = select.epoll()


def function_per_call() -> None:
    reader = Reader()
    Database.connection.create_function(f"ready_{next(NUMBERS)}", 0, lambda: len(reader.poll.poll(0)))


def function_replaced() -> None:
    reader = Reader()
    Database.connection.create_function("ready", 0, lambda: len(reader.poll.poll(0)))


def statement_unfinished() -> None:
    cursor = Database.connection.execute(f"select n from t where n < {next(NUMBERS)}")
    cursor.fetchone()
    KEPT.append(cursor)


def statement_finished() -> None:
    cursor = Database.connection.execute(f"select n from t where n < {next(NUMBERS)}")
    cursor.fetchall()
    cursor.close()


def few_rows_of_many() -> None:
    KEPT.append(np.ones((100, 100))[:1])


def few_rows_copied() -> None:
    KEPT[:] = [np.ones((100, 100))[:1].copy()]


def lose(thing: object) -> None:
    API.Py_IncRef(ctypes.py_object(thing))
    LOST.append(id(thing))


def find_again(address: int) -> None:
    API.Py_DecRef(ctypes.cast(address, ctypes.py_object))


def bytes_lost() -> None:
    lose(b"%09d" % next(NUMBERS))


def list_lost() -> None:
    lose([1, 2, 3])


def large_bytes_lost() -> None:
    lose(bytes(20_000))


def environment_grown() -> None:
    os.environ[unique("variable")] = "x" * 100


def environment_of_flags_grown() -> None:
    os.environ[unique("variable")] = "1"


def environment_flag_reused() -> None:
    os.environ[f"leakcheck-{os.getpid()}-variable"] = "1"


def environment_reused() -> None:
    # One name: the C library keeps each text that was ever set, so that taking new ones away would not be enough.
    os.environ[f"leakcheck-{os.getpid()}-variable"] = "x" * 100


def restore_environment() -> None:
    for name in [name for name in os.environ if re.match(rf"leakcheck-{os.getpid()}-variable", name)]:
        del os.environ[name]


def reference_gained() -> None:
    lose(TABLE)


def reference_given_back() -> None:
    lose(TABLE)
    find_again(LOST.pop())


def reference_released_twice() -> None:
    find_again(id(FLAGS))
    RELEASED.append(id(FLAGS))


def reference_taken_and_released() -> None:
    take_again(id(FLAGS))
    find_again(id(FLAGS))


def take_again(address: int) -> None:
    API.Py_IncRef(ctypes.cast(address, ctypes.py_object))


def slot_filled() -> None:
    SLOTS[next(NUMBERS) % len(SLOTS)] = TABLE


find_all = drain(LOST, find_again)

CASES = (
    allocated_case("malloc_64_bytes", 64),
    allocated_case("malloc_128_bytes", 128),
    allocated_case("malloc_4_kib", 4 << 10),
    allocated_case("malloc_1_mib", 1 << 20),
    kept("text_copied_in_c", "heap", copied_text, drain(ADDRESSES, clib.free),
         line="clib.strdup(", owner=".ADDRESSES"),
    kept("reply_copied", "heap", reply_copied, drain(ADDRESSES, clib.free),
         line="address = clib.malloc(4000)", owner=".ADDRESSES"),
    kept("reply_copied_to_array", "heap", reply_copied_to_array,
         drain(ADDRESSES, clib.free),
         line=("address = clib.malloc(4000)", "from_address(reply())"), owner=".ADDRESSES"),
    leak("every_tenth_malloc", "heap", every_tenth, every_one_freed, drain(ADDRESSES, clib.free),
         line="address = clib.malloc(8192)", owner=".ADDRESSES"),
    leak("malloc_lost_on_error", "heap", lost_on_error, freed_on_error, drain(ADDRESSES, clib.free),
         line="clib.calloc(1, 3000)", owner=".ADDRESSES"),
    leak("malloc_beside_a_full_cache", "heap", lost_beside_a_full_cache, freed_beside_a_full_cache, close_recent,
         line="ADDRESSES.append(clib.malloc(152))", owner=".ADDRESSES"),
    kept("pattern_in_c", "heap", pattern_in_c, drain(ADDRESSES, free_pattern),
         line="clib.regcomp(compiled", owner=".ADDRESSES"),
    leak("handle_freed_in_part", "heap", Handle.reopen_and_lose, Handle.reopen, Handle.close,
         setup=Handle.open, line="cls.header = clib.malloc(3000)", owner=".ADDRESSES"),
    kept_case("zlib_unfinished", ("heap",), unfinished_stream, "zlib.compressobj(", "stream.compress("),
    kept_case("bz2_unfinished", ("heap",), unfinished_archive, "bz2.BZ2Decompressor()", "stream.decompress("),
    kept_case("digest_kept", ("heap",), lambda: hashlib.sha512(b"salt"), 'hashlib.sha512(b"salt")'),
    kept_case("tls_context_kept", ("heap",), lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "ssl.SSLContext("),
    kept_case("xml_parser_kept", ("heap",), expat.ParserCreate, "KEPT.append(make())"),
    kept_case("array_kept", ("heap",), lambda: array("d", bytes(8000)), 'array("d", bytes(8000))'),
    kept_case(
        "ctypes_buffer_kept",
        ("heap", "object"),
        lambda: ctypes.create_string_buffer(2000),
        "ctypes.create_string_buffer(2000)",
    ),
    kept_case("numpy_array_kept", ("heap",), lambda: np.zeros(300), "np.zeros(300)"),
    kept_case("view_of_bytes_kept", ("heap", "object"), lambda: memoryview(bytes(5000))[:5], "memoryview(bytes(5000))"),
    leak("few_rows_of_many", "heap", few_rows_of_many, few_rows_copied, KEPT.clear,
         line="np.ones((100, 100))[:1])", owner=".KEPT"),
    kept("database_kept", "heap", database_kept, close_databases,
         line='sqlite3.connect(":memory:")', owner=".KEPT"),
    leak("statement_unfinished", "heap object", statement_unfinished, statement_finished, Database.close,
         setup=Database.open, line="Database.connection.execute(f", owner=".KEPT",
         doubt="the connection forgets its closed cursors at every 200th"),
    leak("function_per_call", "fd", function_per_call, function_replaced, Database.close,
         setup=Database.open, line="self.poll = select.epoll()"),
    kept("bytes_lost_in_c", "block", bytes_lost, find_all, line='lose(b"%09d"'),
    kept("list_lost_in_c", "object block", list_lost, find_all, line="lose([1, 2, 3])"),
    kept("large_bytes_lost_in_c", "heap", large_bytes_lost, find_all, line="lose(bytes(20_000))"),
    leak("reference_gained", "reference", reference_gained, reference_given_back, find_all,
         line="API.Py_IncRef(", budget="reference"),
    leak("reference_released_twice", "reference", reference_released_twice, reference_taken_and_released,
         drain(RELEASED, take_again), line="API.Py_DecRef(", budget="reference"),
    Case("reference_in_each_slot", clean=slot_filled, teardown=lambda: SLOTS.__setitem__(slice(None), [None] * 1000),
         budget="reference"),
    leak("environment_grown", "block heap", environment_grown, environment_reused, restore_environment,
         line='os.environ[unique("variable")] =', owner=("posix.environ", "os.environ")),
    leak("environment_of_flags_grown", "block heap", environment_of_flags_grown, environment_flag_reused,
         restore_environment,
         line='os.environ[unique("variable")] =', owner=("posix.environ", "os.environ")),
)  # fmt: skip
