"""Find the installed files that belong to the project under test.

Under tox or nox, the project is installed like any other package. The line to change may still be in the project.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any


class _Project:
    files: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()


def set_project(root: Path, packages: Sequence[str]) -> None:
    """Set the project under test, for the whole process.

    Its files are found here: during a search for a cause, the modules that this imports would look like a leak of the
    test. Its distribution may be named in ``pyproject.toml`` or ``setup.cfg`` of `root`. The packages that the user has
    named (``--leakcheck-blame``) count as well.
    """
    _Project.files = _find_files(_read_name(root))
    _Project.folders = tuple(_find_folders(packages))


def belongs_to_project(file: str) -> bool:
    """Return whether an installed file belongs to the project under test or to a package that the user has named."""
    return file in _Project.files or file.startswith(_Project.folders)


def unknown_packages(packages: Sequence[str]) -> frozenset[str]:
    """Return the packages that cannot be imported and name no folder or module in use, as in `culprit.touches`."""
    unknown = set(packages)
    # A program may store anything in `sys.modules`.
    modules: list[object] = list(sys.modules.values())
    for module in modules:
        # Read the dict without the module's own `__getattribute__`, which may import a module that waits for its use.
        file = object.__getattribute__(module, "__dict__").get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str):
            unknown -= {*PurePath(file).parts[:-1], PurePath(file).stem}
    return frozenset(name for name in unknown if _find_spec(name) is None)


def _find_spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _find_files(name: str) -> frozenset[str]:
    """List the Python files that a distribution has installed."""
    try:
        installed = distribution(name).files or ()
    except (PackageNotFoundError, ValueError, OSError):
        return frozenset()
    return frozenset(os.path.normpath(str(file.locate())) for file in installed if file.suffix == ".py")


def _find_folders(packages: Sequence[str]) -> Iterator[str]:
    for spec in filter(None, map(_find_spec, packages)):
        yield from (f"{folder}{os.sep}" for folder in spec.submodule_search_locations or ())


def _read_name(root: Path) -> str:
    """Return the name of the project's distribution; empty if it is not stated."""
    data: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
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
