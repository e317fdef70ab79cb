"""A training loop that keeps its loss, or not."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

from pytest_leakcheck import Leakcheck

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
history: list[torch.Tensor] = []
KEPT: list[int] = []


def step() -> Any:
    loss = model(torch.randn(32, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    return loss


@pytest.mark.vram_budget(0)
def test_leaky() -> None:
    history.append(step())


@pytest.mark.vram_budget(0)
def test_fixed() -> None:
    last = step().item()


@pytest.mark.vram_budget(0)
@pytest.mark.fd_budget(0)
def test_another_leak() -> None:
    step()
    KEPT.append(os.open(__file__, os.O_RDONLY))


class Cyclic:
    def __init__(self) -> None:
        self.me, self.tensor = self, torch.zeros(1000)


@pytest.mark.vram_budget(0)
def test_cycle() -> None:
    Cyclic()


@pytest.mark.vram_budget(0, unclosed="allow")
def test_cycle_allowed() -> None:
    Cyclic()


@pytest.mark.vram_budget("4 KiB", peak="2 MiB")
def test_peak() -> None:
    torch.zeros(1 << 20)


@pytest.mark.vram_budget("4 KiB", peak="5 MiB")
def test_low_peak() -> None:
    torch.zeros(1 << 20)


@pytest.mark.leakcheck(iterations=20)
def test_defaults() -> None:
    step()


def test_peak_in_a_loop(leakcheck: Leakcheck) -> None:
    for _ in leakcheck.steps(vram=0):
        step()


def test_low_block(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(vram=0):
        step()
