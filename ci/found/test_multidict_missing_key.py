"""multidict: pop and popone of a key that a CIMultiDict lacks leave a string behind."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

RELEASES = ("multidict==6.4.2", "multidict==6.7.0")
RESOURCES = ("block",)
TEXT = "pop and popone of a key that a CIMultiDict lacks leave a string behind"
LINK = "https://github.com/aio-libs/multidict/issues/1284"

ROWS = CIMultiDict([("kept", "1")])


@pytest.mark.leakcheck
def test_leaky() -> None:
    ROWS.pop("Missing", None)


@pytest.mark.leakcheck
def test_control() -> None:
    ROWS.get("Missing")
