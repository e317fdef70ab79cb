"""Containers from which a function removes entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

MOST = 300
POOL: dict[Any, Any] = {}
LEFT: list[Any] = []
WAITING: list[Any] = []
TABLE: dict[Any, Any] = {}


def take() -> None:
    POOL.pop(1)


def keep(value: Any) -> None:
    queue = WAITING
    queue.append(1)
    LEFT.append(value)
    queue.pop()
    if not LEFT:
        del WAITING[len(LEFT)]


def note(key: Any, value: Any) -> None:
    if len(TABLE) >= MOST:
        TABLE.clear()
    TABLE[key] = value


class Cache:
    entries: OrderedDict[Any, Any]
    others: list[Any]

    def __init__(self) -> None:
        self.entries, self.others, self.ttl = OrderedDict(), [], 60

    def get(self, key: Any, now: Any) -> None:
        if now - self.entries[key] > self.ttl:
            self.entries.popitem(last=False)


class Shared:
    kept: list[Any] = []
    most = 20

    @classmethod
    def put(cls, value: Any) -> None:
        cls.kept.append(value)
        if cls.most < len(cls.kept):
            del cls.kept[0]


class Slotted:
    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}

    def drop(self, key: Any) -> None:
        del self.entries[key]


class Own(OrderedDict):  # type: ignore[type-arg]
    limit = 40

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > self.limit + self.limit * 0.5:
            self.popitem(last=False)


class Counted:
    """Its bound is a local variable, and it counts its entries itself."""

    __data: dict[Any, Any]

    def __init__(self) -> None:
        self.__data, self.__size, self.__most = {}, 0, 128

    def put(self, key: Any, value: Any) -> None:
        most = self.__most
        while self.__size + 1 > most:
            self.pop_oldest()
        self.__data[key] = value
        self.__size += 1

    def pop_oldest(self) -> None:
        self.__data.pop(next(iter(self.__data)))
        self.__size -= 1
