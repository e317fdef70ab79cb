"""Parse the mark ``scaling_budget`` to a `Sweep`: sizes of a test's argument, bounds on its peaks.

A bound is a law, a slope or a formula. Python's own parser parses a formula after amounts with a
unit are replaced by plain numbers. Only numbers, the name of the axis, ``+ - * //``, ``max()`` and
``min()`` are allowed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, pairwise
from types import CodeType
from typing import Any, Final, TypeAlias, cast, get_args

from pytest_leakcheck.config.budget import did_you_mean
from pytest_leakcheck.config.plan import Mark, invalid_mark, is_budget, is_opt_out
from pytest_leakcheck.config.settings import SCALING
from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.recording import Engine, Figure
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES, find_resource
from pytest_leakcheck.model.units import LARGEST, Unit, parse_rate, singular

_VALID: Final = (
    'scaling_budget("shards", [8, 16, 32, 64, 128, 256], *, engine=None, reason="", rss="O(1)")'
)
# The fewest sizes to which a law can be fitted.
FEWEST_SIZES: Final = 3
# The largest relative deviation of a ratio of successive sizes from the mean ratio.
_RATIO_TOLERANCE: Final = 0.1
# The smallest valid mean ratio of successive sizes.
_MIN_RATIO: Final = 1.5
_LAW_PATTERN: Final = re.compile(r"O\s*\(\s*(.*?)\s*\)", re.ASCII)
_POWER_PATTERN: Final = re.compile(r"n\s*\^\s*([0-9]+(?:\.[0-9]+)?)", re.ASCII)
# The exponent of each law that has no exponent in its text, as in `OrderBound.exponent`.
_EXPONENTS_BY_NAME: Final[dict[str, float | None]] = {
    "1": None,
    "log n": 0.0,
    "sqrt n": 0.5,
    "n": 1.0,
}
# A number, with the word that follows it if there is one.
_AMOUNT: Final = r"([0-9]+(?:\.[0-9]+)?)[ \t]*([^\W\d_]\w*)?"
_SLOPE_PATTERN: Final = re.compile(_AMOUNT + r"\s*/\s*(\w*)", re.ASCII)
# A number that is part of a name does not match.
_AMOUNT_PATTERN: Final = re.compile(r"(?<![\w.])" + _AMOUNT, re.ASCII)
_FUNCTIONS: Final[dict[str, Any]] = {"max": max, "min": min}


@dataclass(frozen=True, slots=True)
class _WrittenBound:
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class OrderBound(_WrittenBound):
    """The steepest law of peaks by size; an exponent of 0 means logarithmic, and None constant."""

    exponent: float | None


@dataclass(frozen=True, slots=True)
class SlopeBound(_WrittenBound):
    """The largest allowed peak growth per unit of the axis (`per`), in the resource's unit."""

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


@dataclass(frozen=True, slots=True)
class FigureBound:
    """The bound on one figure of one resource (a key of `RESOURCES`, or ``gauge:<name>``).

    Ranks are the threads or processes that run the test together. ``total`` is the sum of the peaks
    of all ranks, ``per_rank`` the highest peak of one rank, and ``at_least`` the sum with a lower
    bound.
    """

    resource: str
    figure: Figure
    bound: Bound

    def __str__(self) -> str:
        # The sum needs no name, because a bound that names no figure is a bound on the sum.
        return (
            str(self.bound)
            if self.figure == "total"
            else f"{self.figure.replace('_', ' ')} {self.bound}"
        )


@dataclass(frozen=True, slots=True)
class Sweep:
    """One test that is run at several ascending sizes of about the same successive ratio.

    The `engine` starts a world, a group with as many ranks as the size; empty if the test starts
    its own or needs none.
    """

    axis: str
    sizes: tuple[int, ...]
    aims: tuple[FigureBound, ...]
    engine: Engine = ""
    reason: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(aim.resource for aim in self.aims))


