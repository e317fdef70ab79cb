"""Read files and write in folders that a test may have changed.

Follow no link, and wait for no pipe.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, TypeVar

from pytest_leakcheck.model import decoding
from pytest_leakcheck.model.regular_file import open_regular

T = TypeVar("T")
# No link, and no wait for the other end of a pipe; not on Windows.
AS_IT_IS: Final = (
    getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)
# A report with what a test has printed is sent whole; its values take about ten times as much
# memory as their text.
_MAX_BYTES: Final = 32 << 20
_MAX_TAIL_BYTES: Final = 64 << 10
# pytest's own reports have twelve levels.
_MAX_DEPTH: Final = 50


class Unreadable(Exception):
    """A process has sent what this package does not: the test has written or replaced its files."""


def private(path: str | Path, flags: int) -> int:
    """Open a file as the ``opener`` of `open`: create it for this user only, and follow no link."""
    return os.open(path, flags | AS_IT_IS, 0o600)


def write_text(path: Path, text: str) -> None:
    """Write a file for this user only, and follow no link."""
    with open(path, "w", encoding="utf-8", opener=private) as file:
        file.write(text)


def read_text(path: Path) -> str:
    """Return what a process has sent; empty if there is no file.

    Raise `Unreadable` if it is too much, or not a regular file.
    """
    try:
        with open_regular(path, "r", follow=False) as file:
            text: str = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Unreadable(str(error)) from None
    if len(text) > _MAX_BYTES:
        raise Unreadable(f"{path.name} has more than {_MAX_BYTES >> 20} MiB")
    return text


def read_tail(descriptor: int) -> str:
    """Return the end of an open file, whose position processes may share."""
    start = max(0, os.fstat(descriptor).st_size - _MAX_TAIL_BYTES)
    return os.pread(descriptor, _MAX_TAIL_BYTES, start).decode(errors="replace")


def parse(kind: type[T], line: str) -> T:
    """Decode a line of JSON; raise `Unreadable` if it has another type, or is nested too deeply."""
    try:
        value = decoding.parse(line)
        _check_depth([value], _MAX_DEPTH)
        return decoding.decode(kind, value)
    except RecursionError:
        raise Unreadable("its values are nested too deeply") from None
    except decoding.DecodeError as error:
        raise Unreadable(str(error)) from None


def _check_depth(value: Any, left: int) -> None:
    if not left:
        raise RecursionError
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            _check_depth(inner, left - 1)
