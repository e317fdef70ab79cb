"""List the instrument of each resource and open the requested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import Instrument, Unavailable
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.library_counters import ArrowPool, Tasks
from pytest_leakcheck.probes.memory import Mapped, Rss
from pytest_leakcheck.probes.native_heap import Heap
from pytest_leakcheck.probes.python_objects import Blocks, Objects

# `runner.sampler` reads the process tree and the shared folders separately. Objects come first, so that temporary
# objects of the other readings are not counted.
CATALOG: Final[dict[str, Callable[[], Instrument]]] = {
    "object": Objects,
    "block": Blocks,
    "task": Tasks,
    "arrow": ArrowPool,
    "vram": lambda: Vram(find_accelerators),
    "heap": Heap,
    "mmap": Mapped,
    "rss": Rss,
}


def open_instruments(wanted: Iterable[str]) -> tuple[list[Instrument], dict[str, Unavailable]]:
    """Open the instruments that read the wanted resources.

    Returns:
        The open instruments, and for each wanted resource that cannot be read here the reason.
    """
    names = set(wanted)
    instruments: list[Instrument] = []
    missing: dict[str, Unavailable] = {}
    for resource, make in CATALOG.items():
        if resource in names:
            instrument = make()
            try:
                instrument.open()
            except Unavailable as error:
                missing[resource] = error
            else:
                instruments.append(instrument)
    return instruments, missing
