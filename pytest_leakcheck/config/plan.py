"""Plan one test from its marks and settings: budgets, effort (iterations and time), and a ceiling.

Errors name the mark and its valid form. Pytest nodes are not used. The settings of a test are those
of the session, changed by the first line of ``leakcheck_rules`` whose pattern matches its file.
Such a line is ``PATTERN: WORDS``, for example ``tests/net/**: resources=fd,thread max_time=15``. A
word is ``off``, which leaves the files out of ``--leakcheck-scope=all``, or an option by its key
without the prefix. A rule overrides the configuration; marks and the command line override a rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from types import MappingProxyType
from typing import Any, Final, Protocol

from pytest_leakcheck.config.budget import (
    KEYWORDS,
    Budget,
    Ceiling,
    did_you_mean,
    growth_budgets,
    parse_budget,
    parse_ceiling,
    read_ceiling,
)
from pytest_leakcheck.config.settings import (
    MAX_TIME,
    MIN_TIME,
    NUMBERS,
    OPTIONS,
    RUN,
    SCALING,
    WARMUP,
    Settings,
    check_number,
    check_value,
    parse_failures,
    split_words,
)
from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.culprit import Fault
from pytest_leakcheck.model.resource_table import marker_form
from pytest_leakcheck.model.resources import CHILDREN, RESOURCES

# The number of judged iterations after which an undecided test ends, if it has taken
# `Effort.min_time` and the user sets no number. It is one of the iterations at which `growth.looks`
# asks for a verdict. By then, the size of a cache with 256 entries has been constant for half of
# all iterations.
ADAPTIVE: Final = 562
# The maximum number of judged iterations of a test that has not taken `Effort.min_time` by then, if
# the user sets no number. The size of a cache with 2,000 entries is constant for half of these
# iterations.
LONGEST: Final = 5000
# Under an explicit budget, whose missing verdict fails in CI, `Effort.max_time` is extended to the
# time of so many iterations, at most to so many seconds: memory needs up to 230 of them, and a
# series may start again.
SLOW_ITERATIONS: Final = 300
MOST_SECONDS: Final = 180.0
# The share of a test's timeout that its repetition may use; the rest is for the first run.
TIMEOUT_SHARE: Final = 0.7
NO_LIMITS: Final = Ceiling()
# Iterations of warm-up of a test that is screened: its run in the first pass, if it had one.
_SCREEN_WARMUP: Final = 1
# The mark of a test that runs under resource limits.
_CEILING: Final = "leakcheck_ceiling"
_BUDGET_SUFFIX: Final = "_budget"
_LEAKCHECK_KEYWORDS: Final = (
    "iterations",
    "warmup",
    "max_time",
    "min_time",
    "isolate",
    "resources",
    "failures",
)
# A mark that is less similar than this to one of the plugin is taken for the project's own.
_MIN_SIMILARITY: Final = 0.75
# The options that may differ between the tests of a session.
_RULE_KEYS: Final = ("resources", *NUMBERS, "unclosed", "isolate", "ceiling", "scope")
# Words without a value, with what they set.
_RULE_WORDS: Final[Mapping[str, tuple[str, Any]]] = {
    "off": ("scope", "off"),
    "isolate": ("isolate", True),
}
_RULES: Final = "leakcheck_rules"


@dataclass(frozen=True, slots=True)
class Effort:
    """The iterations and time spent on one test; an invalid value or type raises `InputError`.

    Attributes:
        iterations: The number of judged iterations. With 0, the test ends as soon as the verdict is
            known. An undecided test then ends after `ADAPTIVE` iterations or `min_time`, whichever
            is later, but after `LONGEST` iterations at most.
        warmup: The number of iterations before the start level is read, at least 1.
        max_time: Seconds for all iterations of one test; an iteration that has begun is not
            interrupted.
        run_length: Iterations of the production run that the test represents; slow growth is judged
            over that number.
        min_time: With 0 `iterations`, seconds before growth counts as a leak and before an
            undecided test ends: a pool or a cache with hand-written eviction may become full, or a
            rare leak occur again. A test that retains much does not wait.
        longest: Seconds up to which slow iterations extend `max_time`, with searches beside them; 0
            if they do not.
        time_without_timeout: What `max_time` was before a shorter timeout of pytest-timeout reduced
            it; 0 if none did.
        in_script: Whether a script has set these values, so that no option of pytest changes them.
    """

    iterations: int = 0
    warmup: int = WARMUP
    max_time: float = MAX_TIME
    run_length: int = RUN
    isolate: bool = False
    min_time: float = MIN_TIME
    longest: float = 0.0
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
        """The judged iterations after which an undecided test ends, if it has taken `min_time`."""
        return self.iterations or ADAPTIVE

    def within_timeout(self, seconds: float) -> Effort:
        """Return this effort with a `max_time` that leaves the first run enough of a timeout."""
        limit = TIMEOUT_SHARE * seconds
        if limit < self.max_time:
            return replace(self, max_time=limit, longest=0.0, time_without_timeout=self.max_time)
        # A search beside the iterations may take as long as they do.
        return replace(self, longest=min(self.longest, limit / 2))

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

    `process` describes the separate process that runs the test, for the report. `screen`: a few
    iterations suffice for an ``ok`` if no counter rises in them (`judge.screening`). `failures` are
    the names of functions and modules whose calls raise in turn; `fault` is the call that does in
    this repetition.
    """

    test: str
    budgets: tuple[Budget, ...]
    effort: Effort = Effort()
    process: Mapping[str, str] = field(default_factory=dict)
    ceiling: Ceiling = NO_LIMITS
    screen: bool = False
    failures: tuple[str, ...] = ()
    fault: Fault | None = None

    def failing_at(self, fault: Fault, seconds: float) -> Plan:
        """Return the plan with a call that raises, for so many seconds: a few iterations decide."""
        budgets = tuple(replace(budget, peak=None) for budget in self.budgets)
        effort = replace(
            self.effort, iterations=0, warmup=_SCREEN_WARMUP, max_time=seconds, longest=0.0
        )
        return replace(self, budgets=budgets, effort=effort, screen=True, failures=(), fault=fault)


