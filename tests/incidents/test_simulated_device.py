"""What the docstring of the simulated device says, one property each."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from leakcheck_incidents.synthetic.simulated_device import GRAIN, DeviceOutOfMemory, SimulatedDevice

MIB = 1 << 20
# Around the borders of the pools, and far from them.
SIZES = st.one_of(
    st.integers(0, 2 * MIB),
    st.sampled_from([0, 1, GRAIN, GRAIN + 1, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1]),
    st.integers(MIB, 64 * MIB),
)


class Allocator(RuleBasedStateMachine):
    """Any sequence of requests and returns, against a plain list of what is given out."""

    addresses = Bundle("addresses")

    def __init__(self) -> None:
        super().__init__()
        self.capacity = 128 * MIB
        self.device = SimulatedDevice(self.capacity, context=MIB)
        self.given: dict[int, int] = {}
        self.highest = 0

    @rule(target=addresses, size=SIZES)
    def allocate(self, size: int) -> object:
        before = self.device.allocated(), self.device.pieces()
        try:
            address = self.device.allocate(size)
        except DeviceOutOfMemory:
            assert (self.device.allocated(), self.device.pieces()) == before, "what fails changes nothing else"
            assert self._cannot_be_served(size)
            return multiple()
        self.given[address] = size
        self.highest = max(self.highest, self.device.allocated())
        return address

    def _cannot_be_served(self, size: int) -> bool:
        """By trying: all that is free as a whole was given back, so a request as large must fail on what is left."""
        wanted = max(1, -(-size // GRAIN)) * GRAIN
        segment = 2 * MIB if wanted <= MIB else 20 * MIB if wanted < 10 * MIB else -(-wanted // (2 * MIB)) * 2 * MIB
        return self.device.driver() + segment > self.capacity

    @rule(address=consumes(addresses))
    def free(self, address: int) -> None:
        self.device.free(address)
        del self.given[address]

    @rule()
    def empty_cache(self) -> None:
        self.device.empty_cache()

    @invariant()
    def what_is_given_out_is_the_request_rounded_up_and_does_not_overlap(self) -> None:
        pieces = self.device.pieces()
        assert pieces.keys() == self.given.keys()
        for address, asked in self.given.items():
            assert pieces[address] % GRAIN == 0
            # The rest of a block that is not worth splitting off is given out with it.
            assert asked <= pieces[address] <= max(asked + GRAIN, asked + MIB + GRAIN)
        spans = sorted((address, address + size) for address, size in pieces.items() if isinstance(address, int))
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))

    @invariant()
    def the_figures_agree(self) -> None:
        device = self.device
        assert device.allocated() == sum(device.pieces().values())
        assert device.allocated() <= device.reserved()
        assert device.driver() == device.reserved() + MIB <= self.capacity
        assert device.peak() == self.highest
        assert 0 <= device.fragmentation < 1

    def teardown(self) -> None:
        for address in list(self.given):
            self.device.free(address)
        assert self.device.allocated() == 0
        self.device.empty_cache()
        assert (self.device.reserved(), self.device.driver(), self.device.fragmentation) == (0, MIB, 0.0)


TestAllocator = Allocator.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, MIB), min_size=1, max_size=40), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_what_is_freed_serves_the_same_again_in_any_order(sizes: list[int], order: object) -> None:
    device = SimulatedDevice(128 * MIB)
    addresses = [device.allocate(size) for size in sizes]
    reserved = device.reserved()
    order.shuffle(addresses)  # type: ignore[attr-defined]  # of random.Random
    for address in addresses:
        device.free(address)
    assert device.fragmentation == pytest.approx(1 - 2 * MIB / reserved), "neighbours were joined to whole segments"
    for size in sizes:
        device.allocate(size)
    assert device.reserved() == reserved


def test_memory_runs_out_by_fragmentation_while_more_than_was_asked_for_is_free() -> None:
    device = SimulatedDevice(40 * MIB)
    blocks = [device.allocate(5 * MIB) for _ in range(8)]
    for address in blocks[::2]:
        device.free(address)
    assert device.reserved() - device.allocated() == 20 * MIB
    assert device.fragmentation == 0.75
    with pytest.raises(DeviceOutOfMemory, match=r"CUDA out of memory \(simulated\).*20,971,520 B reserved and free"):
        device.allocate(6 * MIB)
    # The fix: the block between two free ones is given back too, and all three are joined.
    device.free(blocks[1])
    device.allocate(6 * MIB)


def test_a_ceiling_below_the_capacity_holds_until_it_is_lifted() -> None:
    device = SimulatedDevice(100 * MIB)
    lift = device.limit(20 * MIB)
    with pytest.raises(DeviceOutOfMemory):
        device.allocate(30 * MIB)
    lift()
    device.allocate(30 * MIB)


def test_nothing_can_be_freed_twice() -> None:
    device = SimulatedDevice(MIB * 4)
    address = device.allocate(1)
    device.free(address)
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
