"""Live storages of real tensors on the CPU, to the byte."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pytest_leakcheck.probes.torch_storages import StorageAccount

# Of a step below: what its graph keeps. Linear, ReLU and linear give 32 x 64, 32 x 64 and 32 floats, the square
# needs its input, and the mean is a number. The first layer's own output is not needed once the ReLU is there.
GRAPH = 4 * (32 * 64 + 32 * 64 + 32 + 1)


@pytest.fixture
def account() -> Iterator[StorageAccount]:
    account = StorageAccount()
    account.open()
    yield account
    account.close()


def test_a_storage_counts_from_the_operation_that_makes_it_to_its_end(account: StorageAccount) -> None:
    one = torch.zeros(1000)
    assert (account.live, account.highest) == (4000, 4000)
    view = one[10:20]
    del one
    assert account.live == 4000, "a view keeps the whole storage"
    del view
    assert (account.live, account.highest) == (0, 4000)


def test_in_place_work_makes_nothing_new_whether_its_target_is_older_or_not() -> None:
    older = torch.zeros(1000)
    account = StorageAccount()
    account.open()
    try:
        older.add_(1)
        older.t().mul_(2)
        newer = torch.ones(10)
        newer.add_(1)
        assert account.live == 40
        del older
        assert account.live == 40, "what was not counted is not taken off either"
    finally:
        account.close()


def test_what_is_resized_counts_with_its_new_size(account: StorageAccount) -> None:
    tensor = torch.empty(0)
    tensor.resize_(500)
    assert account.live == 2000
    tensor.resize_(100)
    assert account.live in (400, 2000), "torch may keep the storage as it was"
    del tensor
    assert account.live == 0


def test_a_graph_that_is_kept_is_counted_to_the_byte_and_one_that_is_dropped_is_not(account: StorageAccount) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(torch.randn(32, 64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        return loss

    step()
    before = account.live
    for _ in range(5):
        step()
    assert account.live == before, "the fixed loop"
    kept = [step() for _ in range(5)]
    # The input is kept by the first layer, for the gradient of its weights.
    assert account.live - before == 5 * GRAPH
    kept.clear()
    assert account.live == before


def test_a_cycle_is_given_back_by_the_collector(account: StorageAccount) -> None:
    class Holder:
        def __init__(self) -> None:
            self.me, self.tensor = self, torch.zeros(250)

    gc.disable()
    try:
        Holder()
        assert account.live == 1000
        gc.collect()
        assert account.live == 0
    finally:
        gc.enable()


def test_the_mark_can_be_set_back(account: StorageAccount) -> None:
    for size in (1000, 3000, 10):
        torch.zeros(size)
    assert (account.live, account.highest) == (0, 12_000)
    account.reset_peak()
    torch.zeros(10)
    assert account.highest == 40


def test_a_limit_is_what_the_operation_fails_with() -> None:
    class Limited(StorageAccount):
        def came(self, key: int, size: int) -> None:  # noqa: ARG002 - of the account's interface
            if self.live + size > 1000:
                raise MemoryError(f"{size} B more")

    account = Limited()
    account.open()
    try:
        kept = torch.zeros(200)
        with pytest.raises(MemoryError, match="400 B more"):
            torch.zeros(100)
        assert account.live == 800, "what failed does not count"
        del kept
        assert torch.zeros(200).numel() == 200
    finally:
        account.close()


def test_the_pieces_are_what_is_live(account: StorageAccount) -> None:
    kept = [torch.zeros(size) for size in (10, 20, 30)]
    assert sorted(account.pieces().values()) == [40, 80, 120]
    del kept[1]
    assert sorted(account.pieces().values()) == [40, 120]
