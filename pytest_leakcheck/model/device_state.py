"""The memory of one device at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """One device at one moment, in bytes.

    Attributes:
        device: Its name.
        allocated: Given out to live tensors.
        reserved: Taken from the driver, given out or not; None where the allocator does not tell.
        driver: What the driver counts; None where it was not asked.
    """

    device: str
    allocated: int
    reserved: int | None = None
    driver: int | None = None
