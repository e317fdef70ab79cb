"""Things that are kept, each in another place: a step with ``leaky`` keeps one more, and without it none."""

from __future__ import annotations

import functools
import io
import itertools
import logging
import threading
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from hostile import Hostile

Step = Callable[[int, bool], None]


class Item:
    """Something that the collector tracks."""

    def __init__(self, beside: object = None) -> None:
        self.beside = beside
        self.payload = bytes(500)


class Slotted:
    __slots__ = ("entries", "text")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.text = ""


class Trainer:
    history: ClassVar[deque[bytes]] = deque()

    def __init__(self) -> None:
        self.uploads: dict[str, list[bytearray]] = {"all": []}
        self.log = ""
        self.buffer = bytearray()
        self.numbers = array("d")
        self.parts: tuple[int, ...] = ()
        self.file = io.BytesIO()
        self.grown: Any = None
        self.last: Any = None


KEPT: list[Any] = []
CACHE: dict[Any, Any] = {}
SEEN: set[bytes] = set()
GROUPED: defaultdict[str, list[bytes]] = defaultdict(list)
PER_THREAD = threading.local()
HOSTILE = Hostile()
BY_KEY: weakref.WeakKeyDictionary[Item, bytes] = weakref.WeakKeyDictionary()
LIVE_KEYS: list[Item] = []
trainer = Trainer()
slotted = Slotted()
# A name that cannot be written after a dot is a key.
SESSIONS = SimpleNamespace(**{"tok-1": []})
chain = Item()
LOG = ""
logger = logging.getLogger("leaks.logger")


def _keep(container: Any, one: object, leaky: bool) -> None:
    container.append(one)
    _keep_or_clear(container, leaky)


def _keep_or_clear(container: Any, leaky: bool) -> None:
    if not leaky:
        container.clear()


def module_list(_i: int, leaky: bool) -> None:
    _keep(KEPT, bytes(3000), leaky)


def list_of_items(_i: int, leaky: bool) -> None:
    _keep(KEPT, Item(), leaky)


def list_of_cycles(_i: int, leaky: bool) -> None:
    one = Item()
    one.beside = one
    _keep(KEPT, one, leaky)


def untracked_dict(i: int, leaky: bool) -> None:
    CACHE[i] = bytes(3000)
    _keep_or_clear(CACHE, leaky)


def hash_set(i: int, leaky: bool) -> None:
    SEEN.add(b"%d" % i * 100)
    _keep_or_clear(SEEN, leaky)


def grouped(_i: int, leaky: bool) -> None:
    _keep(GROUPED["all"], bytes(300), leaky)


def thread_local(_i: int, leaky: bool) -> None:
    if not hasattr(PER_THREAD, "entries"):
        PER_THREAD.entries = []
    _keep(PER_THREAD.entries, bytes(300), leaky)


def hostile(_i: int, leaky: bool) -> None:
    list.append(HOSTILE, bytes(300))
    if not leaky:
        list.clear(HOSTILE)


def weak_keys(_i: int, leaky: bool) -> None:
    key = Item()
    BY_KEY[key] = bytes(300)
    _keep(LIVE_KEYS, key, leaky)


def class_attribute(_i: int, leaky: bool) -> None:
    _keep(Trainer.history, bytes(700), leaky)


def instance(_i: int, leaky: bool) -> None:
    _keep(trainer.uploads["all"], bytearray(700), leaky)


def namespace(_i: int, leaky: bool) -> None:
    _keep(vars(SESSIONS)["tok-1"], bytearray(700), leaky)


def slots(_i: int, leaky: bool) -> None:
    _keep(slotted.entries, bytes(700), leaky)


def _collector() -> Callable[[str, bool], None]:
    items: list[str] = []

    def add(text: str, leaky: bool) -> None:
        _keep(items, text, leaky)

    return add


add = _collector()


def closure(i: int, leaky: bool) -> None:
    add(f"{i}" * 100, leaky)


def remember(one: object, leaky: bool, acc: list[object] = []) -> None:  # noqa: B006 - the leak
    _keep(acc, one, leaky)


def default_argument(_i: int, leaky: bool) -> None:
    remember(bytes(400), leaky)


def remember_by_name(one: object, leaky: bool, *, store: dict[int, object] = {}) -> None:  # noqa: B006 - the leak
    store[len(store)] = one
    _keep_or_clear(store, leaky)


def keyword_default(_i: int, leaky: bool) -> None:
    remember_by_name(bytes(400), leaky)


def function_attribute(_i: int, leaky: bool) -> None:
    calls: list[bytes] = function_attribute.__dict__.setdefault("calls", [])
    _keep(calls, bytes(400), leaky)


def _feed() -> Iterator[None]:
    seen: list[bytes] = []
    while True:
        seen.append(bytes(400))
        yield
        if not _Feeding.leaks:
            seen.clear()


class _Feeding:
    leaks = True


feed = _feed()


def generator(_i: int, leaky: bool) -> None:
    _Feeding.leaks = leaky
    next(feed)


@functools.lru_cache(None)
def lookup(_i: int) -> bytes:
    return bytes(400)


def lru(i: int, leaky: bool) -> None:
    lookup(i)
    if not leaky:
        lookup.cache_clear()


def handlers(_i: int, leaky: bool) -> None:
    logger.addHandler(logging.NullHandler())
    if not leaky:
        logger.handlers.clear()


def linked(_i: int, leaky: bool) -> None:
    chain.beside = Item(chain.beside if leaky else None)


def text(_i: int, leaky: bool) -> None:
    trainer.log += "a line of the log" if leaky else ""


def global_text(_i: int, leaky: bool) -> None:
    global LOG  # noqa: PLW0603 - the leak
    LOG += "a line of the log" if leaky else ""


def slot_text(_i: int, leaky: bool) -> None:
    slotted.text += "a line of the log" if leaky else ""


def in_place(_i: int, leaky: bool) -> None:
    trainer.buffer += b"seventeen octets." if leaky else b""


def numbers(_i: int, leaky: bool) -> None:
    trainer.numbers.extend((1.0, 2.0) if leaky else ())


def parts(_i: int, leaky: bool) -> None:
    trainer.parts += (1, 2) if leaky else ()


def binary_file(_i: int, leaky: bool) -> None:
    trainer.file.write(b"seventeen octets." if leaky else b"")


def numpy_array(_i: int, leaky: bool) -> None:
    import numpy as np

    if trainer.grown is None:
        trainer.grown = np.zeros(2)
    trainer.grown = np.concatenate([trainer.grown, np.zeros(2 if leaky else 0)])


class _Iterator:
    def __init__(self) -> None:
        self.buffer = bytes(500)


@dataclass
class Registry:
    """Shaped like TensorFlow's registry of Python functions: each gets a token, which is never given back."""

    _functions: dict[str, Callable[[], object]] = field(default_factory=dict)

    def insert(self, function: Callable[[], object], token: int) -> None:
        self._functions[f"pyfunc_{token}"] = function


_py_funcs = Registry()


def registered(i: int, leaky: bool) -> None:
    iterator = _Iterator()
    _py_funcs.insert(lambda: iterator, i)
    if not leaky:
        _py_funcs._functions.clear()


def churning(i: int) -> None:
    """Nothing of it stays: what is filled and emptied, what stands still, what is replaced by one as long."""
    CACHE.clear()
    CACHE.update(zip(range(50), itertools.repeat(i)))
    trainer.last = bytes(3000 + i % 7)
