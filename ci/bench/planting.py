"""A leak of known size beside clean work, to see whether it is found."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from random import Random
from typing import Any

from workloads import Step

# A chunk of glibc's malloc: as many bytes in use as are asked for and 8 more, in steps of 16, and never less than 32.
_HEADER = 8
_GRAIN = 16
_LEAST = 32


def with_leak(step: Step, leak: str) -> Step:
    """The step, and then the leak.

    Args:
        step: The clean work.
        leak: ``heap:20`` keeps a block of 20 bytes per step, which takes a chunk of 32; ``lumps:20`` keeps 20 bytes
            in use per step on the average, a chunk of 32 or more whenever that much is due; ``fd:0.4`` keeps a
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
        return _with_blocks(step, round(float(amount)))
    if kind == "lumps":
        return _with_lumps(step, float(amount))
    if kind == "fd":
        return _with_descriptors(step, float(amount))
    raise ValueError(f"{leak!r} is none of heap:<bytes>, lumps:<bytes>, fd:<probability>")


def _malloc() -> Callable[[int], None]:
    """Keeps a block of so many bytes, and not even its address: an object to hold that would be a leak of its own."""
    malloc: Any = ctypes.PyDLL(None).malloc
    malloc.restype = None
    malloc.argtypes = [ctypes.c_size_t]
    keep: Callable[[int], None] = malloc
    return keep


def _with_blocks(step: Step, size: int) -> Step:
    malloc = _malloc()

    def both() -> None:
        step()
        malloc(size)

    return both


def _with_lumps(step: Step, rate: float) -> Step:
    malloc = _malloc()
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
