"""What a callable is called, found without running any code of the program."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution.site import name_of

# A metaclass may override attribute access: these go past it.
_QUALNAME: Final = type.__dict__["__qualname__"].__get__
_MRO: Final = type.__dict__["__mro__"].__get__
_METHODS: Final = (type(str.join), type(object.__init__), type("".__str__), type(dict.__dict__["fromkeys"]))


def name_of_called(called: Any) -> str:
    """The qualified name of a function, a class or a code object; of any other callable that of its type."""
    kind = type(called)
    if kind is BuiltinFunctionType:
        owner = called.__self__
        if owner is None or type(owner) is ModuleType:
            return str(called.__name__)
        return f"{_QUALNAME(owner if issubclass(type(owner), type) else type(owner))}.{called.__name__}"
    if kind is CodeType:
        return name_of(called)
    if kind in _METHODS:
        return str(called.__qualname__)
    if issubclass(kind, type):
        return str(_QUALNAME(called))
    return _name_in_library(called) or str(_QUALNAME(kind))


def _name_in_library(called: Any) -> str:
    """The symbol that a function of `ctypes` was looked up by; empty for anything else."""
    ctypes: Any = sys.modules.get("_ctypes")
    if ctypes is None or not any(base is ctypes.CFuncPtr for base in _MRO(type(called))):
        return ""
    try:
        name = object.__getattribute__(called, "__name__")
    except AttributeError:
        return ""
    return name if type(name) is str else ""
