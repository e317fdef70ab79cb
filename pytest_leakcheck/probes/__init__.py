"""The instruments: each probe reads one or more counters of this process, now.

A probe that cannot work here raises `Unavailable` from `open`, with the reason; it never reads a silent 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.heap import Heap
from pytest_leakcheck.probes.objects import Objects
from pytest_leakcheck.probes.rss import Rss

__all__ = ["CATALOG", "Probe", "Unavailable", "open_probes"]


class Probe(Protocol):
    """Reads counters. Whatever it opens or allocates in `open` is part of the start and grows no further in `read`.

    Attributes:
        resources: The counters, in the order in which `read` returns them.
    """

    @property
    def resources(self) -> tuple[str, ...]: ...

    def open(self) -> None:
        """Get ready; raises `Unavailable` where the counter does not exist."""
        ...

    def read(self) -> tuple[int, ...]:
        """The counters now, in the units of `resources.RESOURCES`."""
        ...

    def close(self) -> None:
        """Give back what `open` took."""
        ...


# Beside the process tree, which is always read (`processes.process_tree`). Objects first: what the other probes hand
# out while they read is not yet alive when it counts.
CATALOG: Final[dict[tuple[str, ...], Callable[[], Probe]]] = {
    ("object",): Objects,
    ("heap",): Heap,
    ("rss",): Rss,
}


def open_probes(wanted: Iterable[str]) -> tuple[list[Probe], dict[str, str]]:
    """Open the probes that read the wanted resources.

    Returns:
        The open probes, and for each wanted resource that cannot be read here the reason.
    """
    names = set(wanted)
    probes: list[Probe] = []
    missing: dict[str, str] = {}
    for resources, make in CATALOG.items():
        if names.isdisjoint(resources):
            continue
        probe = make()
        try:
            probe.open()
        except Unavailable as error:
            missing |= {name: str(error) for name in resources if name in names}
        else:
            probes.append(probe)
    return probes, missing
