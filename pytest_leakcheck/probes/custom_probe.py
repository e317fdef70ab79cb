"""Counters that a project adds: judged in every test beside the plugin's own, and bounded by ``<name>_budget``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pytest_leakcheck.model.resources import RESOURCES, MadeOf, Resource
from pytest_leakcheck.model.units import Unit
from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.catalog import CATALOG
from pytest_leakcheck.probes.device import Device, Vram


class ProbeError(ValueError):
    """A probe that cannot be added; the message says what was seen, whose it is, and what is valid."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A counter of the project's own, returned from the hook ``pytest_leakcheck_probes``.

    Attributes:
        name: An identifier in lower case; the marker is ``<name>_budget``.
        read: The counter now, in its unit. Called after each iteration, so it must be quick, and keep nothing.
        unit: ``"count"`` or ``"bytes"``.
        plural: What the report calls several of it; by default the name with an s.
        scarce: Exact, and of things that run out: judged after few iterations. Else judged as memory is, over a horizon
            of 200 iterations.
        tolerance: Growth per iteration that is never called a leak, in the unit.
        default: Judged in each test that carries ``leakcheck`` and names no resources.

    Raises:
        ProbeError: The name is no identifier in lower case, or the unit is unknown.
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
            raise ProbeError(f"Probe({self.name!r}): the name is no identifier in lower case, such as 'connection'")
        if self.unit not in ("count", "bytes"):
            raise ProbeError(f"Probe({self.name!r}): unit={self.unit!r} is neither 'count' nor 'bytes'")

    def as_resource(self) -> Resource:
        """The row of the table of resources."""
        plural = self.plural or f"{self.name}s"
        made_of: MadeOf = "memory" if self.unit == "bytes" else "anything"
        return Resource(
            self.name, self.unit, plural, self.scarce, self.tolerance, default=self.default, made_of=made_of
        )


class _Reading:
    """The instrument of a probe."""

    def __init__(self, probe: Probe) -> None:
        self.resource = probe.name
        self.read = probe.read

    def open(self) -> None:
        """Read once, so that a counter that does not work is an absent instrument and no broken test."""
        try:
            value = self.read()
        except Exception as error:  # noqa: BLE001 - the project's code may raise anything
            raise Unavailable(f"the probe {self.resource!r} raised {type(error).__name__}: {error}") from None
        if not isinstance(value, int):
            raise Unavailable(f"the probe {self.resource!r} gave {value!r}, which is no whole number")

    def close(self) -> None:
        """Nothing was opened."""


_added: list[str] = []
_OWN_VRAM: Final = CATALOG["vram"]


def add_probes(probes: Iterable[Probe | Device]) -> None:
    """Make probes known for this session. Devices take the place of those that ``vram`` would find itself.

    Raises:
        ProbeError: A name is taken, or something is neither a probe nor a device.
    """
    given = tuple(probes)
    devices = tuple(one for one in given if isinstance(one, Device))
    if devices:
        CATALOG["vram"] = lambda: Vram(lambda: devices)
    for probe in given:
        if isinstance(probe, Device):
            continue
        if not isinstance(probe, Probe):
            raise ProbeError(f"{probe!r} is neither a Probe nor a Device: return [Probe('connection', read=pool.size)]")
        if probe.name in RESOURCES:
            whose = "added twice" if probe.name in _added else "a resource of pytest-leakcheck"
            raise ProbeError(f"Probe({probe.name!r}): that name is {whose}; choose another")
        RESOURCES[probe.name] = probe.as_resource()
        CATALOG[probe.name] = lambda probe=probe: _Reading(probe)  # type: ignore[misc]
        _added.append(probe.name)


def account_for_tensors() -> None:
    """Where there is no accelerator, let ``vram`` read what tensors on the CPU come to, unless devices were added."""
    if CATALOG["vram"] is _OWN_VRAM:
        CATALOG["vram"] = lambda: Vram(partial(find_accelerators, accounted=True))


def remove_probes() -> None:
    """Forget what was added, at the end of a session."""
    for name in _added:
        del RESOURCES[name], CATALOG[name]
    _added.clear()
    CATALOG["vram"] = _OWN_VRAM
