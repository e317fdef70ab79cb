"""Parse a bound on the peak over an axis (the test's argument that takes the size): a law, a slope or a formula.

Python's own parser parses a formula after amounts with a unit are replaced by plain numbers. Only numbers, the name of
the axis, ``+ - * //``, ``max()`` and ``min()`` are allowed.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, TypeAlias

from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.units import LARGEST, Unit, parse_rate

# The largest exponent of a law.
_MAX_EXPONENT: Final = 3.0

_LAW_PATTERN: Final = re.compile(r"O\s*\(\s*(.*?)\s*\)", re.ASCII)
_POWER_PATTERN: Final = re.compile(r"n\s*\^\s*([0-9]+(?:\.[0-9]+)?)", re.ASCII)
# The exponent of each law that has no exponent in its text, as in `OrderBound.exponent`.
_EXPONENTS_BY_NAME: Final[dict[str, float | None]] = {"1": None, "log n": 0.0, "sqrt n": 0.5, "n": 1.0}
_AMOUNT: Final = r"([0-9]+(?:\.[0-9]+)?)[ \t]*([^\W\d_]\w*)?"
_SLOPE_PATTERN: Final = re.compile(_AMOUNT + r"\s*/\s*(\w*)", re.ASCII)
# A number, with the word that follows it if there is one. A number that is part of a name does not match.
_AMOUNT_PATTERN: Final = re.compile(r"(?<![\w.])" + _AMOUNT, re.ASCII)
_FUNCTIONS: Final[dict[str, Any]] = {"max": max, "min": min}


@dataclass(frozen=True, slots=True)
class _WrittenBound:
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class OrderBound(_WrittenBound):
    """The steepest law by which peaks may grow with the size; exponent 0 means logarithmic, None means constant."""

    exponent: float | None


@dataclass(frozen=True, slots=True)
class SlopeBound(_WrittenBound):
    """The largest allowed growth of the peak per unit of the axis (`per`), in the unit of the resource."""

    per: float


@dataclass(frozen=True, slots=True)
class FormulaBound(_WrittenBound):
    """An upper or lower bound on the peak at each size, in the unit of the resource.

    `is_number`: the formula is a single number, so that its value is the same at every size.
    """

    axis: str
    is_number: bool
    _code: CodeType = field(compare=False, repr=False)

    def at(self, size: int) -> float:
        """Return the bound at a size of at least 1."""
        # `_check` has found only numbers, the axis and the functions in it.
        value: float = eval(self._code, {"__builtins__": {}, **_FUNCTIONS, self.axis: size})  # noqa: S307 - see above
        return value


Bound: TypeAlias = OrderBound | SlopeBound | FormulaBound


def parse_bound(value: object, axis: str, unit: Unit, *, lower: bool = False) -> Bound:
    """Parse the bound of a budget over an axis, or raise `InputError`.

    The value is a text such as ``"O(1)"``, ``"1.2 MiB/shard"`` or ``"<= max(64, world_size)"``, or a whole number,
    which is the bound at every size. A lower bound is a formula or a whole number, and needs no ``>=``.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        value = str(value) if lower else f"<= {value}"
    text = value.strip() if isinstance(value, str) else ""
    sign = ">=" if lower else "<="
    if not lower and (law := _LAW_PATTERN.fullmatch(text)):
        return OrderBound(str(value), _parse_exponent(law[1], text))
    if not lower and "/" in text.replace("//", "") and not text.startswith(sign):
        return SlopeBound(str(value), _parse_slope(text, axis, unit))
    if not isinstance(value, str) or not (lower or text.startswith(sign)):
        raise InputError(f"{value!r} is not a bound: {_describe_valid(axis, unit, lower=lower)}")
    try:
        return _parse_formula(value, text.removeprefix(sign), axis, unit)
    except ValueError as wrong:
        example = f"max(64, {axis})" if unit == "count" else f"1.5 MiB * {axis} + 64 MiB"
        raise InputError(f"{value!r} {wrong}; valid example: {example!r}") from None


