"""pyarrow: a generator of Cython gains a reference to its class in each call."""

from __future__ import annotations

import pyarrow as pa
import pytest

RELEASES = ("pyarrow==23.0.1", "pyarrow==26.0.1")
RESOURCES = ("reference",)
TEXT = "each generator gains a reference to Cython's class of generators, which Cython 3.2 and 3.3 do not release"
OBJECT = "type(TABLE.itercolumns())"

TABLE = pa.table({"a": [1]})
list(TABLE.itercolumns())


@pytest.mark.leakcheck
def test_leaky() -> None:
    list(TABLE.itercolumns())


@pytest.mark.leakcheck
def test_control() -> None:
    TABLE.columns  # noqa: B018 - the property is what is tried
