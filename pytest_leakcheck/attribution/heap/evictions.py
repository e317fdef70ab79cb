"""Find the function that removes entries from a container: it may be a pool or a cache with a bound."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from opcode import opmap
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_standard
from pytest_leakcheck.attribution.object_inspection import instance_dict, mro_of, namespace_of, slots

_REMOVING: Final = frozenset({"pop", "popitem", "popleft"})
_DELETES: Final = opmap["DELETE_SUBSCR"]


def find_eviction(container: object) -> str:
    """Return the name of a function that removes entries from this container, as ``Cache.get()``; empty if none is seen.

    The functions are those of the container's own class, of the class of an object that has it as an attribute, and of
    a module that has it as a global variable. Those of the standard library do not show how the program uses it.
    """
    for names, owner in _iter_owners(container):
        for code in _iter_code(owner):
            if is_standard(code.co_filename):
                continue
            removes = not _REMOVING.isdisjoint(code.co_names) or _DELETES in code.co_code[::2]
            if removes and (not names or not names.isdisjoint(code.co_names)):
                return f"{code.co_qualname}()"
    return ""


def _iter_owners(container: object) -> Iterator[tuple[frozenset[str], Any]]:
    """Yield the names under which a class or a module knows the container, and the class or the module."""
    yield frozenset(), type(container)
    for holder in gc.get_referrers(container):
        # The attributes of an object, and the global variables of a module, may be in a dict.
        for space in [holder] if type(holder) is not dict else gc.get_referrers(holder):
            variables = vars(space) if type(space) is ModuleType else (instance_dict(space) or dict(slots(space)))
            if names := frozenset(name for name, value in variables.items() if value is container):
                yield names, space if type(space) is ModuleType else type(space)


def _iter_code(owner: Any) -> Iterator[CodeType]:
    if type(owner) is ModuleType:
        spaces = [vars(owner), *(namespace_of(one) for one in vars(owner).values() if type(one) is type)]
    else:
        spaces = list(map(namespace_of, mro_of(owner)))
    for space in spaces:
        yield from (one.__code__ for one in space.values() if type(one) is FunctionType)
