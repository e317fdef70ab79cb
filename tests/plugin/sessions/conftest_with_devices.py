"""Two devices that are models."""

from __future__ import annotations

import pytest

from pytest_leakcheck import Device

MIB = 1 << 20


class Model(Device):
    kind = "simulated"

    def __init__(self, name: str) -> None:
        self.name = name
        self.given, self.seen, self.lost = 10 * MIB, 500 * MIB, False

    def allocate(self, size: int, *, seen: bool = True) -> None:
        self.given += size
        self.seen += size if seen else 0

    def allocated(self) -> int:
        if self.lost:
            raise RuntimeError("CUDA error: the launch timed out")
        return self.given

    def driver(self) -> int:
        return self.seen


FIRST, SECOND = Model("sim:0"), Model("sim:1")


def pytest_leakcheck_probes(config: pytest.Config) -> list[Device]:
    return [FIRST, SECOND]


@pytest.fixture
def first() -> Model:
    FIRST.lost = False
    return FIRST


@pytest.fixture
def second() -> Model:
    return SECOND
