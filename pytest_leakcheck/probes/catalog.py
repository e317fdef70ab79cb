"""List each resource's instrument, also a project's own counters, and open requested ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.resources import RESOURCES, MadeOf, Resource
from pytest_leakcheck.model.units import Unit
from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import Instrument, Stateless, Unavailable
from pytest_leakcheck.probes.device import Device, Vram

# These are read before the others, so that temporary objects of the other readings are not counted.
_READ_FIRST: Final = ("object", "block")


def _make(path: str) -> Instrument:
    module, _, name = path.partition(":")
    instrument: Instrument = getattr(import_module(f"pytest_leakcheck.probes.{module}"), name)()
    return instrument


# Functions that make an instrument, by resource. The process tree and the shared folders are not
# listed here: `runner.readings` opens them.
CATALOG: Final[dict[str, Callable[[], Instrument]]] = {
    name: partial(_make, RESOURCES[name].instrument)
    for name in sorted(RESOURCES, key=lambda name: name not in _READ_FIRST)
    if RESOURCES[name].instrument
}


def open_instruments(wanted: Iterable[str]) -> tuple[list[Instrument], dict[str, Unavailable]]:
    """Open instruments of the wanted resources; return them, and why others cannot be read here."""
    names = set(wanted)
    instruments: list[Instrument] = []
    missing: dict[str, Unavailable] = {}
    for resource, make in CATALOG.items():
        if resource in names:
            instrument = make()
            try:
                instrument.open()
            except Unavailable as error:
                missing[resource] = error.released()
            else:
                instruments.append(instrument)
    return instruments, missing


class ProbeError(LeakcheckError, ValueError):
    """The error that a probe cannot be added: quotes the invalid value and says what is valid."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A project's counter from the hook ``pytest_leakcheck_probes``; `ProbeError` if it is invalid.

    Attributes:
        name: An identifier in lower case; the marker is ``<name>_budget``.
        read: Returns the current value. It is called after each iteration, so it must be fast and
            retain nothing.
        plural: For reports; by default the name with an s.
        scarce: The counter is exact and counts a limited resource, so it is judged after few
            iterations. If false, it is judged like memory, over a horizon of 200 iterations.
        tolerance: Growth per iteration that is never called a leak, in the counter's unit.
        default: Judge the counter in each test that carries ``leakcheck`` and names no resources.
    """

    name: str
    read: Callable[[], int]
    unit: Unit = "count"
    plural: str = ""
    scarce: bool = True
    tolerance: float = 0.0
    default: bool = True

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name != self.name.lower():
            raise ProbeError(
                f"Probe({self.name!r}): the name is not a lower-case identifier, such as 'connection'"
            )
        if self.unit not in ("count", "bytes"):
            raise ProbeError(
                f"Probe({self.name!r}): unit={self.unit!r} is neither 'count' nor 'bytes'"
            )

    def as_resource(self) -> Resource:
        plural = self.plural or f"{self.name}s"
        made_of: MadeOf = "memory" if self.unit == "bytes" else "anything"
        return Resource(
            self.name,
            self.unit,
            plural,
            self.scarce,
            self.tolerance,
            default=self.default,
            made_of=made_of,
        )


class _ProbeInstrument(Stateless):
    def __init__(self, probe: Probe) -> None:
        self.resource = probe.name
        self.read = probe.read

    def open(self) -> None:
        """Read once, so that a failing counter is unavailable instead of failing the test."""
        try:
            value = self.read()
        except Exception as error:  # noqa: BLE001 - the project's code may raise anything
            raise Unavailable(
                f"the probe {self.resource!r} raised {type(error).__name__}: {error}"
            ) from None
        if not isinstance(value, int):
            raise Unavailable(
                f"the probe {self.resource!r} returned {value!r}, which is not a whole number"
            )


_added_names: list[str] = []
_added_devices: list[Device] = []
_DEFAULT_VRAM: Final = CATALOG["vram"]


def add_probes(probes: Iterable[Probe | Device]) -> None:
    """Register probes for this session, or raise `ProbeError`.

    Devices replace those that ``vram`` finds by itself.
    """
    given = tuple(probes)
    _added_devices.extend(one for one in given if isinstance(one, Device))
    if _added_devices:
        CATALOG["vram"] = lambda: Vram(lambda: tuple(_added_devices))
    for probe in (one for one in given if not isinstance(one, Device)):
        if not isinstance(probe, Probe):
            raise ProbeError(
                f"{probe!r} is neither a Probe nor a Device: return [Probe('connection', read=pool.size)]"
            )
        if probe.name in RESOURCES:
            whose = "used twice" if probe.name in _added_names else "a resource of pytest-leakcheck"
            raise ProbeError(f"Probe({probe.name!r}): that name is {whose}; choose another")
        RESOURCES[probe.name] = probe.as_resource()
        CATALOG[probe.name] = lambda probe=probe: _ProbeInstrument(probe)  # type: ignore[misc]
        _added_names.append(probe.name)


def account_for_tensors() -> None:
    """Let ``vram`` sum live tensors on the CPU if there is no accelerator.

    This has no effect if the project has added devices.
    """
    if CATALOG["vram"] is _DEFAULT_VRAM:
        CATALOG["vram"] = lambda: Vram(partial(find_accelerators, accounted=True))


def remove_probes() -> None:
    """Unregister the added probes and devices, at the end of a session."""
    for name in _added_names:
        del RESOURCES[name], CATALOG[name]
    _added_names.clear()
    _added_devices.clear()
    CATALOG["vram"] = _DEFAULT_VRAM
