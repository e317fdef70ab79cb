"""netCDF4: a file with a type of enumeration leaves memory behind."""

from __future__ import annotations

import netCDF4
import pytest

RELEASES = ("netCDF4==1.7.5.1",)
RESOURCES = ("heap",)
TEXT = "each file with an enum type leaves memory behind"


@pytest.mark.leakcheck
def test_leaky() -> None:
    with netCDF4.Dataset("file", "w", diskless=True) as file:
        file.createEnumType("u1", "colour", {"red": 1})


@pytest.mark.leakcheck
def test_control() -> None:
    with netCDF4.Dataset("file", "w", diskless=True) as file:
        file.createDimension("time", 1)
