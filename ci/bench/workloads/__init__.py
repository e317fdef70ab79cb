"""Clean pieces of work for the census: a name and a seed in, a step that a test repeats out.

A new one is a function in one of the modules beside this, for example::

    @workload("yaml")
    def yaml_round_trip(chance: Random, folder: Path) -> Step:
        yaml = import_module("yaml")
        return lambda: yaml.safe_load(yaml.safe_dump([chance.random() for _ in range(100)]))

The words are the packages that it wants beside the standard library, by the names under which they are imported. What
stands before ``return`` is done once, like the imports of a test file; the step is one run of the test. It draws from
`chance`, so that no two steps are alike, and may write to `folder`, where it leaves nothing.
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
    """A piece of work that is held to be clean.

    Attributes:
        name: As in the census.
        prepare: Makes the step.
        needs: Packages that must be importable.
        heap: Bytes per iteration that are tolerated because the library keeps them, as a marker takes them; empty
            where nothing is.
        reason: What the library keeps, and how that was found.
    """

    name: str
    prepare: Prepare
    needs: tuple[str, ...]
    heap: str
    reason: str

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that are not here."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def step(self, seed: int, folder: Path) -> Step:
        """Make the step. The seed fixes all that it draws, in every process alike."""
        return self.prepare(Random(f"{self.name}/{seed}"), folder)


_found: dict[str, Workload] = {}


def workload(*needs: str, heap: str = "", reason: str = "") -> Callable[[Prepare], Prepare]:
    """Enter a function into the census, under its own name."""

    def enter(prepare: Prepare) -> Prepare:
        name = prepare.__name__
        if bool(heap) != bool(reason):
            raise ValueError(f"{name}: what is tolerated needs a reason, and a reason something that is tolerated")
        if name in _found:
            raise ValueError(f"two workloads are called {name}")
        _found[name] = Workload(name, prepare, needs, heap, reason)
        return prepare

    return enter


def find_workloads() -> dict[str, Workload]:
    """All of them by name, also those whose packages are not here: their modules import such packages in `prepare`."""
    for module in _MODULES:
        import_module(f"workloads.{module}")
    return dict(_found)
