"""List the instrument of each resource and open the requested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Final

from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.probes.base import Instrument, Unavailable

# These are read before the others, so that temporary objects of the other readings are not counted.
_READ_FIRST: Final = ("object", "block")


def _make(path: str) -> Instrument:
    module, _, name = path.partition(":")
    instrument: Instrument = getattr(import_module(f"pytest_leakcheck.probes.{module}"), name)()
    return instrument


# Functions that make an instrument, by resource. The process tree and the shared folders are not listed here:
# `runner.readings` opens them.
CATALOG: Final[dict[str, Callable[[], Instrument]]] = {
    name: partial(_make, RESOURCES[name].instrument)
    for name in sorted(RESOURCES, key=lambda name: name not in _READ_FIRST)
    if RESOURCES[name].instrument
}


def open_instruments(wanted: Iterable[str]) -> tuple[list[Instrument], dict[str, Unavailable]]:
    """Open the instruments of the wanted resources; return them, and the reasons for those that cannot be read here."""
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
