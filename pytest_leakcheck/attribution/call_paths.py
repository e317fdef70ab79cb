"""What a call path says: the test's own part of it, the phase of the test, and the line that its author can change."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path, PurePath
from types import ModuleType
from typing import Final

from pytest_leakcheck.model.culprit import Site, TestPhase, Where

# The functions of pytest that begin a phase (_pytest/runner.py), and those that run a fixture (_pytest/fixtures.py).
_PHASES: Final[dict[str, TestPhase]] = {
    "pytest_runtest_setup": "setup",
    "pytest_runtest_call": "call",
    "pytest_runtest_teardown": "teardown",
}
_FIXTURES: Final = frozenset({"call_fixture_func", "_teardown_yield_fixture"})
# Hooks of pytest that hardly a plugin does without.
_HOOKS: Final = frozenset(
    {
        "pytest_addoption",
        "pytest_collection_modifyitems",
        "pytest_configure",
        "pytest_fixture_setup",
        "pytest_pyfunc_call",
        "pytest_runtest_call",
        "pytest_runtest_protocol",
        "pytest_runtest_setup",
    }
)
# Where what is installed lives, apart from the standard library.
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})


def _folder_of(package: str) -> str:
    spec = find_spec(package)
    return str(Path(spec.origin).parent) + os.sep if spec is not None and spec.origin else "<none>"


# pytest may not be there at all, for a script that measures.
_HARNESS: Final = tuple(map(_folder_of, ("pytest_leakcheck", "_pytest", "pluggy")))


def read_path(path: Sequence[Site]) -> Where | None:
    """Cut off what the harness does around the test; None where nothing is left."""
    phase: TestPhase = ""
    fixture, begins = "", 0
    for at, site in enumerate(path):
        if not is_harness(site.file):
            continue
        begins = at + 1
        function = site.function.rpartition(".")[2]
        name = _name(site.file)
        if name == "runner.py" and function in _PHASES:
            phase, fixture = _PHASES[function], ""
        elif name == "fixtures.py" and function in _FIXTURES and begins < len(path):
            fixture = path[begins].function.rpartition(".")[2]
    own = tuple(path[begins:])
    # What the harness has the standard library do is its own doing, and so may be what nobody is known to have called.
    if all(is_standard(site.file) for site in own):
        return None
    return Where(own, next((site for site in reversed(own) if is_own(site.file)), own[-1]), phase, fixture)


@cache
def is_harness(file: str) -> bool:
    """Whether it is of pytest, of a plugin of it, or of this package."""
    if file.startswith(_HARNESS):
        return True
    parts = PurePath(file).parts
    if _INSTALLED.isdisjoint(parts):
        return False
    named_so = (folder in _INSTALLED and name.startswith("pytest_") for folder, name in pairwise(parts))
    return file in plugin_files() or any(named_so)


def tells_phase(file: str) -> bool:
    """Whether functions of this file of pytest say which phase runs, and which fixture."""
    return _name(file) in ("runner.py", "fixtures.py")


def _name(file: str) -> str:
    # No Path: of thousands of call paths each frame is asked, which would take seconds. What is cached here, is for that.
    return file.rpartition(os.sep)[2]


@cache
def plugin_files() -> frozenset[str]:
    """The files of installed plugins that are loaded: modules with hooks. A library that brings one is no plugin itself."""
    modules = [module for module in list(sys.modules.values()) if type(module) is ModuleType]
    files = (getattr(module, "__file__", None) for module in modules if not _HOOKS.isdisjoint(vars(module)))
    return frozenset(file for file in files if file and not _INSTALLED.isdisjoint(PurePath(file).parts))


@cache
def is_standard(file: str) -> bool:
    """Whether it is of the standard library."""
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and _INSTALLED.isdisjoint(PurePath(file).parts))


@cache
def is_own(file: str) -> bool:
    """Whether it is neither installed, nor of the standard library, nor without a file."""
    if file.startswith("<"):
        return False
    parts = PurePath(file).parts
    return _INSTALLED.isdisjoint(parts) and not file.startswith(_STANDARD)
