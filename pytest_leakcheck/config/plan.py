"""Define the plan of one test: its budgets, its effort and its ceiling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.config.ceiling import Ceiling
from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.resources import CHILDREN, RESOURCES

# The number of judged iterations after which an undecided test ends, if it has taken `Effort.min_time` and the user
# sets no number; one of the values that `growth.looks` yields. A cache of 256 entries is then constant for half of all
# iterations.
ADAPTIVE: Final = 562
# The maximum number of judged iterations of a test that has not taken `Effort.min_time` by then. A cache of 2,000
# entries is constant for half of them.
LONGEST: Final = 5000


# The maximum number of iterations. The columns of readings are allocated in advance. Each takes 8 bytes per iteration;
# together they take about 10 MB.
MOST_ITERATIONS: Final = 100_000


class EffortError(LeakcheckError, ValueError):
    """An effort value out of range; the message gives its name and the range."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The iterations and the time spent on one test.

    Attributes:
        iterations: The number of judged iterations. With 0, the test ends as soon as the verdict is known. An undecided
            test then ends after `ADAPTIVE` iterations or `min_time`, whichever is later, but after `LONGEST` iterations
            at most.
        warmup: The number of iterations before the start level is read.
        max_time: Seconds for all iterations of one test; an iteration that has begun is not interrupted.
        run_length: The number of iterations of the real run that the test represents, to judge the effect of growth.
        isolate: Whether to run the test alone in a separate process.
        min_time: If `iterations` is 0, the seconds before growth of memory is called a leak and before an undecided
            test ends. Within that time, a cache with hand-written eviction may become full, or a rare leak may occur
            again.

    Raises:
        EffortError: A value is out of range or of the wrong type.
    """

    iterations: int = 0
    warmup: int = 3
    max_time: float = 30.0
    run_length: int = 10_000
    isolate: bool = False
    min_time: float = 3.0

    def __post_init__(self) -> None:
        for name, most in (("iterations", MOST_ITERATIONS), ("warmup", MOST_ITERATIONS)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise EffortError(f"{name}={value!r} is not a whole number from 0 to {most:,}")
        seconds: object = self.max_time
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not seconds > 0:
            raise EffortError(f"max_time={self.max_time!r} is not a number of seconds above 0")
        least: object = self.min_time
        if not isinstance(least, (int, float)) or isinstance(least, bool) or not least >= 0:
            raise EffortError(f"min_time={self.min_time!r} is not a number of seconds from 0")
        isolate: object = self.isolate
        if not isinstance(isolate, bool):
            raise EffortError(f"isolate={isolate!r} is not True or False")

    @property
    def most(self) -> int:
        """The maximum number of judged iterations."""
        return self.iterations or (LONGEST if self.min_time else ADAPTIVE)

    @property
    def usual(self) -> int:
        """The number of judged iterations after which an undecided test ends, unless it is cheap."""
        return self.iterations or ADAPTIVE

    def is_enough(self, iterations: int, seconds: float) -> bool:
        """Return whether a test that is undecided ends after this many judged iterations and seconds."""
        return iterations >= (self.usual if seconds >= self.min_time else self.most)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one test.

    Attributes:
        test: The node id.
        budgets: The budgets in the order of judgement.
        effort: The iterations and the time.
        process: A description of the process that runs the test, for the report.
        ceiling: The limits that the test runs under.
    """

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
    """Combine explicit budgets with the defaults.

    Args:
        test: The node id.
        budgets: The budgets of the closest marks, at most one per resource.
        effort: The effort from the settings and the mark.
        everything: None judges only the budgets; a tuple adds growth budgets for these resources, an empty tuple for
            all resources that are judged by default.
        ceiling: The limits that the test runs under, in a separate process. The limited resources are judged as well.

    Returns:
        The plan, with the budgets in the order of judgement: the first red verdict ends the repetition.
    """
    by_resource = {budget.resource: budget for budget in budgets}
    if everything is not None:
        by_default = (name for name, resource in RESOURCES.items() if resource.default)
        more = map(Budget, everything) if everything else map(default_budget, by_default)
        by_resource = {budget.resource: budget for budget in more} | by_resource
    if ceiling is not None and ceiling.sizes:
        effort = replace(effort, isolate=True)
        for name in ceiling.sizes:
            if name not in by_resource or not by_resource[name].judges_all_growth:
                by_resource[name] = Budget(name)
    # Child processes first: their descriptors and threads count too, and would otherwise be reported as the leak.
    order = (CHILDREN, *RESOURCES)
    judged = tuple(by_resource.pop(name) for name in order if name in by_resource)
    return Plan(test, judged, effort, ceiling=ceiling or Ceiling())
