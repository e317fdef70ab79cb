"""xml: only the garbage collector closes the file of an ``ElementTree.iterparse`` that was not read to its end."""

from __future__ import annotations

import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1")
UNCLOSED = True

FILE = Path(tempfile.mkdtemp(), "rows.xml")
FILE.write_text("<rows><row/><row/></rows>", encoding="utf-8")


@pytest.mark.leakcheck
def test_leaky() -> None:
    next(ET.iterparse(FILE))  # noqa: S314 - it is the file above


@pytest.mark.leakcheck
def test_control() -> None:
    for _event, _element in ET.iterparse(FILE):  # noqa: S314
        pass


KEPT: list[object] = []


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(ET.iterparse(FILE))  # noqa: S314