def read_sweep(marks: Iterable[Mark], arguments: Collection[str]) -> Sweep:
    """Parse the closest ``scaling_budget`` of a test, or raise `InputError`.

    The marks come closest first.
    """
    marks = tuple(marks)
    mark = next(one for one in marks if one.name == SCALING)
    with invalid_mark(mark, _VALID):
        for peer in marks:
            if is_budget(peer.name) or (peer.name == "leakcheck" and not is_opt_out(peer)):
                raise InputError(
                    f"is combined with {peer.name}, which repeats one size: split it into two tests"
                )
        return _parse_sweep(mark, arguments)


def _parse_sweep(mark: Mark, arguments: Collection[str]) -> Sweep:
    if len(mark.args) != 2:
        raise InputError("takes the name of an axis and a list of sizes")
    axis, given = mark.args
    if not isinstance(axis, str) or not axis.isidentifier():
        raise InputError(f"{axis!r} is not a valid argument name")
    if axis not in arguments:
        raise InputError(f"the test takes no argument {axis!r}: write def test_it({axis})")
    sizes = check_axis(given)
    options = dict(mark.kwargs)
    engine, reason = options.pop("engine", None), options.pop("reason", "")
    engines = get_args(Engine)[1:]
    if engine not in (None, *engines):
        raise InputError(f"engine={engine!r} is not one of {', '.join(map(repr, engines))}")
    if not isinstance(reason, str):
        raise InputError(f"reason={reason!r} is not a string")
    if not options:
        raise InputError("names no resource")
    parsed = (
        _parse_aims(*option, axis, engine, gauges="leakcheck" in arguments)
        for option in options.items()
    )
    return Sweep(axis, sizes, tuple(chain.from_iterable(parsed)), engine or "", reason)


def _parse_aims(
    name: str, value: object, axis: str, engine: str | None, *, gauges: bool
) -> list[FigureBound]:
    with invalid_at(f"{name}={value!r}"):
        resource = _find_measurable(name, gauges=gauges)
        figures: dict[Figure, object] = value if isinstance(value, dict) else {"total": value}
        if not figures or not set(figures) <= set(get_args(Figure)):
            valid = ", ".join(map(repr, get_args(Figure)))
            raise InputError(f"{[*figures]!r} is not valid: write one or more of {valid}")
        if "per_rank" in figures and not engine:
            raise InputError("'per_rank' needs ranks: set an engine")
        if "per_rank" in figures and engine == "thread" and not resource.startswith(GAUGE_PREFIX):
            raise InputError(
                "'per_rank': threads share their process's memory and descriptors: bound the total instead"
            )
        unit = find_resource(resource).unit
        return [
            FigureBound(
                resource, figure, parse_bound(bound, axis, unit, lower=figure == "at_least")
            )
            for figure, bound in figures.items()
        ]


def _find_measurable(name: str, *, gauges: bool) -> str:
    measurable = [resource.name for resource in RESOURCES.values() if resource.peak]
    if name in measurable:
        return name
    if name in RESOURCES:
        raise InputError(
            f"has no peak that can be measured; valid resources are {', '.join(measurable)}; what a test keeps of it is "
            f"judged without an axis: @pytest.mark.{name}_budget(0)"
        )
    near = did_you_mean(name, measurable)
    if gauges and not near:
        return GAUGE_PREFIX + name
    counter = f"for your own counter, use the fixture: def test_it(leakcheck), leakcheck.gauge({name!r}, read)"
    raise InputError(
        f"no such resource.{near} Valid resources are {', '.join(measurable)}; {counter}"
    )


def check_axis(sizes: object) -> tuple[int, ...]:
    """Check the sizes of an axis: at least 3 whole numbers that rise by a constant factor.

    Raise `InputError` if they do not. The factor is at least 1.5. The ratio of two successive sizes
    may deviate from the factor by 10 %.
    """
    if not isinstance(sizes, list | tuple):
        wrong = f"the sizes are of type {type(sizes).__name__}, not a list"
    # Whole numbers up to the largest are exact as floats.
    elif any(
        not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 2**53
        for size in sizes
    ):
        wrong = "a size is not a whole number from 1 to 2**53"
    else:
        wrong = _describe_wrong(sizes)
    if wrong:
        raise InputError(f"{wrong}: write sizes such as [8, 16, 32, 64]")
    return tuple(cast("Sequence[int]", sizes))


