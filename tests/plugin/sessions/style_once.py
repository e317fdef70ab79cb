"""Tests that can run once only."""

from __future__ import annotations

import pytest


def test_exits_when_repeated(counter: list[int] = []) -> None:
    counter.append(1)
    if len(counter) > 2:
        raise SystemExit(1)


def test_imports_once() -> None:
    import sys

    assert "wave" not in sys.modules
    import wave  # noqa: F401


@pytest.mark.parametrize("kept", [[]])
def test_mutable_parameter(kept: list[int]) -> None:
    assert kept == []
    kept.append(1)


@pytest.mark.parametrize("value", [object(), lambda: 1, type, b"x", None, float("nan")])
def test_parameters_of_each_kind(value: object) -> None:
    assert value is value  # noqa: PLR0124
