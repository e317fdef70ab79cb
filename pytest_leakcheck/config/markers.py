"""Parse the marks of a test into its plan, without access to pytest nodes. Errors name the mark and its valid form."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Protocol

from pytest_leakcheck.config.budget import KEYWORDS, Budget, did_you_mean, growth_budgets, parse_budget
from pytest_leakcheck.config.ceiling import Ceiling, read_ceiling, read_option
from pytest_leakcheck.config.plan import Effort, Plan, plan_test
from pytest_leakcheck.config.settings import WARMUP, Settings
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resources import RESOURCES

# The mark of a test that runs at several sizes, which it takes as an argument; `config.scaling_marker` parses the mark.
SCALING: Final = "scaling_budget"
# The mark of a test that runs under resource limits.
CEILING: Final = "leakcheck_ceiling"
_BUDGET_SUFFIX: Final = "_budget"
# A mark that is less similar than this to one of the plugin is taken for the project's own.
_MIN_SIMILARITY: Final = 0.75
# Iterations of warm-up of a test that is screened.
_SCREEN_WARMUP: Final = 2
_LEAKCHECK_KEYWORDS: Final = ("iterations", "warmup", "max_time", "min_time", "isolate", "resources")


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
    example = "0" if resource.unit == "count" else '"1 MiB"'
    peak = f"peak={example}, " if resource.peak else ""
    return f"{mark}({example}, *, per_iteration=0, {peak}over=N, unclosed='fail', reason='')"


def is_opted_out(marks: Iterable[Mark]) -> bool:
    """Return whether the closest mark of the plugin is ``leakcheck(False)``; the marks come closest first."""
    closest = next((one for one in marks if is_budget(one.name) or one.name in ("leakcheck", CEILING, SCALING)), None)
    return closest is not None and _opts_out(closest)


def _opts_out(mark: Mark) -> bool:
    return mark.name == "leakcheck" and len(mark.args) == 1 and mark.args[0] is False


def read_marks(test: str, marks: Iterable[Mark], settings: Settings, *, loops: bool = False) -> Plan | None:
    """Return the plan of one test, or None if no mark requires one; raise `InputError` if a mark is invalid.

    The marks come closest first; if several have the same name, the first is used. A value given on the command line
    overrides the mark. A ``leakcheck(False)`` that is not the closest mark changes nothing. If a test uses the fixture
    ``leakcheck`` (`loops`), which may judge its own loops, ``leakcheck_ceiling`` alone does not repeat it.
    """
    marks = tuple(marks)
    closest = {mark.name: mark for mark in reversed(marks)}
    budgets = tuple(_parse_budget_mark(mark) for name, mark in closest.items() if is_budget(name))
    leakcheck = closest.get("leakcheck")
    if leakcheck is not None and _opts_out(leakcheck):
        with invalid_mark(leakcheck, 'leakcheck(False, reason="...")'):
            if not leakcheck.kwargs.keys() <= {"reason"} or not isinstance(leakcheck.kwargs.get("reason", ""), str):
                raise InputError("has only a reason")
        leakcheck = None
    if is_opted_out(marks):
        return None
    ceiling = ceiling_of(marks, settings)
    alone = not loops and CEILING in closest
    if leakcheck is None and not budgets and not alone:
        return None
    effort = effort_of(settings)
    growth: tuple[Budget, ...] = ()
    if leakcheck is not None:
        effort, named = _parse_leakcheck_mark(leakcheck, settings)
        growth = tuple(map(Budget, named)) or growth_budgets(settings.resources, settings.unclosed)
    return plan_test(test, budgets, effort, growth, ceiling)


def plan_unmarked(test: str, settings: Settings) -> Plan:
    """Return the plan of a test without a mark, under ``--leakcheck-scope=all``.

    A few iterations decide whether any counter rises, after a shorter warm-up than usual, unless the user has set a
    number of iterations, a warm-up or a ceiling.
    """
    growth = growth_budgets(settings.resources, settings.unclosed)
    plan = plan_test(test, (), effort_of(settings), growth, read_option(settings.ceiling))
    if settings.iterations or settings.warmup != WARMUP or plan.ceiling.sizes:
        return plan
    return replace(plan, effort=replace(plan.effort, warmup=_SCREEN_WARMUP), screen=True)


def ceiling_of(marks: Iterable[Mark], settings: Settings) -> Ceiling:
    """Return the limits of a test: from the command line, else from the closest mark, else from the configuration."""
    mark = next((one for one in marks if one.name == CEILING), None)
    given = read_option(settings.ceiling)
    if mark is None:
        return given
    with invalid_mark(mark, f"{CEILING}(fd=256, rss='1 GiB', vram='2 GiB')"):
        marked = read_ceiling(*mark.args, **mark.kwargs)
    return given if given.sizes and settings.from_command_line("ceiling") else marked


def effort_of(settings: Settings) -> Effort:
    """Return the effort of a test without a ``leakcheck`` mark."""
    return Effort(
        settings.iterations, settings.warmup, settings.max_time, settings.run, settings.isolate, settings.min_time
    )


def _parse_budget_mark(mark: Mark) -> Budget:
    with invalid_mark(mark, valid_form(mark.name), KEYWORDS):
        return parse_budget(mark.name.removesuffix(_BUDGET_SUFFIX), mark.args, mark.kwargs)


def _parse_leakcheck_mark(mark: Mark, settings: Settings) -> tuple[Effort, tuple[str, ...]]:
    form = f"leakcheck({', '.join(f'{name}=' for name in _LEAKCHECK_KEYWORDS)})"
    with invalid_mark(mark, form, _LEAKCHECK_KEYWORDS):
        if mark.args:
            raise InputError("takes keyword arguments only, or False to leave the test out")
        given = dict(mark.kwargs)
        if unknown := [name for name in given if name not in _LEAKCHECK_KEYWORDS]:
            raise InputError(f"has no keyword {unknown[0]!r}")
        resources = given.pop("resources", ())
        if not isinstance(resources, (list, tuple, set, frozenset)) or not set(map(str, resources)) <= RESOURCES.keys():
            raise InputError(f"resources={resources!r} is not a list of resources: {', '.join(RESOURCES)}")
        if given.get("iterations") == 0:
            raise InputError("iterations=0 is not a positive whole number")
        # An invalid mark is an error even if the command line overrides its values.
        Effort(**{"iterations": 1, **given})
        effort = {name: value for name, value in given.items() if not settings.from_command_line(name)}
        return replace(effort_of(settings), **effort), tuple(resources)


@contextmanager
def invalid_mark(mark: Mark, form: str, keywords: Collection[str] = ()) -> Iterator[None]:
    """Add to the message of an `InputError` the mark, the valid form, and the keyword similar to an unknown one."""
    try:
        yield
    except InputError as error:
        unknown = next((name for name in mark.kwargs if keywords and name not in keywords), "")
        near = did_you_mean(unknown, keywords)
        raise InputError(f"{spelled(mark)}: {error}.{near} Valid: {form}") from None


def suggest(name: str, known: Sequence[str]) -> str:
    """Return what to write instead of an unknown mark; empty if it is not similar to a known mark of the plugin."""
    from difflib import get_close_matches

    # Of a budget, only the resource is compared: with the suffix, every budget would be similar.
    marks = {one: one for one in known} | {one.removesuffix(_BUDGET_SUFFIX): one for one in known}
    if near := get_close_matches(name.removesuffix(_BUDGET_SUFFIX), marks, 1, _MIN_SIMILARITY):
        return f"Did you mean {marks[near[0]]!r}?"
    valid = ", ".join(one for one in known if one.endswith(_BUDGET_SUFFIX))
    return f"Valid are {valid}." if name.endswith(_BUDGET_SUFFIX) else ""


def spelled(mark: Mark) -> str:
    """Return a mark as source text."""
    words = [*map(repr, mark.args), *(f"{key}={value!r}" for key, value in mark.kwargs.items())]
    return f"{mark.name}({', '.join(words)})".replace("'", '"')
