"""Leaks of a payload, of errors and of files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TextIO

import pytest

LEAKY = True
KEPT: list[Any] = []
ERRORS: list[KeyError] = []
FILES: list[TextIO] = []


@pytest.mark.heap_budget("16 B")
def test_payload() -> None:
    KEPT.append([bytearray(1 << 20)])
    if not LEAKY:
        KEPT.pop()


@pytest.mark.object_budget(0)
def test_errors() -> None:
    try:
        {}["missing"]  # type: ignore[index]
    except KeyError as error:
        ERRORS.append(error)
    if not LEAKY:
        ERRORS.clear()


@pytest.mark.fd_budget(0)
def test_files() -> None:
    path = Path(tempfile.gettempdir(), f"part-{len(FILES)}.bin")
    FILES.append(path.open("w"))
    path.unlink()
    if not LEAKY:
        FILES.pop().close()
