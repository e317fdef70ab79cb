"""Describe the memory of one device at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """The memory of one device at one moment, in bytes.

    Live tensors have `allocated`. The allocator obtained `reserved` from the driver, in use or not; None if it does not
    report this. The driver reports `driver` as in use; None if it was not queried.
    """

    device: str
    allocated: int
    reserved: int | None = None
    driver: int | None = None
