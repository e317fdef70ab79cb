"""What is known of torch's objects. Here, and not beside the other unit tests: whatever looks through all objects of a process
takes several times as long once torch is loaded.
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import shared_cache

from pytest_leakcheck.attribution.heap.object_kinds import kinds_of
from pytest_leakcheck.runner.bounded_caches import BoundedOwners


def test_tensors_are_told_by_shape_type_and_place() -> None:
    weight = torch.ones(3, requires_grad=True)
    losses = [(weight * n).sum() for n in range(12)]
    kept = [torch.zeros(2, 3) for _ in range(15)]
    assert [(one.what, one.count) for one in kinds_of([*losses, *kept], 10, 1.0)] == [
        ("Tensor (2, 3) float32 cpu", 15),
        ("Tensor () float32 cpu with its graph", 12),
    ]


def test_references_to_shared_tensors_have_a_bound() -> None:
    owners = BoundedOwners()
    held = {f"storage {number}": number for number in range(40)}
    dict.update(shared_cache, held)
    filling = owners.filling("object")
    of_processes = owners.filling("process", [1, 2])
    filled, limit = len(shared_cache), shared_cache.limit
    for key in held:
        dict.pop(shared_cache, key)
    assert filling is not None
    assert filling.text == f"torch's references to shared storages: {filled} of {limit}"
    assert of_processes is None
    assert owners.filling("object") is None
