"""Parse a bound on the peak over an axis (the test's argument that takes the size): a law, a slope or a formula."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from pytest_leakcheck.config.formula import LONGEST, Formula, constant, parse_formula, shown
from pytest_leakcheck.config.formula import BoundError as BoundError
from pytest_leakcheck.model.units import LARGEST, AmountError, Unit, parse_rate

# The largest exponent of a law.
_MAX_EXPONENT: Final = 3.0

_LAW_PATTERN: Final = re.compile(r"O\s*\(\s*(.*?)\s*\)", re.ASCII)
_POWER_PATTERN: Final = re.compile(r"n\s*(?:\^|\*\*)\s*([0-9]+(?:\.[0-9]+)?)", re.ASCII)
_SLOPE_PATTERN: Final = re.compile(r"([^/]*)/\s*(\w*)\s*")
_NUMBER_PATTERN: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
# The exponent of each law that has no exponent in its text, as in `OrderBound.exponent`.
_EXPONENTS_BY_NAME: Final[dict[str, float | None]] = {"1": None, "log n": 0.0, "sqrt n": 0.5, "sqrt(n)": 0.5, "n": 1.0}


@dataclass(frozen=True, slots=True)
class OrderBound:
    """The steepest law by which peaks may grow with the size; exponent 0 means logarithmic, None means constant."""

    exponent: float | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class SlopeBound:
    """The largest allowed growth of the peak per unit of the axis (`per`), in the unit of the resource."""

    per: float
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FormulaBound:
    """An upper or lower bound on the peak at each size, in the unit of the resource."""

    formula: Formula
    text: str

    def __str__(self) -> str:
        return self.text

    def at(self, size: int) -> float:
        """Return the bound at a size of at least 1."""
        return self.formula.at(size)


Bound: TypeAlias = OrderBound | SlopeBound | FormulaBound


def parse_bound(value: object, axis: str, unit: Unit, *, lower: bool = False) -> Bound:
    """Parse the bound of a budget over an axis, or raise `BoundError`.

    Args:
        value: A text such as ``"O(1)"``, ``"1.2 MiB/shard"`` or ``"<= max(64, world_size)"``, or a whole number, which
            is the bound at every size.
        axis: The name of the axis, which formulas and slopes may use.
        unit: Amounts with a unit are valid for bytes only.
        lower: Whether the bound is a lower bound. It must then be a formula or a whole number, and ``>=`` is optional.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return FormulaBound(constant(value), str(value) if lower else f"<= {value}")
    if not isinstance(value, str):
        raise BoundError(f"{shown(value)} is not a bound: {_describe_valid(axis, unit, lower=lower)}")
    if len(value) > LONGEST:
        raise BoundError(f"{shown(value)} has {len(value)} characters: a bound has at most {LONGEST}")
    text = value.strip()
    if not lower and text.startswith("O"):
        law = _LAW_PATTERN.fullmatch(text)
        if law is not None:
            return OrderBound(_parse_exponent(law[1], text), value)
    if not lower and "/" in text.replace("//", "") and not text.startswith("<="):
        return SlopeBound(_parse_slope(text, axis, unit), value)
    sign = ">=" if lower else "<="
    if text.startswith(sign):
        text = text[len(sign) :]
    elif not lower:
        raise BoundError(f"{shown(value)} is not a bound: {_describe_valid(axis, unit, lower=lower)}")
    return FormulaBound(parse_formula(text, axis, unit, whole=value), value)


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
    if power is not None and 0 < float(power[1]) <= _MAX_EXPONENT:
        return float(power[1])
    valid = "O(1), O(log n), O(sqrt n), O(n), or O(n^0.5) with an exponent up to 3"
    raise BoundError(f"{shown(text)} is not a supported complexity: write {valid}")


def _parse_slope(text: str, axis: str, unit: Unit) -> float:
    form = f"{'3' if unit == 'count' else '1.2 MiB'}/{singular(axis)}"
    match = _SLOPE_PATTERN.fullmatch(text)
    if match is None:
        raise BoundError(f"{shown(text)} is not a slope: write an amount per unit of the axis, such as {form!r}")
    if match[2] not in (axis, singular(axis)):
        raise BoundError(f"{shown(text)} is per {match[2]!r}, but the axis is {axis!r}: write {form!r}")
    amount = match[1].strip()
    try:
        if _NUMBER_PATTERN.fullmatch(amount):
            return parse_rate(float(amount) if "." in amount else int(amount), unit)
        return parse_rate(amount, unit)
    except AmountError:
        what = "number" if unit == "count" else "size"
        raise BoundError(f"{shown(text)} has {amount!r} where a {what} is expected: write {form!r}") from None


def _describe_valid(axis: str, unit: Unit, *, lower: bool) -> str:
    amount = "3" if unit == "count" else "512 MiB"
    if lower:
        return f"write a formula such as '{amount} - ({axis} - 1)'"
    slope = "3" if unit == "count" else "1.2 MiB"
    return f"write a law 'O(1)', a slope '{slope}/{singular(axis)}' or a limit '<= {amount}'"
