"""sympy: a set of all classes keeps each undefined function of another name."""

from __future__ import annotations

from itertools import count

import pytest
from sympy import Symbol
from sympy.core.function import UndefinedFunction

RELEASES = ("sympy==1.10", "sympy==1.11.1")
NUMBERS = count()


@pytest.mark.leakcheck
def test_leaky() -> None:
    UndefinedFunction(f"f{next(NUMBERS)}")


@pytest.mark.leakcheck
def test_control() -> None:
    Symbol("f")
