"""Tell whether the program adds to a container in each call, and does nothing else with it, so that nothing bounds it.

A pool or a cache reads what it keeps: it takes entries out, asks for their number, or looks one up; or a condition
decides whether it takes one in. A list that is only appended to does none of that.
"""

from __future__ import annotations

import dis
import gc
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import CodeType, FunctionType
from typing import Any, Final, Literal, TypeAlias

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.call_paths import is_standard
from pytest_leakcheck.attribution.heap.reference_paths import is_class, is_ours, module_name
from pytest_leakcheck.model.culprit import Site

_Use: TypeAlias = Literal["adds", "iterates", "begins", "other"]
_ADDING: Final = frozenset({"add", "append", "appendleft", "extend"})
_LOADS_METHOD: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
# Of a set, elements that are compared by identity: of others, there may be only so many.
_BY_IDENTITY: Final = (object.__hash__, object.__eq__)


def are_append_only(containers: Sequence[object], path: Sequence[Site]) -> bool:
    """Return whether all code that names one of these only adds to it, or iterates over it, and a path always does so.

    The path, without the harness, is that of the call that creates, or stores, what is retained. False also where this
    cannot be seen: something other than a module, a class or an object refers to a container. Call it while nothing is
    frozen.
    """
    functions = [one for one in gc.get_objects() if type(one) is FunctionType and not is_ours(one)]
    codes = list(chain.from_iterable(map(_iter_code, (one.__code__ for one in functions))))
    on_path = {(site.file, site.line) for site in path if not is_standard(site.file)}
    files = {file for file, _line in on_path}
    called = [code for code in codes if code.co_filename in files and not on_path.isdisjoint(_list_lines(code))]
    if any("_IF_" in one.opname for code in called for one in dis.get_instructions(code)):
        return False
    for one in containers:
        uses = _list_uses(one, functions, _find_names(one, containers)) if _is_unbounded(one) else []
        adding = {code for code, use in uses if use == "adds"}
        if adding.isdisjoint(called) or any(use == "other" for _code, use in uses):
            return False
    return True


def _list_lines(code: CodeType) -> Iterator[tuple[str, int]]:
    return ((code.co_filename, line) for _start, _end, line in code.co_lines() if line)


def _is_unbounded(container: Any) -> bool:
    kind = type(container)
    if kind is set:
        newest = [key for key, _value in inspection.last_entries(container, 2)]
        return all((type(key).__hash__, type(key).__eq__) == _BY_IDENTITY for key in newest)
    return kind is list or (kind is deque and container.maxlen is None)


def _find_names(container: object, beside: object) -> frozenset[str]:
    """Return the names of all variables and attributes that refer to it; none if anything else does, but `beside`."""
    found: set[str] = set()
    for holder in gc.get_referrers(container):
        if holder is beside or is_ours(holder):
            continue
        spaces = gc.get_referrers(holder) if type(holder) is dict and not module_name(holder) else [holder]
        names = list(chain.from_iterable(map(_names_in, spaces, repeat(container))))
        if not names:
            return frozenset()
        found.update(names)
    return frozenset(found)


def _names_in(space: object, container: object) -> list[str]:
    # Not as a part of the caller, whose cell would be one more reference to the container.
    return [name for name, value in _read_variables(space).items() if value is container]


def _read_variables(space: Any) -> Mapping[str, object]:
    if module_name(space) and type(space) is dict:
        return dict(space)
    if is_class(space):
        return dict(inspection.namespace_of(space))
    return inspection.instance_dict(space) or dict(inspection.slots(space))


def _list_uses(
    container: object, functions: Sequence[FunctionType], names: frozenset[str]
) -> list[tuple[CodeType, _Use]]:
    """List each use of one of the names, with the code that it is in."""
    found: list[tuple[CodeType, _Use]] = []
    for function in functions if names else ():
        if is_standard(function.__code__.co_filename):
            continue
        for code in _iter_code(function.__code__):
            if not names.isdisjoint(code.co_names) or not names.isdisjoint(
                one for one in code.co_consts if type(one) is str
            ):
                known = {name for name in names if function.__globals__.get(name) is container}
                found += zip(repeat(code), _iter_uses(code, names, known))
    return found


def _iter_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _iter_code(inner)


def _iter_uses(code: CodeType, names: frozenset[str], variables: Collection[str]) -> Iterator[_Use]:
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("EXTENDED_ARG", "NOP")]
    for one, then, later in zip(steps, [*steps[1:], None], [*steps[2:], None, None], strict=False):
        if type(one.argval) is not str or one.argval not in names:
            continue
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL") and one.argval not in variables:
            # A variable of another module.
            continue
        loads = one.opname.startswith("LOAD_") and one.opname != "LOAD_CONST"
        if loads and then is not None and then.opname in _LOADS_METHOD and then.argval in _ADDING:
            yield "adds"
        elif (
            loads and then is not None and later is not None and (then.opname, later.opname) == ("GET_ITER", "FOR_ITER")
        ):
            yield "iterates"
        elif one.opname == "STORE_ATTR" and code.co_name == "__init__":
            yield "begins"
        else:
            yield "other"
