"""Find what pytest plugins keep of each run of a test: growth that the plugin causes, and not the test.

A repeated test runs hundreds of times. A reporter may record each run, because in a plain session there is only one.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from types import ModuleType
from typing import Any, Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import is_own, is_standard
from pytest_leakcheck.attribution.heap.retained_size import retained
from pytest_leakcheck.attribution.object_inspection import (
    container_kind,
    last_entries,
    length,
    module_of_type,
)
from pytest_leakcheck.model.resources import RESOURCES, Resource, find_resource

# Top-level packages that are no plugins in this sense: the test runner, and this package.
_NOT_PLUGINS: Final = ("_pytest", "pluggy", "pytest", "pytest_leakcheck")
# The objects of all plugins together are not followed further once this many have been found.
_MAX_OBJECTS: Final = 20_000
_NO_HANDLES: Final[tuple[Hashable, ...]] = ()


@dataclass(frozen=True, slots=True)
class Plugin:
    """A pytest plugin that is installed and does not belong to the project under test.

    Attributes:
        option: The name by which ``-p no:`` disables it.
        distribution: What pytest knows of its distribution; None if it was not found by an entry point.
        roots: Its modules and objects, as far as pytest knows them.
    """

    package: str
    option: str
    distribution: Any
    roots: tuple[object, ...]

    @property
    def name(self) -> str:
        """The name of the distribution. It is read from a file, so ask only for that of a plugin to report."""
        return str(getattr(self.distribution, "project_name", self.package))


ListPlugins: TypeAlias = Callable[[], Iterable[Plugin]]


@dataclass(frozen=True, slots=True)
class Records:
    """What a plugin, or all plugins, have recorded; `plugin` is the one that holds most of it.

    `rate` is the amount per iteration, in the unit of the resource; `holders` has the ``id()`` of each container.
    """

    plugin: Plugin
    rate: float
    holders: frozenset[int]


class PluginRecords:
    """The containers of the plugins, and how long each was earlier.

    A container belongs to a plugin if references lead to it from a root of that plugin through nothing but other
    containers, and instances and classes that are installed and belong neither to the project, nor to pytest, nor to
    the standard library. So a list of the test that a plugin refers to through a test item is not among them.
    """

    def __init__(self, list_plugins: ListPlugins) -> None:
        self._list_plugins = list_plugins
        self._lengths: dict[int, int] = {}
        # The iteration in which the lengths were recorded.
        self._begin = 0
        # What was found, by resource and iteration.
        self._found: dict[tuple[str, int], Records | None] = {}

    def start(self) -> None:
        """Begin with the series of readings, and record the length of each container."""
        self._found.clear()
        self._record_lengths(0)

    def before_freeze(self, iteration: int) -> None:
        """Search for records now, because frozen objects cannot be told apart; later records count from here on."""
        for name in RESOURCES:
            self.find(name, iteration)
        self._record_lengths(iteration)

    def find(self, resource: str, iteration: int) -> Records | None:
        """Return how much of a resource the entries added since the lengths were recorded hold; None if nothing.

        Only memory and objects are explained: the code that opened a handle, such as a descriptor, must close it.
        """
        counted, key = find_resource(resource), (resource, iteration)
        if counted.in_python and key not in self._found and iteration > self._begin:
            self._found[key] = self._search(counted, iteration - self._begin)
        return self._found.get(key)

    def holders(self, resource: str) -> frozenset[int]:
        """Return the ``id()`` of each container in which `find` has found records that hold some of the resource."""
        found = (records.holders for (name, _at), records in self._found.items() if records and name == resource)
        return frozenset().union(*found)

    def _record_lengths(self, iteration: int) -> None:
        self._lengths = {id(one): length(one) for _plugin, some in self._list_containers() for one in some}
        self._begin = iteration

    def _search(self, resource: Resource, iterations: int) -> Records | None:
        found = []
        for plugin, containers in self._list_containers():
            grown = [
                (one, gained)
                for one in containers
                if (gained := length(one) - self._lengths.get(id(one), length(one))) > 0
            ]
            entries = [part for one, gained in grown for part in _newest_parts(one, gained)]
            if not entries:
                continue
            amount = retained(resource.name, entries, _NO_HANDLES)
            if resource.in_python_bytes:
                amount += sum(_bytes_per_entry(one) * gained for one, gained in grown)
            # An object of an extension type may hold any amount of memory, so it explains nothing.
            if amount and isfinite(amount):
                found.append(Records(plugin, amount / iterations, frozenset(id(one) for one, _gained in grown)))
        if not found:
            return None
        most = max(found, key=lambda one: one.rate)
        holders = frozenset().union(*(one.holders for one in found))
        return Records(most.plugin, sum(one.rate for one in found), holders)

    def _list_containers(self) -> Iterator[tuple[Plugin, list[object]]]:
        """Yield each plugin with its containers; one that several plugins hold belongs to the first."""
        seen: set[int] = set()
        for plugin in self._list_plugins():
            roots = [vars(one) if isinstance(one, ModuleType) else one for one in plugin.roots]
            yield plugin, [one for one in _reach(roots, seen) if container_kind(one) is not None]


def _reach(start: Sequence[object], seen: set[int]) -> list[object]:
    """Return the objects that belong to a plugin, and add the ``id()`` of each to `seen`."""
    found: list[object] = []
    level = start
    while level and len(seen) < _MAX_OBJECTS:
        inner = {id(one): one for one in level if id(one) not in seen and _may_belong_to_plugin(one)}
        seen |= inner.keys()
        found += inner.values()
        level = gc.get_referents(*inner.values())
    return found


def _may_belong_to_plugin(one: object) -> bool:
    kind = type(one)
    if kind is tuple or container_kind(one) is not None:
        return True
    return is_of_plugin(module_of_type(one if issubclass(kind, type) else kind))  # type: ignore[arg-type]


@cache
def is_of_plugin(module: str) -> bool:
    """Return whether a module is installed, and belongs neither to the project, nor to pytest or this package."""
    file: Any = getattr(sys.modules.get(module), "__file__", None)
    if type(file) is not str or module.partition(".")[0] in _NOT_PLUGINS:
        return False
    return not is_own(file) and not is_standard(file)


def _newest_parts(container: object, count: int) -> Iterator[object]:
    has_keys = container_kind(container) is dict
    for key, value in last_entries(container, count):
        yield value
        if has_keys:
            yield key


def _bytes_per_entry(container: object) -> float:
    kind: Any = container_kind(container)
    return float(kind.__sizeof__(container)) / max(1, length(container))