def _describe_wrong(sizes: Sequence[int]) -> str:
    shown = list(sizes) if len(sizes) <= 12 else f"[{', '.join(map(str, sizes[:12]))}, ...]"
    if len(sizes) < FEWEST_SIZES:
        return f"{shown} has {len(sizes)} sizes, at least {FEWEST_SIZES} are needed"
    for before, after in pairwise(sizes):
        if after <= before:
            return (
                f"{shown} has {after} twice"
                if after == before
                else f"{shown} falls from {before} to {after}"
            )
    ratio = mean_ratio(sizes)
    if any(abs(after / before / ratio - 1) > _RATIO_TOLERANCE for before, after in pairwise(sizes)):
        ratios = ", ".join(f"{after / before:.3g}" for before, after in pairwise(sizes[:12]))
        return f"{shown} rises by the factors {ratios}, not by a constant factor"
    if ratio < _MIN_RATIO:
        return f"{shown} rises by a factor of {ratio:.3g} only, at least {_MIN_RATIO} is needed"
    return ""


def mean_ratio(sizes: Sequence[int]) -> float:
    """Return the geometric mean of the ratios of successive sizes."""
    return float((sizes[-1] / sizes[0]) ** (1 / (len(sizes) - 1)))


def parse_bound(value: object, axis: str, unit: Unit, *, lower: bool = False) -> Bound:
    """Parse the bound of a budget over an axis, or raise `InputError`.

    The value is a text such as ``"O(1)"``, ``"1.2 MiB/shard"`` or ``"<= max(64, world_size)"``, or
    a whole number, which is the bound at every size. A lower bound is a formula or a whole number,
    and needs no ``>=``.
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
        amount, slope = ("3", "3") if unit == "count" else ("512 MiB", "1.2 MiB")
        valid = f"write a law 'O(1)', a slope '{slope}/{singular(axis)}' or a limit '<= {amount}'"
        if lower:
            valid = f"write a formula such as '{amount} - ({axis} - 1)'"
        raise InputError(f"{value!r} is not a bound: {valid}")
    try:
        return _parse_formula(value, text.removeprefix(sign), axis, unit)
    except ValueError as wrong:
        example = f"max(64, {axis})" if unit == "count" else f"1.5 MiB * {axis} + 64 MiB"
        raise InputError(f"{value!r} {wrong}; valid example: {example!r}") from None


def _parse_exponent(inside: str, text: str) -> float | None:
    named = " ".join(inside.split())
    if named in _EXPONENTS_BY_NAME:
        return _EXPONENTS_BY_NAME[named]
    power = _POWER_PATTERN.fullmatch(named)
    if power is None or not 0 < float(power[1]) <= 3:
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
    raise InputError(
        f"{text!r} is not a slope: write an amount per unit of the axis, such as {form!r}"
    )


def _parse_number(match: re.Match[str], unit: Unit) -> float:
    """Return an amount; without a unit it may be a factor, so even bytes may have a fraction."""
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
    return FormulaBound(
        written, axis, isinstance(tree.body, ast.Constant), compile(tree, "<bound>", "eval")
    )


def _check(node: ast.expr, axis: str) -> None:
    """Raise `ValueError` if a part is not allowed, or a divisor may be 0 or negative."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return
        case ast.Name(id=name):
            if name != axis:
                raise ValueError(
                    f"uses the name {name!r}: the only valid name is the axis, {axis!r}"
                )
        case ast.BinOp(op=ast.FloorDiv(), right=right) if not _is_positive(right):
            raise ValueError("divides by a term: divide by a number above 0 or by the axis")
        case ast.BinOp(
            left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv(), right=right
        ):
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
