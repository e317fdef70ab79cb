"""Marks in, budgets and effort out, or an error that names the mark and the valid form. Knows nothing of pytest's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from pytest_leakcheck.config.budget import KEYWORDS, Budget, BudgetError, parse_budget
from pytest_leakcheck.config.ceiling import Ceiling, CeilingError, read_ceiling, read_option
from pytest_leakcheck.config.plan import Effort, EffortError, Plan, plan_test
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.resources import RESOURCES

# The mark of a test that is run over an axis; `config.scaling_marker` reads it.
SCALING: Final = "scaling_budget"
# That of one which runs under limits.
CEILING: Final = "leakcheck_ceiling"
_BUDGET: Final = "_budget"
_EXAMPLES: Final = {"count": "0", "bytes": '"1 MiB"'}
_NUMBERS: Final = ("iterations", "warmup", "max_time")
_EFFORT: Final = (*_NUMBERS, "isolate", "resources")


class MarkError(ValueError):
    """A mark that cannot be read: ``mark(arguments): what is wrong. Valid form.``"""


class Mark(Protocol):
    """What is read of a pytest mark."""

    @property
    def name(self) -> str: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def is_budget(mark: str) -> bool:
    """Whether a mark of this name bounds a resource."""
    return mark.endswith(_BUDGET) and mark.removesuffix(_BUDGET) in RESOURCES


def valid_form(mark: str) -> str:
    """The signature of a budget mark, with an example level."""
    example = _EXAMPLES[RESOURCES[mark.removesuffix(_BUDGET)].unit]
    peak = f"peak={example}, " if RESOURCES[mark.removesuffix(_BUDGET)].peak else ""
    return f"{mark}({example}, *, per_iteration=0, {peak}over=N, unclosed='fail', reason='')"


def read_marks(test: str, marks: Iterable[Mark], settings: Settings, *, loops: bool = False) -> Plan | None:
    """The plan of one test.

    Args:
        test: The node id.
        marks: The test's marks, closest first; the closest of a name wins.
        settings: Gives the effort where no mark does; the command line beats the mark.
        loops: It takes the fixture, and may judge loops of its own; a ceiling alone does not repeat it then.

    Returns:
        The plan, or None when no mark asks for one.

    Raises:
        MarkError: A mark cannot be read.
    """
    budgets: dict[str, Budget] = {}
    leakcheck: Mark | None = None
    marks = tuple(marks)
    for mark in marks:
        if is_budget(mark.name) and mark.name not in budgets:
            budgets[mark.name] = _budget(mark)
        elif mark.name == "leakcheck" and leakcheck is None:
            leakcheck = mark
    ceiling = ceiling_of(marks, settings)
    alone = not loops and any(mark.name == CEILING for mark in marks)
    if leakcheck is None and not budgets and not alone:
        return None
    effort = effort_of(settings)
    everything: tuple[str, ...] | None = None
    if leakcheck is not None:
        effort, everything = _leakcheck(leakcheck, settings)
    return plan_test(test, tuple(budgets.values()), effort, everything, ceiling)


def ceiling_of(marks: Iterable[Mark], settings: Settings) -> Ceiling:
    """The limits of a test: those of the command line, or of the closest mark, or of the configuration.

    Raises:
        MarkError: The mark cannot be read.
    """
    mark = next((one for one in marks if one.name == CEILING), None)
    given = read_option(settings.ceiling)
    if mark is None:
        return given
    try:
        marked = read_ceiling(*mark.args, **mark.kwargs)
    except CeilingError as error:
        valid = f"{CEILING}(fd=256, rss='1 GiB', vram='2 GiB', by='rlimit')"
        raise MarkError(f"{spelled(mark)}: {error}. Valid: {valid}") from None
    return given if given.sizes and settings.from_command_line("ceiling") else marked


def effort_of(settings: Settings) -> Effort:
    """The effort where no mark says otherwise."""
    return Effort(settings.iterations, settings.warmup, settings.max_time, settings.run, settings.isolate)


def _budget(mark: Mark) -> Budget:
    try:
        return parse_budget(mark.name.removesuffix(_BUDGET), mark.args, dict(mark.kwargs))
    except BudgetError as error:
        unknown = next((name for name in mark.kwargs if name not in KEYWORDS), "")
        raise MarkError(
            f"{spelled(mark)}: {error}.{did_you_mean(unknown, KEYWORDS)} Valid: {valid_form(mark.name)}"
        ) from None


def _leakcheck(mark: Mark, settings: Settings) -> tuple[Effort, tuple[str, ...]]:
    def fail(what: str) -> MarkError:
        return MarkError(f"{spelled(mark)}: {what} Valid: leakcheck({', '.join(f'{name}=' for name in _EFFORT)})")

    if mark.args:
        raise fail("takes keywords only.")
    unknown = [name for name in mark.kwargs if name not in _EFFORT]
    if unknown:
        raise fail(f"has no keyword {unknown[0]!r}.{did_you_mean(unknown[0], _EFFORT)}")
    resources = mark.kwargs.get("resources", ())
    if not isinstance(resources, (list, tuple, set, frozenset)) or not set(map(str, resources)) <= RESOURCES.keys():
        raise fail(f"resources={resources!r} is not a list of {', '.join(RESOURCES)}.")
    given = {name: mark.kwargs[name] for name in (*_NUMBERS, "isolate") if name in mark.kwargs}
    # The command line beats the mark.
    effort = {name: value for name, value in given.items() if not settings.from_command_line(name)}
    if given.get("iterations") == 0:
        raise fail("iterations=0 is not a number of iterations of at least 1.")
    try:
        # Checked also where the command line has its way: a mark is wrong in any case.
        Effort(**{"iterations": 1, **given})
        return replace(effort_of(settings), **effort), tuple(resources)
    except EffortError as error:
        raise fail(f"{error}.") from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence with the known word that is nearest, or nothing."""
    # Imported here: only a wrong mark needs it, and plain runs must stay light.
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), 1) if word else []
    return f" Did you mean {close[0]!r}?" if close else ""


def spelled(mark: Mark) -> str:
    """A mark as it was written."""
    words = [*map(repr, mark.args), *(f"{key}={value!r}" for key, value in mark.kwargs.items())]
    return f"{mark.name}({', '.join(words)})".replace("'", '"')
