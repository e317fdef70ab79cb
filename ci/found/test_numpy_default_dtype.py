"""numpy: ``zeros`` and ``empty`` without a dtype gain a reference to float64 in each call."""

from __future__ import annotations

import numpy as np
import pytest

RELEASES = ("numpy==2.0.0", "numpy==2.4.6")
RESOURCES = ("reference",)
TEXT = "zeros and empty without a dtype gain a reference to the dtype float64 in each call"
OBJECT = "np.dtype('d')"


@pytest.mark.leakcheck
def test_leaky() -> None:
    np.zeros(4)


@pytest.mark.leakcheck
def test_control() -> None:
    np.zeros(4, dtype="d")
