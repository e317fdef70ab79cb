"""Describe the memory of one device at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class State:
    """The memory of one device at one moment, in bytes.

    Attributes:
        device: The name of the device.
        allocated: Memory allocated to live tensors.
        reserved: Memory that the allocator obtained from the driver, in use or not; None if the allocator does not
            report this.
        driver: Memory in use as reported by the driver; None if it was not queried.
    """

    device: str
    allocated: int
    reserved: int | None = None
    driver: int | None = None
