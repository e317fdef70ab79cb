"""Values that come back from JSON equal, and the path of what is wrong in them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from pytest_leakcheck.model.decoding import DecodeError, decode, encode


@dataclass(frozen=True)
class Part:
    line: int
    share: float = 0.5
    pair: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Whole:
    SCHEMA: ClassVar[int] = 3

    parts: tuple[Part, ...]
    state: Literal["on", "off"] = "on"
    flag: bool = True
    last: Part | None = None
    bounds: tuple[float, float] | None = None
    by_name: Mapping[str, tuple[str, ...]] = field(default_factory=dict, metadata={"key": "names"})


WHOLE = Whole((Part(1), Part(2, 3, (4, 5))), "off", False, Part(6), (1.0, 2.0), {"1": ("a", "b")})


def test_a_value_comes_back_equal_with_its_schema_first() -> None:
    data = encode(WHOLE)
    assert decode(Whole, json.loads(json.dumps(data))) == WHOLE
    assert decode(Whole, encode(Whole(()))) == Whole(())
    assert [*data] == ["schema", "parts", "state", "flag", "last", "bounds", "names"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": [{"line": 1, "share": 1, "pair": [0, 0]}, {"line": "x"}]}, "parts[1].line: expected int, got 'x'"),
        ({"parts": [{"line": True}]}, "parts[0].line: expected int, got True"),
        ({"parts": [{"line": 1, "share": "1"}]}, "parts[0].share: expected float, got '1'"),
        ({"parts": [{"line": 1, "share": 1}]}, "parts[0].pair: expected list of 2, got nothing"),
        ({"parts": [{"line": 1, "share": 1, "pair": [0, None]}]}, "parts[0].pair[1]: expected int, got None"),
        ({"state": "maybe"}, "state: expected 'on' or 'off', got 'maybe'"),
        ({"flag": 1}, "flag: expected bool, got 1"),
        ({"last": []}, "last: expected object, got []"),
        ({"bounds": [1.0]}, "bounds: expected list of 2, got [1.0]"),
        ({"names": {"1": ["a", 2]}}, "names.1[1]: expected str, got 2"),
        ({"schema": 4}, "schema 4 is not 3: written by another version"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DecodeError) as raised:
        decode(Whole, encode(WHOLE) | change)
    assert str(raised.value) == message
