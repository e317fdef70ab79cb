"""Parse the budgets of marks and arguments: one `Budget` per resource."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypedDict

from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.resources import RESOURCES, OfResource, Resource, find_resource
from pytest_leakcheck.model.units import format_amount, format_rate, parse_amount, parse_rate

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


@dataclass(frozen=True, slots=True)
class Budget(OfResource):
    """The bound on one resource of one test.

    Attributes:
        resource: A key of `RESOURCES`, or ``gauge:<name>``.
        level: How far the resource may settle above its start level (the reading at the end of warm-up), in the unit of
            the resource; None bounds growth only.
        per_iteration: The tolerated sustained growth per iteration, in the unit of the resource.
        over: The number of iterations for which `level` must hold, if the measured growth continues; None: no check.
        unclosed: What to do if only the garbage collector releases the resource; ``warn`` never fails the test.
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


def parse_budget(resource: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Budget:
    """Parse ``<resource>_budget(level, *, per_iteration=, peak=, over=, unclosed=, reason=)``, or raise `InputError`."""
    traits = find_resource(resource)
    if len(args) > 1:
        raise InputError(f"takes one level, {len(args)} arguments were given")
    if unknown := [name for name in kwargs if name not in KEYWORDS]:
        raise InputError(f"has no keyword {unknown[0]!r}: valid keywords are {', '.join(KEYWORDS)}")
    level = parse_amount(args[0], traits.unit) if args else None
    with invalid_at("per_iteration"):
        per_iteration = parse_rate(kwargs.get("per_iteration", 0), traits.unit)
    peak, over = kwargs.get("peak"), kwargs.get("over")
    if peak is not None and not traits.peak:
        raise InputError(f"peak={peak!r}: {resource} has no peak that can be measured")
    with invalid_at("peak"):
        most = None if peak is None else parse_amount(peak, traits.unit)
    if over is not None and (not isinstance(over, int) or isinstance(over, bool) or over < 1):
        raise InputError(f"over={over!r} is not a positive whole number: write over=10_000")
    if over is not None and level is None:
        raise InputError(f"over={over} needs a level to compare with: write {resource}_budget(LEVEL, over={over})")
    unclosed, reason = kwargs.get("unclosed", "fail"), kwargs.get("reason", "")
    if unclosed not in _UNCLOSED_CHOICES:
        raise InputError(f"unclosed={unclosed!r} is not one of {', '.join(map(repr, _UNCLOSED_CHOICES))}")
    if not isinstance(reason, str):
        raise InputError(f"reason={reason!r} is not a string")
    return Budget(resource, level, per_iteration, over, unclosed, reason, peak=most)


def default_budget(resource: str, unclosed: Unclosed = "warn") -> Budget:
    """Return the budget of a resource that is judged although no mark or argument names it."""
    return Budget(resource, per_iteration=find_resource(resource).default_rate, unclosed=unclosed, explicit=False)


def growth_budgets(words: Iterable[str], unclosed: Unclosed = "warn") -> tuple[Budget, ...]:
    """Return budgets that bound the growth of resources that no mark names.

    The words ``countable`` and ``memory`` stand for the resources of either kind that are judged by default.
    """
    wanted = set(words)

    def is_wanted(one: Resource) -> bool:
        kind = "countable" if one.scarce and one.unit == "count" else "memory"
        return one.name in wanted or (one.default and kind in wanted)

    return tuple(default_budget(name, unclosed) for name, one in RESOURCES.items() if is_wanted(one))


def read_levels(levels: Mapping[str, object]) -> tuple[Budget, ...]:
    """Return budgets from levels by resource, such as ``fd=0, heap="1 MiB"``, or raise `InputError`.

    Without levels, return growth budgets for all resources that are judged by default.
    """
    # In a test, the report on an error ends with the user's own line.
    __tracebackhide__ = True
    if not levels:
        return growth_budgets(("countable", "memory"))
    for name, level in levels.items():
        if name not in RESOURCES:
            near, valid = did_you_mean(name, RESOURCES), ", ".join(RESOURCES)
            raise InputError(f"{name}={level!r}: no such resource.{near} Valid resources are {valid}")
    with invalid_at(", ".join(f"{name}={level!r}" for name, level in levels.items())):
        given = {
            name: None if level is None else parse_amount(level, RESOURCES[name].unit) for name, level in levels.items()
        }
    return tuple(Budget(name, given[name]) for name in RESOURCES if name in given)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the closest known word, or an empty string."""
    # Imported here, to keep runs without an invalid mark fast.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1) if word else []
    return f" Did you mean {close[0]!r}?" if close else ""
