"""pathlib: each part of a path stays for good, because it is interned, and interned strings are immortal."""

from __future__ import annotations

from itertools import count
from pathlib import PurePath

import pytest

RELEASES = ("python==3.12.1",)

NUMBERS = count()
KEPT: list[str] = []


@pytest.mark.leakcheck
def test_leaky() -> None:
    str(PurePath("folder", f"a-file-with-a-name-of-its-own-{next(NUMBERS)}"))


@pytest.mark.leakcheck
def test_control() -> None:
    str(PurePath("folder", "a-file-with-one-name"))


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(PurePath("folder", "a-file-with-one-name").name + str(next(NUMBERS)))
