"""List the pytest plugins that are neither pytest's own nor part of the project under test."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pytest_leakcheck.runner.plugin_records import Plugin, is_of_plugin


def list_plugins(config: pytest.Config) -> Iterator[Plugin]:
    """Yield the plugins with their modules, and the objects that they have registered or stored in the configuration.

    Modules and objects of one top-level package are one plugin.
    """
    manager = config.pluginmanager
    roots: dict[str, list[object]] = defaultdict(list)
    names: dict[str, str] = {}
    for name, plugin in manager.list_name_plugin():
        module = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
        if plugin is not None and is_of_plugin(module):
            package = module.partition(".")[0]
            # `-p no:` takes the name of a module; an object may be a part of a plugin.
            if isinstance(plugin, ModuleType):
                names.setdefault(package, name)
            roots[package] += (plugin, sys.modules[module])
    for stored in (*vars(config).values(), *config.stash._storage.values()):
        package = type(stored).__module__.partition(".")[0]
        if package in roots:
            roots[package].append(stored)
    distributions: dict[int, Any] = {id(plugin): one for plugin, one in manager.list_plugin_distinfo()}
    for package, some in roots.items():
        distribution = next((distributions[id(one)] for one in some if id(one) in distributions), None)
        yield Plugin(package, names.get(package, package), distribution, tuple(some))
