"""Types, sizes and parts of objects, read without running their code."""

from __future__ import annotations

import array
import collections
import enum
import re
import sys
import zlib
from typing import NamedTuple

import pytest

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.inspection import amount, is_c, is_shared, parts_of, size_of, walk


class Sparse:
    """As torch's sparse tensors, which have no storage."""

    @property
    def nbytes(self) -> int:
        raise RuntimeError("unsupported tensor layout")


class Dense:
    nbytes = 40


@pytest.mark.parametrize(("one", "expected"), [(Dense(), 40), (Sparse(), 0), (b"12345", 5), (object(), 0)])
def test_an_array_that_refuses_to_tell_its_size_has_none(
    one: object, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "array_types", lambda: {id(Dense): "array", id(Sparse): "array"})
    assert amount(one) == expected


class Plain:
    pass


class Slotted(Plain):
    __slots__ = ("one",)


class Colour(enum.Enum):
    RED = 1


class Row(NamedTuple):
    number: int


class Mistake(ValueError):
    pass


@pytest.mark.parametrize("kind", [Plain, Slotted, Colour, Row, Mistake, collections.UserDict])
def test_a_class_statement_is_python(kind: type) -> None:
    assert not is_c(kind)


@pytest.mark.parametrize(
    "kind", [int, dict, type, ValueError, collections.OrderedDict, array.array, re.Pattern, type(zlib.compressobj())]
)
def test_other_types_are_in_c(kind: type) -> None:
    assert is_c(kind)


def test_a_walk_yields_each_object_once_level_by_level_and_stops_at_its_limit() -> None:
    inner: list[object] = ["text"]
    ring: list[object] = [inner, inner, len]
    ring.append(ring)
    levels = [level.keys() for level in walk([ring], lambda one: not is_shared(one), 100)]
    assert levels[:2] == [{id(ring)}, {id(inner), id(len)}]
    assert id(inner[0]) in levels[2]
    assert list(parts_of(walk([ring], lambda one: type(one) is list, 100)).values()) == [ring, inner]
    many: list[object] = [[number] for number in range(50)]
    assert [len(level) for level in walk([many], lambda _one: True, 20)] == [1, 20]


async def _work() -> None:
    """Do nothing."""


@pytest.mark.parametrize(("parts", "is_sized"), [(198, True), (199, False)])
def test_of_an_entry_no_more_than_200_objects_are_looked_into(parts: int, *, is_sized: bool) -> None:
    entry = [[bytes(10_000)], *([] for _ in range(parts - 1))]
    assert (inspection.own_size(entry) > 20_000) is is_sized


def test_a_size_is_the_objects_own_and_no_code_of_its_class_tells_it() -> None:
    class Liar:
        __slots__ = ("one",)

        def __sizeof__(self) -> int:
            raise AssertionError

    assert size_of(Liar()) == object.__sizeof__(Liar())
    assert size_of([1, 2]) == sys.getsizeof([1, 2])
    suspended = _work()
    # In place of a length it has another number.
    assert size_of(suspended) < 1000
    suspended.close()


class _Mode(enum.Enum):
    FAST = "S3cret"


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("S3cret", "a str of 6"),
        (b"S3cret", "a bytes of 6"),
        (12.5, "a float"),
        (("S3cret", 1), "a tuple"),
        (9_999, "9999"),
        (10_000, "a int"),
        (-1, "-1"),
        (True, "True"),
        (None, "None"),
        (4111_1111_1111_1111, "a int"),
        pytest.param(10**5000, "a int", id="long"),
        (_Mode.FAST, "_Mode.FAST"),
        (_Mode, "_Mode"),
    ],
)
def test_of_a_key_only_what_is_a_constant_of_the_program_is_shown(key: object, shown: str) -> None:
    assert inspection.show_key(key) == shown


@pytest.mark.parametrize(("length", "shown"), [(40, 40), (41, 40), (80, 40)])
def test_a_name_of_more_than_40_characters_is_shortened(length: int, shown: int) -> None:
    name = inspection.show_name("x" * length)
    assert len(name) == shown + len("''")
    assert ("…" in name) is (length > shown)


def test_the_amount_of_a_tuple_is_that_of_its_pointers() -> None:
    assert amount((1, 2, 3)) == sys.getsizeof((1, 2, 3)) - sys.getsizeof(())
