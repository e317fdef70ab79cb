"""lmdb: ``Cursor.getmulti`` loses a memory block when it raises ``ValueError``."""

from __future__ import annotations

import tempfile
from contextlib import suppress

import lmdb
import pytest

RELEASES = ("lmdb==3.0.0",)
RESOURCES = ("block",)
TEXT = "Cursor.getmulti leaves a memory block behind if it raises ValueError"

ENVIRONMENT = lmdb.open(tempfile.mkdtemp(), max_dbs=1)
ROWS = ENVIRONMENT.open_db(b"rows", dupsort=True, dupfixed=True)
with ENVIRONMENT.begin(write=True, db=ROWS) as rows:
    rows.put(b"a", b"1")
    rows.put(b"bb", b"2")
CURSOR = ENVIRONMENT.begin(db=ROWS).cursor()


@pytest.mark.leakcheck
def test_leaky() -> None:
    with suppress(ValueError):
        CURSOR.getmulti([b"a", b"bb"], dupdata=True, dupfixed_bytes=1, keyfixed=True)


@pytest.mark.leakcheck
def test_control() -> None:
    CURSOR.getmulti([b"a", b"bb"], dupdata=True, dupfixed_bytes=1)
