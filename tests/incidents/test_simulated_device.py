"""What the docstring of the simulated device says, and tensors that are charged to it."""

from __future__ import annotations

import contextlib
import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakcheck_incidents.synthetic.simulated_device import GRAIN, DeviceOutOfMemory, SimulatedDevice

MIB = 1 << 20


@given(st.lists(st.one_of(st.integers(0, 40 * MIB), st.none()), max_size=30))
def test_any_sequence_of_requests_and_returns_against_a_plain_list(steps: list[int | None]) -> None:
    """A number is a request, and None returns the oldest."""
    device = SimulatedDevice(64 * MIB)
    given: dict[object, int] = {}
    highest = 0
    for size in steps:
        rounded = max(1, -(-(size or 0) // GRAIN)) * GRAIN
        if size is None:
            for address in [*given][:1]:
                assert isinstance(address, int)
                device.free(address)
                del given[address]
        elif sum(given.values()) + rounded > 64 * MIB:
            with pytest.raises(DeviceOutOfMemory):
                device.allocate(size)
        else:
            given[device.allocate(size)] = rounded
        highest = max(highest, sum(given.values()))
        assert device.pieces() == given
        assert device.allocated() == sum(given.values())
        assert (device.peak(), device.driver()) == (highest, highest)
    device.settle()
    assert device.reserved() == device.allocated()


def test_a_ceiling_below_the_capacity_holds_until_it_is_lifted() -> None:
    device = SimulatedDevice(100 * MIB)
    lift = device.limit(20 * MIB)
    with pytest.raises(DeviceOutOfMemory, match=r"CUDA out of memory \(simulated\)\. Tried to allocate 31,457,280 B"):
        device.allocate(30 * MIB)
    lift()
    device.free(address := device.allocate(30 * MIB))
    with pytest.raises(KeyError):
        device.free(address)


def test_real_tensors_are_charged_and_too_large_ones_fail() -> None:
    device = SimulatedDevice(30 * MIB)
    with device.charging():
        weights = torch.zeros(1024, 1024)
        assert device.allocated() == 4 * MIB
        squared = weights @ weights
        assert device.allocated() == 8 * MIB
        with pytest.raises(DeviceOutOfMemory, match=r"Tried to allocate 67,108,864 B on sim:0"):
            torch.zeros(4096, 4096)
        del squared
        assert device.allocated() == 4 * MIB
    del weights
    assert device.allocated() == 0
    with contextlib.suppress(DeviceOutOfMemory):
        torch.zeros(4096, 4096)
    assert device.peak() == 8 * MIB


def test_what_outlives_the_charging_is_given_back_when_it_goes() -> None:
    """By the collector too: a trainer and its model are a cycle."""

    class Cyclic:
        def __init__(self) -> None:
            self.me, self.tensor = self, torch.zeros(1000)

    device = SimulatedDevice(MIB)
    with device.charging():
        cyclic = Cyclic()
    assert device.allocated() == 4096
    del cyclic
    gc.collect()
    assert device.allocated() == 0
