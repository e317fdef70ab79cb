"""Which types are written in C: their objects may hold memory that is not seen."""

from __future__ import annotations

import array
import collections
import datetime as dt
import decimal
import enum
import re
import sqlite3
import zlib
from typing import NamedTuple

import pytest

from pytest_leakcheck.attribution.object_inspection import is_c


class Plain:
    pass


class Derived(Plain):
    pass


class Further(Derived):
    def method(self) -> None:
        """Do nothing."""


class Slotted:
    __slots__ = ("one",)


class SlottedFurther(Slotted):
    __slots__ = ()


class Colour(enum.Enum):
    RED = 1


class Row(NamedTuple):
    number: int


class Mistake(ValueError):
    pass


class WorseMistake(Mistake):
    pass


class Table(dict[str, int]):
    pass


class FurtherTable(Table):
    pass


@pytest.mark.parametrize(
    "kind",
    [
        *(Plain, Derived, Further, Slotted, SlottedFurther, Colour, Row, Mistake, WorseMistake, Table, FurtherTable),
        collections.UserDict,
    ],
)
def test_a_class_statement_is_python(kind: type) -> None:
    assert not is_c(kind)


@pytest.mark.parametrize(
    "kind",
    [
        *(
            int,
            dict,
            type,
            object,
            ValueError,
            collections.deque,
            collections.OrderedDict,
            dt.datetime,
            array.array,
        ),
        *(re.Pattern, sqlite3.Connection, decimal.Decimal, type(zlib.compressobj())),
    ],
)
def test_other_types_are_in_c(kind: type) -> None:
    assert is_c(kind)
