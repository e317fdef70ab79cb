"""Parse the amounts of marks and arguments: one `Budget` per resource, and the `Ceiling` of a test.

A ceiling is limits far below those of the machine, so that a leaking test fails in seconds, not
hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, TypeAlias, TypedDict

from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.resources import (
    DESCRIPTORS,
    DEVICE_MEMORY,
    RESIDENT,
    RESOURCES,
    OfResource,
    find_resource,
)
from pytest_leakcheck.model.units import format_amount, format_rate, parse_amount, parse_rate

Unclosed: TypeAlias = Literal["fail", "warn", "allow"]
_UNCLOSED_CHOICES: Final = ("fail", "warn", "allow")
KEYWORDS: Final = ("per_iteration", "peak", "over", "unclosed", "reason")

Level = int | str | None


class Levels(TypedDict, total=False):
    """Typed keywords of ``steps()``, ``budget()`` and ``measure()``, as in `resource_table.ROWS`.

    Type checkers do not know the counters that a project adds. A typed test gives their levels in a
    dict: ``**levels``.
    """

    fd: int | None
    thread: int | None
    process: int | None
    shm: int | None
    disk: int | None
    task: int | None
    ray_actor: int | None
    ray_placement_group: int | None
    ray_ref: int | None
    ray_object: int | None
    ray_worker: int | None
    plasma: Level
    heap: Level
    object: int | None
    block: int | None
    arrow: Level
    vram: Level
    mmap: Level
    rss: Level
    reference: int | None


@dataclass(frozen=True, slots=True)
class Budget(OfResource):
    """The bound on one resource of one test.

    Attributes:
        resource: A key of `RESOURCES`, or ``gauge:<name>``; the amounts are in its unit.
        level: How far it may settle above its start level (the reading at the end of warm-up); None
            bounds growth only.
        per_iteration: The tolerated sustained growth per iteration.
        over: The number of iterations for which `level` must hold, if the measured growth
            continues; None: no check.
        unclosed: What to do if only the garbage collector releases the resource; ``warn`` never
            fails the test.
        explicit: Whether a mark, an argument or an option names this resource; else it is judged by
            default.
        peak: The allowed peak above the start level while the test runs once; None: any.
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
        """Whether growth that exact counters show is judged too (see `Resource.default_rate`)."""
        return self.explicit or not self.traits.default_rate

    def __str__(self) -> str:
        unit = self.traits.unit
        parts = (
            "" if self.level is None else format_amount(self.level, unit),
            format_rate(self.per_iteration, unit) if self.per_iteration else "",
            "" if self.peak is None else f"peak {format_amount(self.peak, unit)}",
            "" if self.over is None else f"over {self.over:,} iterations",
        )
        return ", ".join(filter(None, parts)) or "no growth"


def parse_budget(resource: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Budget:
    """Parse the arguments of a budget mark, or raise `InputError`.

    Its form is ``<resource>_budget(level, *, per_iteration=, peak=, over=, unclosed=, reason=)``.
    """
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
        raise InputError(
            f"over={over} needs a level to compare with: write {resource}_budget(LEVEL, over={over})"
        )
    unclosed, reason = kwargs.get("unclosed", "fail"), kwargs.get("reason", "")
    if unclosed not in _UNCLOSED_CHOICES:
        raise InputError(
            f"unclosed={unclosed!r} is not one of {', '.join(map(repr, _UNCLOSED_CHOICES))}"
        )
    if not isinstance(reason, str):
        raise InputError(f"reason={reason!r} is not a string")
    return Budget(resource, level, per_iteration, over, unclosed, reason, peak=most)


@cache
def default_budget(resource: str, unclosed: Unclosed = "warn") -> Budget:
    """Return the budget of a resource that is judged although no mark or argument names it.

    All tests share it: a full collection in any test visits the budgets of all others.
    """
    return Budget(
        resource,
        per_iteration=find_resource(resource).default_rate,
        unclosed=unclosed,
        explicit=False,
    )


def growth_budgets(words: Iterable[str], unclosed: Unclosed = "warn") -> tuple[Budget, ...]:
    """Return budgets that bound the growth of resources that no mark names.

    The words ``countable`` and ``memory`` stand for the resources of either kind that are judged by
    default.
    """
    wanted = set(words)
    for name, resource in RESOURCES.items():
        if (
            resource.default
            and ("countable" if resource.scarce and resource.unit == "count" else "memory")
            in wanted
        ):
            wanted.add(name)
    return tuple(default_budget(name, unclosed) for name in RESOURCES if name in wanted)


def read_levels(levels: Mapping[str, object]) -> tuple[Budget, ...]:
    """Return budgets from levels by resource, like ``fd=0, heap="1 MiB"``, or raise `InputError`.

    Without levels, return growth budgets for all resources that are judged by default.
    """
    # In a test, the report on an error ends with the user's own line.
    __tracebackhide__ = True
    if not levels:
        return growth_budgets(("countable", "memory"))
    for name, level in levels.items():
        if name not in RESOURCES:
            near, valid = did_you_mean(name, RESOURCES), ", ".join(RESOURCES)
            raise InputError(
                f"{name}={level!r}: no such resource.{near} Valid resources are {valid}"
            )
    with invalid_at(", ".join(f"{name}={level!r}" for name, level in levels.items())):
        given = {name: levels[name] for name in RESOURCES if name in levels}
        return tuple(
            Budget(name, None if level is None else parse_amount(level, RESOURCES[name].unit))
            for name, level in given.items()
        )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the closest known word, or an empty string."""
    # Imported here, to keep runs without an invalid mark fast.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1) if word else []
    return f" Did you mean {close[0]!r}?" if close else ""


# RLIMIT_NOFILE limits descriptors, RLIMIT_AS limits memory, and the device's allocator limits its
# memory.
_LIMITED: Final = (DESCRIPTORS, RESIDENT, DEVICE_MEMORY)
# The smallest limit on descriptors that leaves enough for pytest itself.
_MIN_DESCRIPTORS: Final = 32


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The limits of one test, by resource (``fd``, ``rss`` or ``vram``), each in its unit."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {format_amount(size, find_resource(name).unit)}"
            for name, size in self.sizes.items()
        )


def read_ceiling(*positional: object, **sizes: object) -> Ceiling:
    """Parse ``leakcheck_ceiling`` arguments like ``fd=256, rss="1 GiB"``, or raise `InputError`."""
    if positional:
        raise InputError("takes keyword arguments only")
    if not sizes:
        raise InputError('names no resource: write fd=256, rss="1 GiB", vram="2 GiB"')
    read: dict[str, int] = {}
    for name, value in sizes.items():
        if name not in _LIMITED:
            raise InputError(f"{name}={value!r}: only {', '.join(_LIMITED)} can be limited")
        with invalid_at(name):
            read[name] = parse_amount(value, find_resource(name).unit)
        if name == DESCRIPTORS and read[name] < _MIN_DESCRIPTORS:
            raise InputError(
                f"{name}={value!r} is too low for pytest itself: write {_MIN_DESCRIPTORS} or more"
            )
    return Ceiling(read)


def parse_ceiling(text: str) -> Ceiling:
    """Parse ``--leakcheck-ceiling``, like ``fd=256,rss=1GiB`` or empty, or raise `InputError`."""
    given: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals_sign, value = part.partition("=")
        if not equals_sign:
            raise InputError(f"{part!r} is not a limit: write fd=256,rss=1GiB")
        value = value.strip()
        # Python refuses to convert thousands of digits.
        given[name.strip()] = int(value) if value.isdecimal() and len(value) < 20 else value
    return read_ceiling(**given) if given else Ceiling()