def plan_test(
    test: str,
    budgets: Iterable[Budget],
    effort: Effort,
    growth: Iterable[Budget] = (),
    ceiling: Ceiling = NO_LIMITS,
) -> Plan:
    """Plan a test from its explicit budgets, at most one per resource, and the defaults.

    `growth` has budgets for resources that `budgets` does not name. A test with limits runs in a
    separate process, and what they limit is judged.
    """
    by_resource = {budget.resource: budget for budget in (*growth, *budgets)}
    effort = replace(effort, isolate=effort.isolate or bool(ceiling.sizes))
    if not any(budget.explicit and not budget.traits.scarce for budget in by_resource.values()):
        effort = replace(effort, longest=0.0)
    for name in ceiling.sizes:
        if name not in by_resource or not by_resource[name].judges_all_growth:
            by_resource[name] = Budget(name)
    # The first red verdict ends the repetition. Child processes come first, because their
    # descriptors and threads count as those of the test: a retained child process would otherwise
    # be reported as a leak of descriptors.
    judged = tuple(by_resource.pop(name) for name in (CHILDREN, *RESOURCES) if name in by_resource)
    return Plan(test, judged, effort, ceiling=ceiling)


class Mark(Protocol):
    """The attributes of a pytest mark that this package uses."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def is_budget(mark: str) -> bool:
    """Return whether a mark of this name sets the budget of a resource."""
    return mark.endswith(_BUDGET_SUFFIX) and mark.removesuffix(_BUDGET_SUFFIX) in RESOURCES


def valid_form(mark: str) -> str:
    """Return the signature of a budget mark, with an example level."""
    resource = RESOURCES[mark.removesuffix(_BUDGET_SUFFIX)]
    return marker_form(resource.name, resource.unit, peak=resource.peak)


def is_opted_out(marks: Iterable[Mark]) -> bool:
    """Return whether the plugin's first mark, the closest one, is ``leakcheck(False)``."""
    closest = next(
        (
            mark
            for mark in marks
            if is_budget(mark.name) or mark.name in ("leakcheck", _CEILING, SCALING)
        ),
        None,
    )
    return closest is not None and is_opt_out(closest)


def is_opt_out(mark: Mark) -> bool:
    """Return whether a mark is ``leakcheck(False)``."""
    return mark.name == "leakcheck" and len(mark.args) == 1 and mark.args[0] is False


