"""multidict: pop, popall and popitem leave the text of the key behind."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

RELEASES = ("multidict==6.5.1", "multidict==6.6.3")
RESOURCES = ("block",)
TEXT = "pop, popall and popitem leave the text of the key behind"
LINK = "https://github.com/aio-libs/multidict/issues/1233"


@pytest.mark.leakcheck
def test_leaky() -> None:
    CIMultiDict([("Key", "1")]).pop("key")


@pytest.mark.leakcheck
def test_control() -> None:
    CIMultiDict([("Key", "1")]).get("key")
