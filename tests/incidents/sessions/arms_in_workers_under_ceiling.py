"""The leaky and the fixed loader in a worker under a ceiling."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib import import_module
from itertools import cycle, islice
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from leakcheck_incidents.pyav_loader.chunks import Recording, record
from leakcheck_incidents.pyav_loader.pictures import openers


class Switches(IterableDataset[int]):
    def __init__(self, implementation: str, recording: Recording) -> None:
        self.implementation, self.recording = implementation, recording

    def __iter__(self) -> Iterator[int]:
        gc.disable()
        arm = import_module(f"leakcheck_incidents.pyav_loader.{self.implementation}")
        chunks = cycle(self.recording.chunks())
        for frames in arm.ChunkStream(openers(arm.VideoLoader, self.recording), chunks):
            yield len(list(islice(frames, 2)))


@pytest.fixture(scope="module")
def recording(synthetic_video: Any) -> Recording:
    return record(synthetic_video, 64)


@pytest.fixture(scope="module", params=["leaky", "fixed"])
def batches(request: pytest.FixtureRequest, recording: Recording) -> Iterator[int]:
    # One switch ahead: a worker that is further ahead at first than at last, as on a busy machine, seems to leak less.
    # Plain numbers: a tensor would be sent by a descriptor, and the worker could run out in the middle of that.
    loader = DataLoader(
        Switches(request.param, recording), num_workers=1, prefetch_factor=1, collate_fn=sum, persistent_workers=True
    )
    return iter(loader)


@pytest.mark.leakcheck_ceiling(fd=128)
def test_switch(batches: Iterator[int]) -> None:
    next(batches)