def read_marks(
    test: str, marks: Iterable[Mark], settings: Settings, *, loops: bool = False
) -> Plan | None:
    """Return the plan of one test, or None if no mark requires one.

    Raise `InputError` if a mark is invalid. The marks come closest first; if several have the same
    name, the first is used. A value given on the command line overrides the mark. A
    ``leakcheck(False)`` that is not the closest mark changes nothing. If a test uses the fixture
    ``leakcheck`` (`loops`), which may judge its own loops, ``leakcheck_ceiling`` alone does not
    repeat it.
    """
    marks = tuple(marks)
    closest = {mark.name: mark for mark in reversed(marks)}
    budgets = []
    for mark in closest.values():
        if is_budget(mark.name):
            with invalid_mark(mark, valid_form(mark.name), KEYWORDS):
                budgets.append(
                    parse_budget(mark.name.removesuffix(_BUDGET_SUFFIX), mark.args, mark.kwargs)
                )
    leakcheck = closest.get("leakcheck")
    if leakcheck is not None and is_opt_out(leakcheck):
        with invalid_mark(leakcheck, 'leakcheck(False, reason="...")'):
            if not leakcheck.kwargs.keys() <= {"reason"} or not isinstance(
                leakcheck.kwargs.get("reason", ""), str
            ):
                raise InputError("has only a reason")
        leakcheck = None
    if is_opted_out(marks):
        return None
    ceiling = ceiling_of(marks, settings)
    if leakcheck is None and not budgets and (loops or _CEILING not in closest):
        return None
    effort, failures = effort_of(settings), settings.failures
    growth: tuple[Budget, ...] = ()
    if leakcheck is not None:
        effort, named, failures = _parse_leakcheck_mark(leakcheck, settings)
        growth = tuple(map(Budget, named)) or growth_budgets(settings.resources, settings.unclosed)
    return replace(plan_test(test, budgets, effort, growth, ceiling), failures=failures)


def plan_unmarked(test: str, settings: Settings) -> Plan:
    """Return the plan of a test without a mark, under ``--leakcheck-scope=all``."""
    # A few iterations decide whether any counter rises, after a shorter warm-up than usual, unless
    # the user has set a number of iterations, a warm-up or a ceiling.
    growth = growth_budgets(settings.resources, settings.unclosed)
    plan = plan_test(test, (), effort_of(settings), growth, parse_ceiling(settings.ceiling))
    plan = replace(plan, failures=settings.failures)
    if settings.iterations or settings.warmup != WARMUP or plan.ceiling.sizes:
        return plan
    return replace(plan, effort=replace(plan.effort, warmup=_SCREEN_WARMUP), screen=True)


def ceiling_of(marks: Iterable[Mark], settings: Settings) -> Ceiling:
    """Return a test's limits by the command line, else the closest mark, else the configuration."""
    mark = next((one for one in marks if one.name == _CEILING), None)
    given = parse_ceiling(settings.ceiling)
    if mark is None:
        return given
    with invalid_mark(mark, f"{_CEILING}(fd=256, rss='1 GiB', vram='2 GiB')"):
        marked = read_ceiling(*mark.args, **mark.kwargs)
    return given if given.sizes and settings.from_command_line("ceiling") else marked


def effort_of(settings: Settings) -> Effort:
    """Return the effort of a test without a ``leakcheck`` mark."""
    return Effort(
        settings.iterations,
        settings.warmup,
        settings.max_time,
        settings.run,
        settings.isolate,
        settings.min_time,
        longest=MOST_SECONDS if settings.sources.get("max_time") == "default" else 0.0,
    )


def _parse_leakcheck_mark(
    mark: Mark, settings: Settings
) -> tuple[Effort, tuple[str, ...], tuple[str, ...]]:
    """Return the effort, the resources and the functions that fail in turn."""
    form = f"leakcheck({', '.join(f'{name}=' for name in _LEAKCHECK_KEYWORDS)})"
    with invalid_mark(mark, form, _LEAKCHECK_KEYWORDS):
        if mark.args:
            raise InputError("takes keyword arguments only, or False to leave the test out")
        given = dict(mark.kwargs)
        if unknown := [name for name in given if name not in _LEAKCHECK_KEYWORDS]:
            raise InputError(f"has no keyword {unknown[0]!r}")
        failures = parse_failures(given.pop("failures", settings.failures))
        resources = given.pop("resources", ())
        if (
            not isinstance(resources, (list, tuple, set, frozenset))
            or not set(map(str, resources)) <= RESOURCES.keys()
        ):
            raise InputError(
                f"resources={resources!r} is not a list of resources: {', '.join(RESOURCES)}"
            )
        if given.get("iterations") == 0:
            raise InputError("iterations=0 is not a positive whole number")
        # An invalid mark is an error even if the command line overrides its values.
        Effort(**{"iterations": 1, **given})
        effort = {
            name: value for name, value in given.items() if not settings.from_command_line(name)
        }
        if "max_time" in given:
            effort["longest"] = 0.0
        chosen = settings.failures if settings.from_command_line("failures") else failures
        return replace(effort_of(settings), **effort), tuple(resources), chosen


