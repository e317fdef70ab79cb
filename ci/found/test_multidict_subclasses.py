"""multidict: an instance of a subclass keeps its class."""

from __future__ import annotations

import pytest
from multidict import MultiDict

RELEASES = ("multidict==6.4.2", "multidict==6.7.1")
RESOURCES = ("object",)
TEXT = "an instance of a subclass keeps its class"
LINK = "https://github.com/aio-libs/multidict/issues/1415"


@pytest.mark.leakcheck
def test_leaky() -> None:
    class Rows(MultiDict[str]):
        pass

    Rows()


@pytest.mark.leakcheck
def test_control() -> None:
    class Rows(dict[str, str]):
        pass

    Rows()
