"""What to measure of one test, and how hard to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.ceiling import Ceiling
from pytest_leakcheck.model.resources import CHILDREN, RESOURCES

# A look of `growth.looks`. A leak of memory is called at the look past the horizon of 200; what is still undecided there
# is given the time to stand still again (a cache of 256 entries, for half of all iterations).
ADAPTIVE: Final = 562


# Columns are allocated for all of them beforehand, 8 bytes each: this is 10 MB.
MOST_ITERATIONS: Final = 100_000


class EffortError(ValueError):
    """An effort out of range; the message says which, and the range."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try.

    Attributes:
        iterations: Judged iterations; 0 stops as soon as the verdict is known, at most `ADAPTIVE`.
        warmup: Iterations before the start.
        max_time: Seconds for all iterations of one test; an iteration that has begun is not cut short.
        run_length: Iterations of the run that the test stands for, to say what growth comes to.
        isolate: Run the test alone in a process of its own.

    Raises:
        EffortError: A number is out of range.
    """

    iterations: int = 0
    warmup: int = 3
    max_time: float = 30.0
    run_length: int = 10_000
    isolate: bool = False

    def __post_init__(self) -> None:
        for name, most in (("iterations", MOST_ITERATIONS), ("warmup", MOST_ITERATIONS)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise EffortError(f"{name}={value!r} is not a whole number from 0 to {most:,}")
        seconds: object = self.max_time
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds > 0:
            raise EffortError(f"max_time={self.max_time!r} is not a number of seconds above 0")
        isolate: object = self.isolate
        if not isinstance(isolate, bool):
            raise EffortError(f"isolate={isolate!r} is not True or False")

    @property
    def most(self) -> int:
        """The largest number of judged iterations."""
        return self.iterations or ADAPTIVE


@dataclass(frozen=True, slots=True)
class Plan:
    """One test: what it is held to, the effort, what the report should say of the process that it runs in, and its limits."""

    test: str
    budgets: tuple[Budget, ...]
    effort: Effort = Effort()
    process: Mapping[str, str] = field(default_factory=dict)
    ceiling: Ceiling = field(default_factory=Ceiling)


def plan_test(
    test: str,
    budgets: tuple[Budget, ...],
    effort: Effort,
    everything: tuple[str, ...] | None,
    ceiling: Ceiling | None = None,
) -> Plan:
    """Join explicit budgets with the defaults.

    Args:
        test: The node id.
        budgets: What the closest markers say, at most one per resource.
        effort: Settings, refined by the marker.
        everything: None judges the budgets alone; a tuple adds growth budgets for these resources, and an empty one
            for all that are judged by default.
        ceiling: Limits that the test runs under, in a process of its own; what is limited is judged.

    Returns:
        The plan, budgets in the order of judgement: the first red ends the repetition.
    """
    by_resource = {budget.resource: budget for budget in budgets}
    if everything is not None:
        for name in everything or tuple(name for name, resource in RESOURCES.items() if resource.default):
            by_resource.setdefault(name, Budget(name, explicit=bool(everything)))
    if ceiling is not None and ceiling.sizes:
        effort = replace(effort, isolate=True)
        for name in ceiling.sizes:
            by_resource.setdefault(name, Budget(name))
    # Children first: their descriptors and threads count too, and would otherwise be blamed in their place.
    order = (CHILDREN, *RESOURCES)
    judged = tuple(by_resource.pop(name) for name in order if name in by_resource)
    return Plan(test, judged, effort, ceiling=ceiling or Ceiling())
