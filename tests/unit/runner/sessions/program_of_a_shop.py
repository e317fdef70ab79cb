"""A module of a project that leaks."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

descriptors: list[int] = []
others: list[int] = []
by_number: dict[int, object] = {}
seconds: list[int] = []
turns = iter(range(1_000_000))


class Part: ...


class Whole:
    def __init__(self) -> None:
        self.parts = [Part(), Part()]


class Registry:
    wholes: list[Whole | Part] = []


def adds_path_among_others() -> None:
    first = "%d" % next(turns)
    sys.path.append("/nowhere/%d" % next(turns))
    last = "%d" % next(turns)


def opens() -> None:
    descriptors.append(os.open(os.devnull, os.O_RDONLY))


def opens_elsewhere() -> None:
    descriptors.append(os.open(__file__, os.O_RDONLY))


def opens_another() -> None:
    others.append(os.open(os.devnull, os.O_RDONLY))


def keeps_number() -> None:
    by_number[next(turns)] = []


def keeps_whole() -> None:
    Registry.wholes.append(Whole())


def keeps_part() -> None:
    Registry.wholes.append(Part())


def adds_path() -> None:
    sys.path.append("/nowhere/%d" % next(turns))


def adds_other_path() -> None:
    sys.path.append("/elsewhere/%d" % next(turns))


def keep(make: Callable[[], object]) -> None:
    by_number[next(turns)] = make()


def new_list() -> list[None]:
    return [None]


def new_set() -> set[None]:
    return {None}


class Closed:
    def __init__(self, number: int) -> None:
        self.number, self.cycle = number, self

    def __del__(self) -> None:
        os.close(self.number)


def opens_in_cycle() -> None:
    Closed(os.open(os.devnull, os.O_RDONLY))


def opens_other_in_cycle() -> None:
    Closed(os.open(__file__, os.O_RDONLY))


def starts_waiting(number: int) -> None:
    threading.Thread(target=os.read, args=(number, 1), daemon=True).start()


def keeps_second() -> None:
    if next(turns) % 2:
        seconds.append(os.open(os.devnull, os.O_RDONLY))
