"""Conclude, send and write findings undisturbed by what a test has replaced, removed or limited, and never put back.

Measuring itself does not use this module: a test that replaces what a counter reads with gets an inconclusive verdict.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import os.path
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.resource_limits import room_for_files

# What concluding, encoding and writing call, directly or through the standard library.
_OWNERS: Final[tuple[ModuleType | type, ...]] = (
    builtins,
    os,
    os.path,
    io,
    json,
    dataclasses,
    pathlib.Path,
    # Windows has no such module.
    *([importlib.import_module("resource")] if importlib.util.find_spec("resource") else []),
)
_MISSING: Final = object()
# The functions themselves: a test may replace these too.
_setattr, _delattr = setattr, delattr
# By owner, its functions and classes as they are when the plugin is registered. Data is the program's.
_KEPT: Final = tuple(
    (owner, {name: value for name, value in vars(owner).items() if callable(value) or isinstance(value, classmethod)})
    for owner in _OWNERS
)
# The modules of this package that have been imported, by name.
_own_modules: dict[str, ModuleType] = {}


class OriginalFunctions:
    """A context in which the functions are those that were there when the plugin was registered. Cost: 60 us.

    Modules of this package that a test has removed from `sys.modules` are put back, for good.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        _keep_modules()
        for owner, kept in _KEPT:
            now = owner.__dict__
            for name, original in kept.items():
                # By identity: a replacement may have any `__eq__`.
                if (current := now.get(name, _MISSING)) is not original:
                    self._replaced.append((owner, name, current))
                    _setattr(owner, name, original)

    def __exit__(self, *_: object) -> None:
        while self._replaced:
            owner, name, theirs = self._replaced.pop()
            if theirs is _MISSING:
                _delattr(owner, name)
            else:
                _setattr(owner, name, theirs)


@contextlib.contextmanager
def undisturbed_writing() -> Iterator[None]:
    """Write with the original functions, with a few descriptors to spare and, if possible, no limit on files."""
    with OriginalFunctions(), room_for_descriptors(), room_for_files():
        yield


def _keep_modules() -> None:
    """Put modules of this package back, and note those that were imported since."""
    sys.modules.update(_own_modules)
    for name, module in sys.modules.copy().items():
        if name.startswith("pytest_leakcheck") and name not in _own_modules:
            _own_modules[name] = module


_keep_modules()
