"""Find the function that removes entries from a container, and at which number it does so."""

from __future__ import annotations

import ast
import gc
import inspect
import operator
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from opcode import opmap
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.call_paths import is_standard

_REMOVING: Final = frozenset({"pop", "popitem", "popleft"})
_DELETES: Final = opmap["DELETE_SUBSCR"]
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
# A larger number bounds nothing that a test could fill.
_MAX_BOUND: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class Eviction:
    """What removes entries from a container.

    Attributes:
        by: The function, as ``Cache.get()``.
        bound: The number of entries above which it removes some; 0 if that cannot be read.
    """

    by: str
    bound: int = 0


def find_eviction(container: object) -> Eviction | None:
    """Return what removes entries from this container; None if nothing is seen."""
    # The functions are those of the container's own class, of the class of an object that has it as
    # an attribute, and of a module that has it as a global variable. Those of the standard library
    # do not show how the program uses it.
    without_bound = None
    for names, holder in _iter_holders(container):
        codes = [code for code in _iter_code(holder) if not is_standard(code.co_filename)]
        reader = _Reader(container, names, holder)
        removing = [code for code in codes if reader.removes(code)]
        reader.removing.update(one.co_name for one in removing)
        for code in codes:
            if bound := reader.read(code):
                return Eviction(f"{code.co_qualname}()", bound)
        if removing and without_bound is None:
            without_bound = Eviction(f"{removing[0].co_qualname}()")
    return without_bound


def _iter_holders(container: object) -> Iterator[tuple[frozenset[str], object]]:
    """Yield the container without names, then its names in each object, class or module."""
    yield frozenset(), container
    for referrer in gc.get_referrers(container):
        # The attributes of an object, and the global variables of a module, may be in a dict.
        for space in [referrer] if type(referrer) is not dict else gc.get_referrers(referrer):
            variables = vars(space) if type(space) is ModuleType else inspection.variables_of(space)
            if names := frozenset(name for name, value in variables.items() if value is container):
                yield names, space


def _iter_code(holder: Any) -> Iterator[CodeType]:
    if type(holder) is ModuleType:
        spaces = [
            vars(holder),
            *(inspection.namespace_of(one) for one in vars(holder).values() if type(one) is type),
        ]
    else:
        spaces = _list_namespaces(holder)
    for space in spaces:
        functions = (
            value.__func__ if type(value) in (classmethod, staticmethod) else value
            for value in space.values()
        )
        yield from (one.__code__ for one in functions if type(one) is FunctionType)


def _list_namespaces(holder: Any) -> list[Mapping[str, Any]]:
    """Return those of a class, or of the class of an object, and of its bases."""
    kind = holder if issubclass(type(holder), type) else type(holder)
    return list(map(inspection.namespace_of, inspection.mro_of(kind)))


class _Reader:
    """Reads the bound of a container from the source of its holder's functions; it runs none."""

    def __init__(self, container: object, names: frozenset[str], holder: Any) -> None:
        """Take the holder's names for the container; `removing`: functions that remove entries."""
        self._names = names
        self.removing: set[str] = set()
        self._length = inspection.length(container)
        is_module = type(holder) is ModuleType
        self._globals = vars(holder) if is_module else {}
        self._attributes: dict[str, object] = {}
        for space in (
            []
            if is_module
            else [*reversed(_list_namespaces(holder)), inspection.attributes_of(holder)]
        ):
            self._attributes |= space

    def removes(self, code: CodeType) -> bool:
        """Return whether it removes an entry from the container, not only from another one."""
        steps = self._parse(code, _REMOVING)
        return any(
            self._is_container(one.func.value)
            if isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr in _REMOVING
            else isinstance(one, ast.Subscript)
            and isinstance(one.ctx, ast.Del)
            and self._is_container(one.value)
            for one in steps
        )

    def _parse(self, code: CodeType, names: Collection[str]) -> list[ast.AST]:
        """Return the syntax of a function that uses one of the names, or deletes; else nothing."""
        if not {*names}.isdisjoint(code.co_names) or _DELETES in code.co_code[::2]:
            with suppress(OSError, SyntaxError, TypeError, ValueError):
                (function,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
                self._itself = code.co_varnames[0] if code.co_argcount else ""
                self._locals = _list_assigned(function)
                return list(ast.walk(function))
        return []

    def read(self, code: CodeType) -> int:
        """Return the bound that the length is compared with before a removal; 0 without one."""
        for step in self._parse(code, {*_REMOVING, "clear", *self.removing}):
            if isinstance(step, (ast.If, ast.While)) and any(
                map(self._is_removal, map(ast.walk, step.body))
            ):
                for test in ast.walk(step.test):
                    if isinstance(test, ast.Compare) and (bound := self._read_comparison(test)):
                        return bound
        return 0

    def _is_removal(self, steps: Iterator[ast.AST]) -> bool:
        return any(
            isinstance(step, ast.Delete)
            or (
                isinstance(step, ast.Call)
                and isinstance(step.func, ast.Attribute)
                and step.func.attr in {*_REMOVING, "clear", *self.removing}
            )
            for step in steps
        )

    def _read_comparison(self, test: ast.Compare) -> int:
        sides = (test.left, *test.comparators)
        if len(sides) != 2 or not isinstance(test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            return 0
        for measured, bound in (sides, reversed(sides)):
            if any(map(self._is_length, ast.walk(measured))):
                value = self._evaluate(bound)
                return (
                    int(value) if value is not None and self._length <= value <= _MAX_BOUND else 0
                )
        return 0

    def _is_length(self, node: ast.AST) -> bool:
        """Return whether this is the container's length, or a counter that has the same value."""
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "len"
            and node.args
        ):
            argument = node.args[0]
            is_itself = isinstance(argument, ast.Name) and argument.id == self._itself
            return is_itself or self._is_container(argument)
        return isinstance(node, ast.Attribute) and self._evaluate(node) == self._length > 0

    def _is_container(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            # It may be a local variable for it.
            node = self._locals.get(node.id, node)
        name = getattr(node, "attr", getattr(node, "id", ""))
        return name != "" and self._mangle(name) in (self._names or {self._itself})

    def _evaluate(self, node: ast.expr) -> float | None:
        """Return the number of an expression of constants, variables and attributes; else None."""
        value: object = None
        if isinstance(node, ast.Constant):
            value = node.value
        elif isinstance(node, ast.Name):
            # Each once: it may be computed from itself.
            local = self._locals.pop(node.id, None)
            value = self._globals.get(node.id) if local is None else self._evaluate(local)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self._itself
        ):
            value = self._attributes.get(self._mangle(node.attr))
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._evaluate(node.left), self._evaluate(node.right)
            if left is not None and right:
                value = _OPERATORS[type(node.op)](left, right)
        return (
            float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else None
        )

    def _mangle(self, name: str) -> str:
        """Return the name under which an attribute ``__name`` is stored."""
        if name.startswith("__") and not name.endswith("__"):
            return next(
                (one for one in self._attributes if one.endswith(name) and one.startswith("_")),
                name,
            )
        return name


def _list_assigned(function: ast.stmt) -> dict[str, ast.expr]:
    """Return the value of each local variable that is assigned once."""
    found: dict[str, list[ast.expr]] = {}
    for step in ast.walk(function):
        if (
            isinstance(step, ast.Assign)
            and len(step.targets) == 1
            and isinstance(step.targets[0], ast.Name)
        ):
            found.setdefault(step.targets[0].id, []).append(step.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}
