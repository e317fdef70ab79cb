"""Parse a formula of a budget over an axis, such as ``max(64, world_size)`` or ``1.5 MiB * shards + 64 MiB``.

Python's own parser parses it after amounts with a unit are replaced by plain numbers. Only numbers, the name of the
axis (the test's argument that takes the size), ``+ - * //``, ``max()`` and ``min()`` are allowed. The text is never
evaluated as Python.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.units import LARGEST, Unit, parse_rate

# The maximum length of a bound, in characters.
LONGEST: Final = 200
# The maximum number of numbers and names in a formula. The product of 16 numbers below 2**63 is below the largest
# float.
_MAX_OPERANDS: Final = 16
# A number, with the word that follows it if there is one. A number that is part of a name does not match.
_AMOUNT_PATTERN: Final = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)[ \t]*([^\W\d_]\w*)?", re.ASCII)
_OPERATORS: Final[dict[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Final[dict[str, Callable[[Iterable[float]], float]]] = {"max": max, "min": min}


class BoundError(LeakcheckError, ValueError):
    """An invalid bound; the message gives the value, what is wrong with it, and the valid forms."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed formula; `text` has all amounts as plain numbers, and two formulas with the same text are equal."""

    text: str
    _tree: ast.expr = field(compare=False, repr=False)

    @property
    def is_number(self) -> bool:
        """Whether the formula is a single number, so that its value is the same at every size."""
        return isinstance(self._tree, ast.Constant)

    def at(self, size: int) -> float:
        """Return the value at a size of at least 1."""
        return _evaluate(self._tree, size)


def parse_formula(text: str, axis: str, unit: Unit, *, whole: str) -> Formula:
    """Parse a formula without a comparison sign; `whole` is the bound as written, for messages.

    Raises:
        BoundError: The formula cannot be parsed, contains something that is not allowed, has too many numbers and
            names, or may divide by 0 or a negative number.
    """

    def error(wrong: str) -> BoundError:
        example = f"max(64, {axis})" if unit == "count" else f"1.5 MiB * {axis} + 64 MiB"
        return BoundError(f"{shown(whole)} {wrong}; valid example: {example!r}")

    def number(match: re.Match[str]) -> str:
        if match[2] and unit == "count":
            raise error(f"has {match[0]!r}, but this resource is counted in plain numbers")
        try:
            # A number without a unit may be a factor, so it may have a fraction even for bytes: 1.5 * axis.
            value = float(match[1]) if "." in match[1] else int(match[1])
            return repr(parse_rate(match[0] if match[2] else value, unit))
        except ValueError as wrong:
            raise error(f"has an invalid number ({wrong})") from None

    numbers = _AMOUNT_PATTERN.sub(number, text.strip())
    try:
        tree = ast.parse(numbers, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise error("cannot be parsed as a formula") from None
    try:
        operands = _count_operands(tree, axis)
    except ValueError as wrong:
        raise error(str(wrong)) from None
    if operands > _MAX_OPERANDS:
        raise error(f"has more than {_MAX_OPERANDS} numbers and names: write a shorter formula")
    return Formula(numbers, tree)


def constant(value: int) -> Formula:
    """Return the formula that consists of a number."""
    return Formula(str(value), ast.Constant(value))


def shown(value: object) -> str:
    """Return a value as text of bounded length, for messages."""
    if isinstance(value, str):
        return repr(value) if len(value) <= LONGEST else repr(value[:30] + "...")
    if isinstance(value, int | float):
        return str(value) if -LARGEST <= value <= LARGEST else "a number beyond 2**63 - 1"
    # Only the type is given, because other values may be of any size, or their `repr` may fail.
    return f"a value of type {type(value).__name__}"


def _count_operands(node: ast.expr, axis: str) -> int:
    """Count the numbers and names; `ValueError` if a part is not allowed, or a divisor may be 0 or negative."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and value <= LARGEST:
            return 1
        case ast.Name(id=name):
            if name != axis:
                raise ValueError(f"uses the name {name!r}: the only valid name is the axis, {axis!r}")
            return 1
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            if isinstance(op, ast.FloorDiv) and not _is_positive(right):
                raise ValueError(
                    "divides by a term that may be 0 or negative at some size: divide by a number or the axis"
                )
            return _count_operands(left, axis) + _count_operands(right, axis)
        case ast.Call(func=ast.Name(id="max" | "min"), args=[_, *_] as parts, keywords=[]):
            return sum(_count_operands(part, axis) for part in parts)
    raise ValueError(
        f"contains {ast.unparse(node)!r}: a formula may contain numbers, {axis!r}, + - * //, max() and min()"
    )


def _is_positive(node: ast.expr) -> bool:
    """Return whether an expression is certainly above 0 at every size of at least 1."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value > 0
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):
            return _is_positive(left) and _is_positive(right)
        case ast.Call(func=ast.Name(id=name), args=parts):
            return (any if name == "max" else all)(_is_positive(part) for part in parts)
    return isinstance(node, ast.Name)


def _evaluate(node: ast.expr, size: int) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, size), _evaluate(right, size))
        case ast.Call(func=ast.Name(id=name), args=parts):
            return _FUNCTIONS[name](_evaluate(part, size) for part in parts)
    return size
