"""What a marker allows, as a value: one `Budget` per resource."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.resources import RESOURCES, find_resource
from pytest_leakcheck.model.units import AmountError, format_amount, format_rate, parse_amount, parse_rate

Unclosed: TypeAlias = Literal["fail", "warn", "allow"]

_UNCLOSED: Final = ("fail", "warn", "allow")
KEYWORDS: Final = ("per_iteration", "peak", "over", "unclosed", "reason")

Level = int | str | None


class BudgetError(ValueError):
    """A budget that cannot be read; the message says what was seen and what is valid, not where it was written."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The bound on one resource of one test.

    Attributes:
        resource: A key of `RESOURCES`, or ``gauge:<name>``.
        level: How far the resource may stand above the start (the end of warm-up) once an iteration has ended and
            settled, in its unit; None bounds growth only.
        per_iteration: Sustained growth that is tolerated, in its unit per iteration.
        over: The level is to hold over a run of so many iterations: growth is extrapolated and judged by the level.
        unclosed: What becomes of things that only the cyclic garbage collector gave back.
        reason: Why the budget is what it is; printed with the verdict.
        explicit: A marker or argument of the user names this resource (else it is judged by default).
        peak: How far it may stand above the start at its highest while the test runs once, in its unit; None for any.
    """

    resource: str
    level: int | None = None
    per_iteration: float = 0.0
    over: int | None = None
    unclosed: Unclosed = "fail"
    reason: str = ""
    explicit: bool = True
    peak: int | None = None

    def __str__(self) -> str:
        unit = find_resource(self.resource).unit
        parts = []
        if self.level is not None:
            parts.append(format_amount(self.level, unit))
        if self.per_iteration:
            parts.append(format_rate(self.per_iteration, unit))
        if self.peak is not None:
            parts.append(f"peak {format_amount(self.peak, unit)}")
        if self.over is not None:
            parts.append(f"over {self.over:,} iterations")
        return ", ".join(parts) or "no growth"


def parse_budget(resource: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Budget:
    """Read the arguments of ``<resource>_budget(level, *, per_iteration=, peak=, over=, unclosed=, reason=)``.

    Raises:
        BudgetError: A wrong number of arguments, an unknown keyword, or a value that cannot be read.
    """
    unit = find_resource(resource).unit
    if len(args) > 1:
        raise BudgetError(f"takes one level, {len(args)} arguments were given")
    unknown = [name for name in kwargs if name not in KEYWORDS]
    if unknown:
        raise BudgetError(f"has no keyword {unknown[0]!r}: valid are {', '.join(KEYWORDS)}")
    level = parse_level(resource, args[0]) if args else None
    try:
        per_iteration = parse_rate(kwargs.get("per_iteration", 0), unit)
    except AmountError as error:
        raise BudgetError(f"per_iteration: {error}") from None
    peak = _peak(resource, kwargs.get("peak"))
    over = kwargs.get("over")
    if over is not None and (not isinstance(over, int) or isinstance(over, bool) or over < 1):
        raise BudgetError(f"over={over!r} is not a number of iterations: write over=10_000")
    if over is not None and level is None:
        raise BudgetError(
            f"over={over} needs a level to hold over that run: write {resource}_budget(LEVEL, over={over})"
        )
    unclosed = kwargs.get("unclosed", "fail")
    if unclosed not in _UNCLOSED:
        raise BudgetError(f"unclosed={unclosed!r} is not one of {', '.join(map(repr, _UNCLOSED))}")
    reason = kwargs.get("reason", "")
    if not isinstance(reason, str):
        raise BudgetError(f"reason={reason!r} is not a text")
    return Budget(resource, level, per_iteration, over, unclosed, reason, peak=peak)


def _peak(resource: str, value: object) -> int | None:
    if value is None:
        return None
    if not find_resource(resource).peak:
        raise BudgetError(f"peak={value!r}: {resource} has no peak that can be followed")
    try:
        return parse_amount(value, find_resource(resource).unit)
    except AmountError as error:
        raise BudgetError(f"peak: {error}") from None


def parse_level(resource: str, value: object) -> int:
    """Read a level alone, as in ``steps(fd=0, heap="1 MiB")``.

    Raises:
        BudgetError: The value is no amount of this resource.
    """
    try:
        return parse_amount(value, find_resource(resource).unit)
    except AmountError as error:
        raise BudgetError(str(error)) from None


def read_levels(levels: dict[str, Level]) -> tuple[Budget, ...]:
    """Budgets from ``fd=0, heap="1 MiB"``; from nothing, growth of all that is judged by default.

    Raises:
        BudgetError: An unknown resource or a level that cannot be read.
    """
    if not levels:
        return tuple(Budget(name, explicit=False) for name, resource in RESOURCES.items() if resource.default)
    for name, level in levels.items():
        if name not in RESOURCES:
            raise BudgetError(f"{name}={level!r}: no such resource; valid are {', '.join(RESOURCES)}")
    try:
        given = {name: None if level is None else parse_level(name, level) for name, level in levels.items()}
    except BudgetError as error:
        raise BudgetError(f"{', '.join(f'{k}={v!r}' for k, v in levels.items())}: {error}") from None
    return tuple(Budget(name, given[name]) for name in RESOURCES if name in given)