def singular(axis: str) -> str:
    """Return the singular of the name of an axis: ``shard`` for ``shards``."""
    if axis.endswith("ies") and len(axis) > 4:
        return f"{axis[:-3]}y"
    if axis.endswith(("ches", "shes", "sses", "xes")):
        return axis[:-2]
    return axis[:-1] if axis.endswith("s") and not axis.endswith("ss") and len(axis) > 1 else axis


def _parse_exponent(inside: str, text: str) -> float | None:
    named = " ".join(inside.split())
    if named in _EXPONENTS_BY_NAME:
        return _EXPONENTS_BY_NAME[named]
    power = _POWER_PATTERN.fullmatch(named)
    if power is None or not 0 < float(power[1]) <= _MAX_EXPONENT:
        valid = "O(1), O(log n), O(sqrt n), O(n), or O(n^0.5) with an exponent up to 3"
        raise InputError(f"{text!r} is not a supported complexity: write {valid}")
    return float(power[1])


def _parse_slope(text: str, axis: str, unit: Unit) -> float:
    form = f"{'3' if unit == 'count' else '1.2 MiB'}/{singular(axis)}"
    match = _SLOPE_PATTERN.fullmatch(text)
    if match is not None and match[3] not in (axis, singular(axis)):
        raise InputError(f"{text!r} is per {match[3]!r}, but the axis is {axis!r}: write {form!r}")
    with suppress(ValueError):
        if match is not None:
            return _parse_number(match, unit)
    raise InputError(f"{text!r} is not a slope: write an amount per unit of the axis, such as {form!r}")


def _parse_number(match: re.Match[str], unit: Unit) -> float:
    """Return an amount; a number without a unit may be a factor, so it may have a fraction even for bytes."""
    if match[2] and unit == "count":
        raise ValueError(f"has {match[0]!r}, but this resource is counted in plain numbers")
    number = float(match[1]) if "." in match[1] else int(match[1])
    with invalid_at("has an invalid number"):
        return parse_rate(f"{match[1]} {match[2]}" if match[2] else number, unit)


def _parse_formula(written: str, text: str, axis: str, unit: Unit) -> FormulaBound:
    numbers = _AMOUNT_PATTERN.sub(lambda match: repr(_parse_number(match, unit)), text.strip())
    try:
        tree = ast.parse(numbers, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("cannot be parsed as a formula") from None
    _check(tree.body, axis)
    return FormulaBound(written, axis, isinstance(tree.body, ast.Constant), compile(tree, "<bound>", "eval"))


def _check(node: ast.expr, axis: str) -> None:
    """Raise `ValueError` if a part is not allowed, or a divisor may be 0 or negative."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return
        case ast.Name(id=name):
            if name != axis:
                raise ValueError(f"uses the name {name!r}: the only valid name is the axis, {axis!r}")
        case ast.BinOp(op=ast.FloorDiv(), right=right) if not _is_positive(right):
            raise ValueError("divides by a term: divide by a number above 0 or by the axis")
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv(), right=right):
            _check(left, axis)
            _check(right, axis)
        case ast.Call(func=ast.Name(id="max" | "min"), args=[_, _, *_] as parts, keywords=[]):
            for part in parts:
                _check(part, axis)
        case _:
            raise ValueError(
                f"contains {ast.unparse(node)!r}: a formula may contain numbers, {axis!r}, + - * //, max() and min()"
            )


def _is_positive(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and bool(node.value))


def _describe_valid(axis: str, unit: Unit, *, lower: bool) -> str:
    amount, slope = ("3", "3") if unit == "count" else ("512 MiB", "1.2 MiB")
    if lower:
        return f"write a formula such as '{amount} - ({axis} - 1)'"
    return f"write a law 'O(1)', a slope '{slope}/{singular(axis)}' or a limit '<= {amount}'"
