"""Sizes of objects, read without running their code."""

from __future__ import annotations

import pytest

from pytest_leakcheck.attribution.object_inspection import amount


class Sparse:
    """As torch's sparse tensors, which have no storage."""

    @property
    def nbytes(self) -> int:
        raise RuntimeError("unsupported tensor layout")


class Dense:
    nbytes = 40


@pytest.mark.parametrize(("one", "expected"), [(Dense(), 40), (Sparse(), 0), (b"12345", 5), (object(), 0)])
def test_an_array_that_refuses_to_tell_its_size_has_none(one: object, expected: int) -> None:
    arrays = {id(Dense): "array", id(Sparse): "array"}
    assert amount(one, arrays) == expected
