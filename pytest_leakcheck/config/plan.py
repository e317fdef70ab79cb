"""Define the plan of one test: its budgets, its effort (iterations and time) and its ceiling (resource limits)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.ceiling import Ceiling
from pytest_leakcheck.config.settings import MAX_TIME, MIN_TIME, RUN, WARMUP, check_number
from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.resources import CHILDREN, RESOURCES

# The number of judged iterations after which an undecided test ends, if it has taken `Effort.min_time` and the user
# sets no number. It is one of the iterations at which `growth.looks` asks for a verdict. By then, the size of a cache
# with 256 entries has been constant for half of all iterations.
ADAPTIVE: Final = 562
# The maximum number of judged iterations of a test that has not taken `Effort.min_time` by then, if the user sets no
# number. The size of a cache with 2,000 entries is constant for half of these iterations.
LONGEST: Final = 5000
# The share of a test's timeout that its iterations may use; the rest is for the last run.
TIMEOUT_SHARE: Final = 0.7
NO_LIMITS: Final = Ceiling()


@dataclass(frozen=True, slots=True)
class Effort:
    """The iterations and the time spent on one test; values out of range or of the wrong type raise `InputError`.

    Attributes:
        iterations: The number of judged iterations. With 0, the test ends as soon
            as the verdict is known. An undecided test then ends after `ADAPTIVE` iterations or `min_time`, whichever is
            later, but after `LONGEST` iterations at most.
        warmup: The number of iterations before the start level is read, at least 1.
        max_time: Seconds for all iterations of one test; an iteration that has begun is not interrupted.
        run_length: Iterations of the production run that the test represents; slow growth is judged over that number.
        min_time: With 0 `iterations`, seconds before growth counts as a leak and before an undecided test ends: a pool or
            a cache with hand-written eviction may become full, or a rare leak occur again. A test that retains much does
            not wait.
        time_without_timeout: What `max_time` was before a shorter timeout of pytest-timeout reduced it; 0 if none did.
        in_script: Whether a script has set these values, so that no option of pytest changes them.
    """

    iterations: int = 0
    warmup: int = WARMUP
    max_time: float = MAX_TIME
    run_length: int = RUN
    isolate: bool = False
    min_time: float = MIN_TIME
    time_without_timeout: float = 0.0
    in_script: bool = False

    def __post_init__(self) -> None:
        for name in ("iterations", "warmup", "max_time", "min_time"):
            with invalid_at(f"{name}={getattr(self, name)!r}"):
                check_number(name, getattr(self, name))
        isolate: object = self.isolate
        if not isinstance(isolate, bool):
            raise InputError(f"isolate={isolate!r}: must be True or False")

    @property
    def most(self) -> int:
        return self.iterations or (LONGEST if self.min_time else ADAPTIVE)

    @property
    def usual(self) -> int:
        """The number of judged iterations after which an undecided test ends, if it has taken `min_time` by then."""
        return self.iterations or ADAPTIVE

    def within_timeout(self, seconds: float) -> Effort:
        """Return this effort, with a `max_time` that leaves the last run enough of a timeout of this many seconds."""
        limit = TIMEOUT_SHARE * seconds
        return self if limit >= self.max_time else replace(self, max_time=limit, time_without_timeout=self.max_time)

    def advise_time(self, seconds: float) -> str:
        """Return the setting that gives a test at least this many seconds, as text."""
        wanted = ceil(seconds)
        if self.in_script:
            return f"max_time={wanted}"
        option = f"--leakcheck-max-time={wanted}"
        if not self.time_without_timeout:
            return option
        timeout = f"a timeout of {ceil(wanted / TIMEOUT_SHARE)} s, because pytest-timeout limits this test"
        return timeout if wanted <= self.time_without_timeout else f"{option} and {timeout}"

    def is_enough(self, iterations: int, seconds: float) -> bool:
        return iterations >= (self.usual if seconds >= self.min_time else self.most)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one test, with the budgets in the order of judgement.

    `process` describes the separate process that runs the test, for the report. `screen`: a few iterations suffice for
    an ``ok`` if no counter rises in them (`judge.screening`).
    """

    test: str
    budgets: tuple[Budget, ...]
    effort: Effort = Effort()
    process: Mapping[str, str] = field(default_factory=dict)
    ceiling: Ceiling = NO_LIMITS
    screen: bool = False


def plan_test(
    test: str,
    budgets: tuple[Budget, ...],
    effort: Effort,
    growth: tuple[Budget, ...] = (),
    ceiling: Ceiling = NO_LIMITS,
) -> Plan:
    """Make the plan of a test from its explicit budgets, at most one per resource, and the defaults.

    `growth` has budgets for resources that `budgets` does not name. A test with limits runs in a separate process, and
    what they limit is judged.
    """
    by_resource = {budget.resource: budget for budget in (*growth, *budgets)}
    effort = replace(effort, isolate=effort.isolate or bool(ceiling.sizes))
    for name in ceiling.sizes:
        if name not in by_resource or not by_resource[name].judges_all_growth:
            by_resource[name] = Budget(name)
    # The first red verdict ends the repetition. Child processes come first, because their descriptors and threads count
    # as those of the test: a retained child process would otherwise be reported as a leak of descriptors.
    order = (CHILDREN, *RESOURCES)
    judged = tuple(by_resource.pop(name) for name in order if name in by_resource)
    return Plan(test, judged, effort, ceiling=ceiling)
