"""The probe of references: what it counts, what it takes a reserve of, and what explains a change."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import PurePath
from typing import Any

import pytest

from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.reference_counts import Account, References

TABLE = {"rows": [3]}
HELD: list[object] = []
API = ctypes.pythonapi
# What pytest itself takes and releases meanwhile.
SLACK = find_resource("reference").slack
about = partial(pytest.approx, abs=SLACK)
# A class whose objects the collector does not list.
Digest = type(hashlib.sha512())


def take(obj: object, times: int) -> None:
    for _ in range(times):
        API.Py_IncRef(ctypes.py_object(obj))


def release(obj: object, times: int) -> None:
    for _ in range(times):
        API.Py_DecRef(ctypes.py_object(obj))


@pytest.fixture
def references() -> Iterator[References]:
    probe = References()
    probe.open()
    yield probe
    probe.close()
    HELD.clear()


def account_of(references: References, wanted: object) -> Account:
    at = references.find_changed()
    assert references.object(at) is wanted
    return references.account(at)


@pytest.mark.parametrize(
    "obj",
    [TABLE, TABLE["rows"], Digest, PurePath, sys.modules, take],
    ids=["dict", "list", "digest", "class", "modules", "function"],
)
def test_references_to_classes_and_to_what_modules_and_their_containers_hold_are_counted(
    references: References, obj: object
) -> None:
    take(obj, 100)
    assert references.read() == about(100)
    assert account_of(references, obj).change == about(100)
    release(obj, 100)
    assert references.read() <= SLACK


@pytest.mark.parametrize("obj", [None, True, "rows", 3, (), Recording, pytest.Item], ids=str)
def test_what_the_test_runner_takes_and_releases_is_not_counted(references: References, obj: object) -> None:
    take(obj, 100)
    assert references.read() <= SLACK
    release(obj, 100)


def test_a_series_counts_from_its_start(references: References) -> None:
    take(TABLE, 100)
    references.start()
    assert references.read() <= SLACK
    release(TABLE, 100)
    assert references.read() == about(100)


def test_an_object_that_loses_references_outlives_them(references: References) -> None:
    HELD.extend([TABLE] * 80)
    references.start()
    for lost in (30, 60):
        release(TABLE, 30)
        assert references.read() == about(lost)
        assert account_of(references, TABLE).change == about(-lost)
    # Of the 80 that the list releases, 60 are lost already.
    HELD.clear()
    references.close()
    assert TABLE == {"rows": [3]}
    take(TABLE, 60)


def test_an_object_that_loses_references_comes_before_one_that_gains_nearly_twice_as_many(
    references: References,
) -> None:
    HELD.extend([TABLE] * 80)
    references.start()
    take(Digest, 90)
    release(TABLE, 50)
    assert account_of(references, TABLE).change < 0
    take(TABLE, 20)
    assert account_of(references, Digest).change > 0
    take(TABLE, 30)
    release(Digest, 90)


@pytest.mark.parametrize("number", [50, -50])
def test_what_lists_hold_or_have_given_up_explains_a_change(references: References, number: int) -> None:
    HELD.extend([TABLE] * 100)
    references.start()
    before = references.account(references.find_changed())
    before = before if before.obj is TABLE else Account(TABLE, 0, before_held(references), before.blocks)
    HELD[:] = [TABLE] * (100 + number)
    assert account_of(references, TABLE).explains_since(before)


def before_held(references: References) -> int:
    HELD.extend([TABLE] * 20)
    held = account_of(references, TABLE).held - 20
    del HELD[-20:]
    return held


def test_references_that_no_object_holds_are_not_explained(references: References) -> None:
    take(TABLE, 20)
    before = account_of(references, TABLE)
    take(TABLE, 20)
    assert not account_of(references, TABLE).explains_since(before)
    release(TABLE, 40)


def test_new_objects_that_the_collector_does_not_list_explain_references_to_their_class(references: References) -> None:
    HELD.extend(hashlib.sha512() for _ in range(20))
    before = account_of(references, Digest)
    HELD.extend(hashlib.sha512() for _ in range(20))
    assert account_of(references, Digest).explains_since(before)


@pytest.mark.parametrize(
    ("obj", "change", "held", "blocks", "explained"),
    [
        (TABLE, 20, 20, 0, True),
        (TABLE, 20, 11, 0, True),
        (TABLE, 20, 10, 0, False),
        (TABLE, 20, 0, 20, False),
        (TABLE, -20, -20, 0, True),
        (TABLE, -20, 0, -20, False),
        (TABLE, -20, 20, 0, False),
        (Digest, 20, 0, 11, True),
        (Digest, 20, 0, 10, False),
        (Digest, -20, 0, 20, False),
    ],
)
def test_more_than_half_of_a_change_must_be_explained(
    obj: Any, change: int, held: int, blocks: int, *, explained: bool
) -> None:
    assert Account(obj, 7 + change, 5 + held, 9 + blocks).explains_since(Account(obj, 7, 5, 9)) is explained


def test_without_the_global_lock_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(Unavailable, match="free-threaded"):
        References().open()
