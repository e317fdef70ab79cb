"""PyTables: reading a compressed array leaves two memory blocks behind."""

from __future__ import annotations

import pytest
import tables

RELEASES = ("tables==3.11.1",)
RESOURCES = ("block",)
TEXT = "each compressed array that is opened leaves two memory blocks behind"

FILE = tables.open_file("rows", "w", driver="H5FD_CORE", driver_core_backing_store=0)
FILE.create_carray("/", "packed", obj=[1, 2, 3], filters=tables.Filters(complevel=1))
FILE.create_array("/", "plain", obj=[1, 2, 3])


def read(path: str) -> None:
    array = FILE.get_node(path)
    array.read()
    array.close()


@pytest.mark.leakcheck
def test_leaky() -> None:
    read("/packed")


@pytest.mark.leakcheck
def test_control() -> None:
    read("/plain")
