"""A worker of a DataLoader keeps a file, or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

# A test sets them.
LEAKY = True
CONTEXT = "fork"

KEPT: list[int] = []


class Frames(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> int:
        file = os.open(__file__, os.O_RDONLY)  # of test_next LEAK
        KEPT.append(file) if LEAKY else os.close(file)
        return index


@pytest.fixture(scope="module")
def batches() -> Iterator[list[int]]:
    # A tensor would have a descriptor while it is in transit.
    loader = torch.utils.data.DataLoader(
        Frames(), batch_size=4, num_workers=1, collate_fn=list, multiprocessing_context=CONTEXT, prefetch_factor=1
    )
    return iter(loader)


@pytest.mark.fd_budget(0)
def test_next(batches: Any) -> None:
    next(batches)
    wait_until_idle(batches)


def wait_until_idle(batches: Any) -> None:
    import time

    while batches._index_queues[0]._reader.poll() or not batches._worker_result_queue._reader.poll():
        time.sleep(0.001)
