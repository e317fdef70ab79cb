"""Find the installed files that belong to the project under test.

Under tox or nox, the project is installed like any other package. The line to change may still be in the project.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_leakcheck.probes.own_descriptors import room_for_descriptors

# The folder of the project and the packages that the user has named; set by `set_project`.
_project: list[tuple[Path, tuple[str, ...]]] = []


def set_project(root: Path, packages: Sequence[str]) -> None:
    """Set the project under test, for the whole process.

    Args:
        root: The folder of the project, in which ``pyproject.toml`` or ``setup.cfg`` may name its distribution.
        packages: Top-level packages that the user has named (``--leakcheck-blame``); they count as well.
    """
    _project[:] = [(root, tuple(packages))]
    _files.cache_clear()
    _folders.cache_clear()
    # Find them now: during a search for a cause, the modules that this imports would look like a leak of the test.
    belongs_to_project("")


def belongs_to_project(file: str) -> bool:
    """Return whether an installed file belongs to the project under test or to a package that the user has named."""
    return file in _files() or file.startswith(_folders())


@cache
def _files() -> frozenset[str]:
    """List the Python files that the project's distribution has installed."""
    for root, _packages in _project:
        try:
            # The leak that is being explained may have used up all descriptors.
            with room_for_descriptors():
                installed = distribution(_read_name(root)).files or ()
        except (PackageNotFoundError, ValueError, OSError):
            continue
        return frozenset(os.path.normpath(str(file.locate())) for file in installed if file.suffix == ".py")
    return frozenset()


@cache
def _folders() -> tuple[str, ...]:
    """List the folders of the packages that the user has named."""
    found: list[str] = []
    for name in (name for _root, packages in _project for name in packages):
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None:
            found += [f"{folder}{os.sep}" for folder in spec.submodule_search_locations or ()]
    return tuple(found)


def _read_name(root: Path) -> str:
    """Return the name of the project's distribution; empty if it is not stated."""
    data = _read_toml(root / "pyproject.toml")
    tool = data.get("tool", {}).get("poetry", {})
    name = data.get("project", {}).get("name") or tool.get("name")
    if isinstance(name, str):
        return name
    return _read_setup_name(root / "setup.cfg")


def _read_setup_name(path: Path) -> str:
    if not path.exists():
        return ""
    # Imported only here: few projects have this file.
    import configparser

    setup = configparser.ConfigParser(interpolation=None)
    try:
        setup.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return ""
    return setup.get("metadata", "name", fallback="")


def _read_toml(path: Path) -> dict[str, Any]:
    # pytest requires tomli on Python 3.10.
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data
