"""numpy 2.4.0: an assignment to a slice of ``flat``, as in ``numpy.eye``, leaves memory behind."""

from __future__ import annotations

import numpy as np
import pytest

RELEASES = ("numpy==2.4.0",)
KEPT: list[object] = []


@pytest.mark.leakcheck
def test_leaky() -> None:
    np.eye(10, dtype=np.complex128)


@pytest.mark.leakcheck
def test_control() -> None:
    np.zeros((10, 10), dtype=np.complex128)


@pytest.mark.leakcheck
def test_kept() -> None:
    KEPT.append(np.eye(10, dtype=np.complex128))
