"""pympler: ``asizeof`` keeps each class that it has measured an object of."""

from __future__ import annotations

import pytest
from pympler import asizeof

RELEASES = ("pympler==1.1",)
RESOURCES = ("object",)
TEXT = "asizeof keeps each class of which it has measured an object"


@pytest.mark.leakcheck
def test_leaky() -> None:
    asizeof.asizeof(type("Point", (), {})())


@pytest.mark.leakcheck
def test_control() -> None:
    asizeof.asizeof([])
