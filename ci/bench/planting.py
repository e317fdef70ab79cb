"""A leak of known size beside clean work, to see whether it is found."""

from __future__ import annotations

import ctypes
import os
from random import Random

from workloads import Step

# A chunk of glibc's malloc: as many bytes in use as are asked for and 8 more, in steps of 16, and never less than 32.
_HEADER = 8
_GRAIN = 16
_LEAST = 32


def with_leak(step: Step, leak: str) -> Step:
    """The step, and then the leak.

    Args:
        step: The clean work.
        leak: ``heap:120`` keeps 120 bytes per step on the average, in chunks of at least 32; ``fd:0.4`` keeps a
            descriptor after a step with that probability; nothing leaks nothing.

    Returns:
        What a test repeats.

    Raises:
        ValueError: Another word.
    """
    if not leak:
        return step
    kind, _, amount = leak.partition(":")
    if kind == "heap":
        return _with_bytes(step, float(amount))
    if kind == "fd":
        return _with_descriptors(step, float(amount))
    raise ValueError(f"{leak!r} is neither heap:<bytes> nor fd:<probability>")


def _with_bytes(step: Step, rate: float) -> Step:
    # Kept by its address alone: an object to hold it would be a leak of its own, and another counter would tell.
    malloc = ctypes.PyDLL(None).malloc
    malloc.restype = ctypes.c_void_p
    malloc.argtypes = [ctypes.c_size_t]
    owed = 0.0

    def both() -> None:
        nonlocal owed
        step()
        owed += rate
        if owed >= _LEAST:
            chunk = int(owed) // _GRAIN * _GRAIN
            owed -= chunk
            malloc(chunk - _HEADER)

    return both


def _with_descriptors(step: Step, probability: float) -> Step:
    # Not seeded: each process is to plant at places of its own.
    chance = Random()  # noqa: S311 - it only has to be even

    def both() -> None:
        step()
        if chance.random() < probability:
            os.open(os.devnull, os.O_RDONLY)

    return both
