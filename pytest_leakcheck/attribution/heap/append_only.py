"""Tell whether the program only adds to a container, in each call, so that nothing bounds it.

A pool or a cache reads what it keeps: it takes entries out, asks for their number, or looks one up;
or a condition decides whether it takes one in. A list that is only appended to does none of that.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from types import CodeType, FunctionType
from typing import Any, Final, Literal, TypeAlias

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.call_paths import is_harness, is_own, is_standard
from pytest_leakcheck.attribution.heap.reference_paths import (
    FORK_FUNCTIONS,
    is_class,
    is_ours,
    kept_by_interpreter,
    module_name,
)
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.probes.runtime_counters import with_subclasses

_Use: TypeAlias = Literal["adds", "iterates", "begins", "other"]
_ADDING: Final = frozenset({"add", "append", "appendleft", "extend"})
_LOADS_METHOD: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_ATTRIBUTES: Final = _LOADS_METHOD | {"STORE_ATTR", "DELETE_ATTR"}
# From Python 3.12 on, the lowest bit of LOAD_ATTR tells that the attribute is called.
_CALLS_BY_ATTRIBUTE: Final = sys.version_info >= (3, 12)
# Of a set, elements that are compared by identity: of others, there may be only so many.
_BY_IDENTITY: Final = (object.__hash__, object.__eq__)


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """A container, the names that refer to it, and the classes that, or whose objects, have it."""

    container: object
    names: frozenset[str]
    classes: tuple[type, ...]


def are_append_only(containers: Sequence[object], path: Sequence[Site]) -> bool:
    """Return whether all code that names one of these only adds to it, or iterates over it.

    A path must always do so: without the harness, that of the call that creates, or stores, what is
    retained. False also where this cannot be seen: something other than a module, a class or an
    object refers to a container. Call it while nothing is frozen.
    """
    # Python has no function that takes from these, or tells their number.
    if containers and all(kept_by_interpreter(one) == FORK_FUNCTIONS for one in containers):
        return True
    functions = [one for one in gc.get_objects() if type(one) is FunctionType and not is_ours(one)]
    codes = list(chain.from_iterable(map(_iter_code, (one.__code__ for one in functions))))
    on_path = {(site.file, site.line) for site in path if not is_standard(site.file)}
    files = {file for file, _line in on_path}
    called = [
        code
        for code in codes
        if code.co_filename in files and not on_path.isdisjoint(_list_lines(code))
    ]
    if any(
        _has_condition(code, {line for file, line in on_path if file == code.co_filename})
        for code in called
    ):
        return False
    for container in containers:
        uses = (
            _list_uses(functions, _find_names(container, containers))
            if _is_unbounded(container)
            else []
        )
        adding = {code for code, use in uses if use == "adds"}
        if adding.isdisjoint(called) or any(use == "other" for _code, use in uses):
            return False
    return True


def _list_lines(code: CodeType) -> Iterator[tuple[str, int]]:
    return ((code.co_filename, line) for _start, _end, line in code.co_lines() if line)


def _has_condition(code: CodeType, lines: Collection[int]) -> bool:
    """Return whether a condition may skip the last of the lines; one after it, only in a loop."""
    steps = list(dis.get_instructions(code))
    reached = max(
        (one.offset for one in steps if one.positions and one.positions.lineno in lines),
        default=sys.maxsize,
    )
    loops = any("JUMP_BACKWARD" in one.opname for one in steps)
    return any("_IF_" in one.opname and (loops or one.offset < reached) for one in steps)


def _is_unbounded(container: Any) -> bool:
    kind = type(container)
    if kind is set:
        newest = [key for key, _value in inspection.last_entries(container, 2)]
        return all((type(key).__hash__, type(key).__eq__) == _BY_IDENTITY for key in newest)
    return kind is list or (kind is deque and container.maxlen is None)


def _find_names(container: object, beside: object) -> _Named:
    """Find variables and attributes that refer to it; none if anything but `beside` does too."""
    found: set[str] = set()
    classes: list[type] = []
    for holder in gc.get_referrers(container):
        if holder is beside or is_ours(holder):
            continue
        spaces = (
            gc.get_referrers(holder)
            if type(holder) is dict and not module_name(holder)
            else [holder]
        )
        names = list(map(_names_in, spaces, repeat(container)))
        if not any(names):
            return _Named(container, frozenset(), ())
        found.update(chain.from_iterable(names))
        named = (one for one in compress(spaces, names) if not module_name(one))
        classes += (one if is_class(one) else type(one) for one in named)
    return _Named(container, frozenset(found), tuple(classes))


def _names_in(space: object, container: object) -> list[str]:
    # Not as a part of the caller, whose cell would be one more reference to the container.
    return [name for name, value in _read_variables(space).items() if value is container]


def _read_variables(space: Any) -> Mapping[str, object]:
    return space if module_name(space) and type(space) is dict else inspection.variables_of(space)


def _list_uses(functions: Sequence[FunctionType], named: _Named) -> list[tuple[CodeType, _Use]]:
    """List each use of one of the names, with the code that it is in."""
    found: list[tuple[CodeType, _Use]] = []
    names = named.names
    for function in functions if names else ():
        file = function.__code__.co_filename
        # Those name only what is theirs.
        if is_standard(file) or is_harness(file):
            continue
        for code in _iter_code(function.__code__):
            if not names.isdisjoint(code.co_names) or not names.isdisjoint(
                one for one in code.co_consts if type(one) is str
            ):
                found += zip(repeat(code), _iter_uses(code, function, named))
    return found


def _iter_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _iter_code(inner)


def _iter_uses(code: CodeType, function: FunctionType, named: _Named) -> Iterator[_Use]:
    steps = [one for one in dis.get_instructions(code) if one.opname not in ("EXTENDED_ARG", "NOP")]
    # A library knows no name of a variable of the program, but may be handed an object, and the
    # name of an attribute.
    may_be_text = bool(named.classes) or is_own(code.co_filename)
    for before, step, then, later in zip(
        [None, *steps], steps, [*steps[1:], None], [*steps[2:], None, None], strict=False
    ):
        if type(step.argval) is not str or step.argval not in named.names:
            continue
        # Python 3.12 and 3.13 also return a constant by an instruction of its own.
        if (step.opname.endswith("_CONST") and not may_be_text) or _is_another(
            before, step, code, function, named
        ):
            continue
        loads = step.opname.startswith("LOAD_") and step.opname != "LOAD_CONST"
        if loads and then is not None and then.opname in _LOADS_METHOD and then.argval in _ADDING:
            yield "adds"
        elif (
            loads
            and then is not None
            and later is not None
            and (then.opname, later.opname) == ("GET_ITER", "FOR_ITER")
        ):
            yield "iterates"
        elif step.opname == "STORE_ATTR" and code.co_name == "__init__":
            yield "begins"
        else:
            yield "other"


def _is_another(
    before: dis.Instruction | None,
    step: dis.Instruction,
    code: CodeType,
    function: FunctionType,
    named: _Named,
) -> bool:
    """Return whether an instruction surely uses another variable or attribute of such a name."""
    variables = function.__globals__
    if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
        # A variable of another module.
        return variables.get(step.argval) is not named.container
    if before is None or step.opname not in _OF_ATTRIBUTES:
        return False
    if step.opname == "LOAD_METHOD" or (
        step.opname == "LOAD_ATTR" and _CALLS_BY_ATTRIBUTE and (step.arg or 0) & 1
    ):
        # A container cannot be called.
        return True
    if before.opname == "LOAD_GLOBAL":
        holder = variables.get(before.argval)
        spaces = (
            inspection.mro_of(holder)
            if is_class(holder)
            else [holder]
            if module_name(holder)
            else []
        )
        return bool(spaces) and not any(
            _read_variables(space).get(step.argval) is named.container for space in spaces
        )
    loaded = before.argval[-1] if type(before.argval) is tuple else before.argval
    is_first = code is function.__code__ and code.co_argcount > 0 and loaded == code.co_varnames[0]
    if "LOAD_FAST" not in before.opname or not is_first:
        return False
    # An attribute of the object whose method it is.
    cls = _class_of(function)
    return cls is not None and not any(_derive_from_both(cls, holder) for holder in named.classes)


def _class_of(function: FunctionType) -> type | None:
    """Return the class that a function is a method of; None if it is none or not certain."""
    *outer, name = function.__qualname__.split(".")
    found: Any = function.__globals__
    for part in outer:
        found = found.get(part) if type(found) is dict else inspection.namespace_of(found).get(part)
        if not is_class(found):
            return None
    return found if outer and inspection.namespace_of(found).get(name) is function else None


def _derive_from_both(first: type, second: type) -> bool:
    """Return whether an object may be of two classes."""
    return any(second in inspection.mro_of(below) for below in with_subclasses(first))
