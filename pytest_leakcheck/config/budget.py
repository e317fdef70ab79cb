"""Parse the budgets of marks and arguments: one `Budget` per resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypedDict

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.resources import RESOURCES, OfResource, find_resource
from pytest_leakcheck.model.units import AmountError, format_amount, format_rate, parse_amount, parse_rate

Unclosed: TypeAlias = Literal["fail", "warn", "allow"]

_UNCLOSED_CHOICES: Final = ("fail", "warn", "allow")
KEYWORDS: Final = ("per_iteration", "peak", "over", "unclosed", "reason")

Level = int | str | None


class Levels(TypedDict, total=False):
    """The keywords of ``steps()``, ``budget()`` and ``measure()`` for type checkers, as in `resource_table.ROWS`.

    Type checkers do not know the counters that a project adds. A typed test gives their levels in a dict: ``**levels``.
    """

    fd: int | None
    thread: int | None
    process: int | None
    shm: int | None
    disk: int | None
    task: int | None
    heap: Level
    object: int | None
    block: int | None
    arrow: Level
    vram: Level
    mmap: Level
    rss: Level


class BudgetError(LeakcheckError, ValueError):
    """An invalid budget; the message gives the value and the valid forms, but not where it was written."""


@dataclass(frozen=True, slots=True)
class Budget(OfResource):
    """The bound on one resource of one test.

    Attributes:
        resource: A key of `RESOURCES`, or ``gauge:<name>``.
        level: How far the resource may settle above its start level (the reading at the end of warm-up), in the unit of
            the resource; None bounds growth only.
        per_iteration: The tolerated sustained growth per iteration, in the unit of the resource.
        over: The number of iterations for which `level` must hold, if the measured growth continues; None: no check.
        unclosed: What to do if only the cyclic garbage collector releases the resource; ``warn`` never fails the test.
        explicit: Whether a mark, an argument or an option names this resource; else it is judged by default.
        peak: The allowed peak above the start level while the test runs once, in the unit of the resource; None: any.
    """

    resource: str
    level: int | None = None
    per_iteration: float = 0.0
    over: int | None = None
    unclosed: Unclosed = "fail"
    reason: str = ""
    explicit: bool = True
    peak: int | None = None

    @property
    def judges_all_growth(self) -> bool:
        """Whether all growth is judged, not only growth that no exact counter shows (see `Resource.default_rate`)."""
        return self.explicit or not self.traits.default_rate

    def __str__(self) -> str:
        unit = self.traits.unit
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
    """Parse the arguments of ``<resource>_budget(level, *, per_iteration=, peak=, over=, unclosed=, reason=)``.

    Raises:
        BudgetError: The number of arguments, a keyword or a value is invalid.
    """
    unit = find_resource(resource).unit
    if len(args) > 1:
        raise BudgetError(f"takes one level, {len(args)} arguments were given")
    unknown = [name for name in kwargs if name not in KEYWORDS]
    if unknown:
        raise BudgetError(f"has no keyword {unknown[0]!r}: valid keywords are {', '.join(KEYWORDS)}")
    level = parse_level(resource, args[0]) if args else None
    try:
        per_iteration = parse_rate(kwargs.get("per_iteration", 0), unit)
    except AmountError as error:
        raise BudgetError(f"per_iteration: {error}") from None
    peak = _parse_peak(resource, kwargs.get("peak"))
    over = kwargs.get("over")
    if over is not None and (not isinstance(over, int) or isinstance(over, bool) or over < 1):
        raise BudgetError(f"over={over!r} is not a positive whole number: write over=10_000")
    if over is not None and level is None:
        raise BudgetError(f"over={over} needs a level to compare with: write {resource}_budget(LEVEL, over={over})")
    unclosed = kwargs.get("unclosed", "fail")
    if unclosed not in _UNCLOSED_CHOICES:
        raise BudgetError(f"unclosed={unclosed!r} is not one of {', '.join(map(repr, _UNCLOSED_CHOICES))}")
    reason = kwargs.get("reason", "")
    if not isinstance(reason, str):
        raise BudgetError(f"reason={reason!r} is not a string")
    return Budget(resource, level, per_iteration, over, unclosed, reason, peak=peak)


def _parse_peak(resource: str, value: object) -> int | None:
    if value is None:
        return None
    if not find_resource(resource).peak:
        raise BudgetError(f"peak={value!r}: {resource} has no peak that can be measured")
    try:
        return parse_amount(value, find_resource(resource).unit)
    except AmountError as error:
        raise BudgetError(f"peak: {error}") from None


def parse_level(resource: str, value: object) -> int:
    """Parse a single level, such as those in ``steps(fd=0, heap="1 MiB")``, or raise `BudgetError`."""
    try:
        return parse_amount(value, find_resource(resource).unit)
    except AmountError as error:
        raise BudgetError(str(error)) from None


def default_budget(resource: str, unclosed: Unclosed = "warn") -> Budget:
    """Return the budget of a resource that is judged although no mark or argument names it."""
    return Budget(resource, per_iteration=find_resource(resource).default_rate, unclosed=unclosed, explicit=False)


def growth_budgets(words: Iterable[str], unclosed: Unclosed = "warn") -> tuple[Budget, ...]:
    """Return budgets that bound the growth of resources that no mark names.

    The words ``countable`` and ``memory`` stand for the resources of either kind that are judged by default.
    """
    wanted = set(words)
    kinds = {name: "countable" if one.scarce and one.unit == "count" else "memory" for name, one in RESOURCES.items()}
    return tuple(
        default_budget(name, unclosed)
        for name, resource in RESOURCES.items()
        if name in wanted or (resource.default and kinds[name] in wanted)
    )


def read_levels(levels: Mapping[str, object]) -> tuple[Budget, ...]:
    """Return budgets from levels by resource, such as ``fd=0, heap="1 MiB"``, or raise `BudgetError`.

    Without levels, return growth budgets for all resources that are judged by default.
    """
    # In a test, the report on an error ends with the user's own line.
    __tracebackhide__ = True
    if not levels:
        return tuple(default_budget(name) for name, resource in RESOURCES.items() if resource.default)
    for name, level in levels.items():
        if name not in RESOURCES:
            near, valid = did_you_mean(name, RESOURCES), ", ".join(RESOURCES)
            raise BudgetError(f"{name}={level!r}: no such resource.{near} Valid resources are {valid}")
    try:
        given = {name: None if level is None else parse_level(name, level) for name, level in levels.items()}
    except BudgetError as error:
        raise BudgetError(f"{', '.join(f'{k}={v!r}' for k, v in levels.items())}: {error}") from None
    return tuple(Budget(name, given[name]) for name in RESOURCES if name in given)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the closest known word, or an empty string."""
    # Imported here because only an invalid mark needs it, and ordinary runs must stay fast.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1) if word else []
    return f" Did you mean {close[0]!r}?" if close else ""