@contextmanager
def invalid_mark(mark: Mark, form: str, keywords: Collection[str] = ()) -> Iterator[None]:
    """Add to an `InputError` the mark, the valid form, and a keyword similar to an unknown one."""
    try:
        yield
    except InputError as error:
        unknown = next((name for name in mark.kwargs if keywords and name not in keywords), "")
        words = [*map(repr, mark.args), *(f"{key}={value!r}" for key, value in mark.kwargs.items())]
        spelled = f"{mark.name}({', '.join(words)})".replace("'", '"')
        raise InputError(
            f"{spelled}: {error}.{did_you_mean(unknown, keywords)} Valid: {form}"
        ) from None


def suggest(name: str, known: Sequence[str]) -> str:
    """Return what to write for an unknown mark; empty if it is like no known one, and no budget."""
    from difflib import get_close_matches

    # Of a budget, only the resource is compared: with the suffix, every budget would be similar.
    marks = {one: one for one in known} | {one.removesuffix(_BUDGET_SUFFIX): one for one in known}
    if near := get_close_matches(name.removesuffix(_BUDGET_SUFFIX), marks, 1, _MIN_SIMILARITY):
        return f"Did you mean {marks[near[0]]!r}?"
    valid = ", ".join(one for one in known if one.endswith(_BUDGET_SUFFIX))
    return f"Valid are {valid}." if name.endswith(_BUDGET_SUFFIX) else ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line; `files` matches a file's path below the root directory, with ``/`` appended."""

    pattern: str
    files: re.Pattern[str]
    values: Mapping[str, Any]

    def matches(self, test: str) -> bool:
        return self.files.match(f"{test.partition('::')[0]}/") is not None


@lru_cache(maxsize=4)
def parse_rules(lines: tuple[str, ...]) -> tuple[Rule, ...]:
    """Parse the lines of ``leakcheck_rules``, or raise `InputError`."""
    return tuple(_parse_rule(line) for line in lines)


def for_test(settings: Settings, test: str) -> Settings:
    """Return the session's settings, changed by the first rule that matches the test's node id."""
    if not settings.rules:
        return settings
    given: Mapping[str, Any] = next(
        (rule.values for rule in parse_rules(settings.rules) if rule.matches(test)), {}
    )
    values = {name: value for name, value in given.items() if not settings.from_command_line(name)}
    return settings.changed(values, _RULES) if values else settings


def unused(settings: Settings, tests: Collection[str]) -> tuple[str, ...]:
    """Return the patterns that match none of these node ids."""
    rules = parse_rules(settings.rules)
    return tuple(one.pattern for one in rules if not any(one.matches(test) for test in tests))


def _parse_rule(line: str) -> Rule:
    pattern, _, words = map(str.strip, line.partition(":"))
    with invalid_at(f"{_RULES} = {line!r}"):
        if not pattern or not words:
            raise InputError(
                "is not PATTERN: WORDS, as in tests/net/**: resources=fd,thread max_time=15"
            )
        values = dict(map(_parse_word, words.split()))
    # In a path with a "/" at its end: "*" ends at "/", "**" does not. A folder matches all that it
    # contains.
    parts = (
        re.escape(segment).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        for segment in pattern.strip("/").split("/")
    )
    regex = "".join("(?:[^/]+/)*" if part == "[^/]*[^/]*" else f"{part}/" for part in parts)
    return Rule(pattern, re.compile(regex), MappingProxyType(values))


def _parse_word(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals and name in _RULE_WORDS:
        return _RULE_WORDS[name]
    if name not in _RULE_KEYS:
        valid = ("off", *_RULE_KEYS)
        raise InputError(f"{name!r} is not one of {', '.join(valid)}.{did_you_mean(name, valid)}")
    option = next(one for one in OPTIONS if one.field == name)
    if option.kind == "bool":
        raise InputError(f"{word!r} takes no value: write {name}")
    if not text:
        raise InputError(f"{name!r} needs a value: write {name}={option.metavar}")
    value = check_value(option, text, f"{name}={text}")
    return name, split_words(value) if name == "resources" else value
