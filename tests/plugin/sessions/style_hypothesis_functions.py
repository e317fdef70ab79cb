"""Properties of functions, by Hypothesis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers())
def test_property(number: int) -> None:
    assert number == int(str(number))


@given(st.integers(0, 100))
def test_fails(number: int) -> None:
    assert number < 20


@pytest.fixture(scope="module")
def base() -> int:
    return 10


@given(number=st.integers())
def test_with_a_module_fixture(base: int, number: int) -> None:
    assert number + base > number


@pytest.mark.parametrize("base", [2, 10])
@given(number=st.integers(0, 50))
def test_parametrized(base: int, number: int) -> None:
    assert number * base >= number


@pytest.mark.xfail
@given(st.booleans())
def test_known(flag: bool) -> None:
    assert flag
