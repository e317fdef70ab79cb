"""What a callable is called, found without running any code of the program."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution.heap.inspection import mro_of, qualname_of
from pytest_leakcheck.model.site import name_of

_METHODS: Final = (type(str.join), type(object.__init__), type("".__str__), type(dict.__dict__["fromkeys"]))


def name_of_called(called: Any) -> str:
    """The qualified name of a function, a class or a code object; of any other callable that of its type."""
    kind = type(called)
    if kind is BuiltinFunctionType:
        owner = called.__self__
        if owner is None or type(owner) is ModuleType:
            return str(called.__name__)
        return f"{qualname_of(owner if issubclass(type(owner), type) else type(owner))}.{called.__name__}"
    if kind is CodeType:
        return name_of(called)
    if kind in _METHODS:
        return str(called.__qualname__)
    if issubclass(kind, type):
        return str(qualname_of(called))
    return _name_in_library(called) or str(qualname_of(kind))


def _name_in_library(called: Any) -> str:
    """The symbol that a function of `ctypes` was looked up by; empty for anything else."""
    ctypes: Any = sys.modules.get("_ctypes")
    if ctypes is None or not any(base is ctypes.CFuncPtr for base in mro_of(type(called))):
        return ""
    try:
        name = object.__getattribute__(called, "__name__")
    except AttributeError:
        return ""
    return name if type(name) is str else ""
