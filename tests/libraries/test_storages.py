"""Live storages of real tensors on the CPU, to the byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_leakcheck.probes.torch_storages import StorageAccount


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
