"""Parameters of which the gate takes a part, and the laboratory the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def variants(gate: Iterable[Any], laboratory: Iterable[Any]) -> list[Any]:
    return [*gate, *(pytest.param(one, marks=pytest.mark.laboratory) for one in laboratory)]
