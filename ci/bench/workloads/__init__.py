"""Clean workloads (work that leaks nothing) for `census.py`, which counts false alarms.

To add a workload, add a function to one of the modules of this package, for example::

    @workload("yaml")
    def yaml_round_trip(chance: Random, folder: Path) -> Step:
        yaml = import_module("yaml")
        return lambda: yaml.safe_load(yaml.safe_dump([chance.random() for _ in range(100)]))

The arguments of the decorator are the import names of the packages that the workload needs in addition to the standard
library. The code before ``return`` runs once, like the imports of a test file; a call of the returned step is one run
of the test. The step draws random data from `chance`, so that no two calls are equal. It may write to `folder`, but
must leave nothing there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

Step: TypeAlias = Callable[[], object]
Prepare: TypeAlias = Callable[[Random, Path], Step]

_MODULES: Final = ("stdlib", "network", "tables", "learning", "pictures")


@dataclass(frozen=True, slots=True)
class Workload:
    """A piece of work that is assumed to leak nothing.

    Attributes:
        name: Name in the census.
        prepare: Creates the step.
        needs: Packages that must be importable.
        heap: Growth per iteration, as in a marker, that is tolerated because the library retains it; may be empty.
        reason: What the library retains, and how that was found.
    """

    name: str
    prepare: Prepare
    needs: tuple[str, ...]
    heap: str
    reason: str

    @property
    def missing(self) -> tuple[str, ...]:
        """List the needed packages that cannot be imported here."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def step(self, seed: int, folder: Path) -> Step:
        """Create the step. The seed determines all random data of the step, in every process."""
        return self.prepare(Random(f"{self.name}/{seed}"), folder)


_registered: dict[str, Workload] = {}


def workload(*needs: str, heap: str = "", reason: str = "") -> Callable[[Prepare], Prepare]:
    """Register a function as a workload, under the function's name."""

    def enter(prepare: Prepare) -> Prepare:
        name = prepare.__name__
        if bool(heap) != bool(reason):
            raise ValueError(f"{name}: what is tolerated needs a reason, and a reason something that is tolerated")
        if name in _registered:
            raise ValueError(f"two workloads are called {name}")
        _registered[name] = Workload(name, prepare, needs, heap, reason)
        return prepare

    return enter


def find_workloads() -> dict[str, Workload]:
    """Return all workloads by name.

    Workloads whose packages are missing are included, because only `prepare` imports these packages.
    """
    for module in _MODULES:
        import_module(f"workloads.{module}")
    return dict(_registered)
