"""multidict: operators between a set and the items of a multidict leave pairs behind."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

RELEASES = ("multidict==6.4.2", "multidict==6.9.0")
RESOURCES = ("block",)
TEXT = "operators between a set and the items of a multidict leave pairs behind"
LINK = "https://github.com/aio-libs/multidict/issues/1413"

ITEMS = CIMultiDict([("KEY", "1")]).items()


@pytest.mark.leakcheck
def test_leaky() -> None:
    {("other", "2")} | ITEMS


@pytest.mark.leakcheck
def test_control() -> None:
    ITEMS & {("other", "2")}
