"""The rebuilt cases of references: what they retain, without the plugin."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from reference_bugs import CASES, PREPARE, Case

CALLS = 200


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    names: dict[str, Any] = {}
    exec(PREPARE, names)
    # So that a collection takes no time.
    gc.freeze()
    tracemalloc.start()
    yield names
    tracemalloc.stop()
    gc.unfreeze()
    # Those lost in the test must not be the last ones.
    for _ in range(max(0, len(names["HELD"]) + 2 - sys.getrefcount(names["OBJ"]))):
        names["take"](names["OBJ"])


def repeat(statement: str, names: dict[str, Any]) -> tuple[int, int]:
    """Return the change of references to the argument, and of the memory that Python has allocated."""
    code = compile(statement, "<case>", "exec")
    exec(code, names)
    gc.collect()
    references, (before, _peak) = sys.getrefcount(names["OBJ"]), tracemalloc.get_traced_memory()
    for _ in range(CALLS):
        exec(code, names)
    gc.collect()
    return sys.getrefcount(names["OBJ"]) - references, tracemalloc.get_traced_memory()[0] - before


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_an_argument_gains_or_loses_a_reference_in_each_call(case: Case, names: dict[str, Any]) -> None:
    change, memory = repeat(case.leaky, names)
    assert (abs(change), memory < CALLS) == (CALLS, True)
    assert repeat(case.fixed, names)[0] == 0


@pytest.mark.parametrize("case", CASES[2:], ids=lambda case: case.name)
def test_an_object_remains_of_each_call(case: Case, names: dict[str, Any]) -> None:
    # The smallest object that remains is an integer, of 28 bytes.
    assert repeat(case.leaky, names)[1] >= 28 * CALLS
    assert repeat(case.fixed, names)[1] < 28 * CALLS // 10
