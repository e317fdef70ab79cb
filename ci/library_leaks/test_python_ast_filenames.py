"""ast: the name of the file stays if a later argument of ``compile`` has a wrong type; ``ast.parse`` calls it."""

from __future__ import annotations

import ast
from contextlib import suppress
from itertools import count

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1", "python==3.13.0", "python==3.14.0")

NUMBERS = count()
KEPT: list[str] = []


@pytest.mark.leakcheck
def test_leaky() -> None:
    with suppress(TypeError):
        ast.parse("1", b"a-file-with-a-name-of-its-own-%d" % next(NUMBERS), mode=3)  # type: ignore[call-overload]


@pytest.mark.leakcheck
def test_control() -> None:
    ast.parse("1", b"a-file-with-a-name-of-its-own-%d" % next(NUMBERS))


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(ast.unparse(ast.parse(f"name_{next(NUMBERS)}")))
