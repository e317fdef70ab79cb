"""xml: only the garbage collector closes the file of an ``ElementTree.iterparse`` that was not read to its end."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("xml") / "file.xml"
    path.write_text("<rows><row/><row/></rows>", encoding="utf-8")
    return path


@pytest.mark.leakcheck
def test_leaky(file: Path) -> None:
    next(ET.iterparse(file))  # noqa: S314 - it is the file above


@pytest.mark.leakcheck
def test_control(file: Path) -> None:
    for _event, _element in ET.iterparse(file):  # noqa: S314
        pass


KEPT: list[object] = []


@pytest.mark.leakcheck
def test_kept(file: Path) -> None:
    KEPT.append(ET.iterparse(file))  # noqa: S314
