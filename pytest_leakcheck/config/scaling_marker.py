"""Parse the mark ``scaling_budget`` to a `Sweep`: the sizes of an argument of the test, and bounds on the peaks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, cast, get_args

from pytest_leakcheck.config.bounds import Bound, parse_bound
from pytest_leakcheck.config.budget import did_you_mean
from pytest_leakcheck.config.markers import SCALING, Mark, invalid_mark, is_budget
from pytest_leakcheck.model import InputError, invalid_at
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES, find_resource
from pytest_leakcheck.model.scaling_points import ENGINES, Engine, Figure

VALID: Final = 'scaling_budget("shards", [8, 16, 32, 64, 128, 256], *, engine=None, reason="", rss="O(1)")'
_FIGURE_NAMES: Final = get_args(Figure)
_FIXTURE_NAME: Final = "leakcheck"

# The fewest sizes to which a law can be fitted.
FEWEST_SIZES: Final = 3
# The largest relative deviation of a ratio of successive sizes from the mean ratio.
_RATIO_TOLERANCE: Final = 0.1
# The smallest valid mean ratio of successive sizes.
_MIN_RATIO: Final = 1.5
# The largest valid size. Whole numbers up to this one are exact as floats.
_MAX_SIZE: Final = 2**53


@dataclass(frozen=True, slots=True)
class Aim:
    """The bound on one figure of one resource (a key of `RESOURCES`, or ``gauge:<name>``).

    Ranks are the threads or processes that run the test together. ``total`` is the sum of the peaks of all ranks,
    ``per_rank`` the highest peak of one rank, and ``at_least`` the sum with a lower bound.
    """

    resource: str
    figure: Figure
    bound: Bound

    def __str__(self) -> str:
        # The sum needs no name, because a bound that names no figure is a bound on the sum.
        return str(self.bound) if self.figure == "total" else f"{self.figure.replace('_', ' ')} {self.bound}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """One test that is run at several sizes, in ascending order and of about the same successive ratio.

    The `engine` starts a world, a group with as many ranks as the size; empty if the test starts its own or needs none.
    """

    axis: str
    sizes: tuple[int, ...]
    aims: tuple[Aim, ...]
    engine: Engine = ""
    reason: str = ""

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(aim.resource for aim in self.aims))


def read_sweep(marks: Iterable[Mark], arguments: Collection[str]) -> Sweep:
    """Parse the first ``scaling_budget`` among the marks of a test, which come closest first, or raise `InputError`."""
    marks = tuple(marks)
    mark = next(one for one in marks if one.name == SCALING)
    repeating = next((one.name for one in marks if one.name == "leakcheck" or is_budget(one.name)), "")
    with invalid_mark(mark, VALID):
        return _parse_sweep(mark, arguments, repeating)


def _parse_sweep(mark: Mark, arguments: Collection[str], repeating: str) -> Sweep:
    if repeating:
        raise InputError(f"is combined with {repeating}, which repeats one size: split it into two tests")
    if len(mark.args) != 2:
        raise InputError("takes the name of an axis and a list of sizes")
    axis, given = mark.args
    if not isinstance(axis, str) or not axis.isidentifier():
        raise InputError(f"{axis!r} is not a valid argument name")
    if axis not in arguments:
        raise InputError(f"the test takes no argument {axis!r}: write def test_it({axis})")
    sizes = check_axis(given)
    options = dict(mark.kwargs)
    engine, reason = options.pop("engine", None), options.pop("reason", "")
    if engine not in (None, *ENGINES):
        raise InputError(f"engine={engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if not isinstance(reason, str):
        raise InputError(f"reason={reason!r} is not a string")
    if not options:
        raise InputError("names no resource")
    gauges = _FIXTURE_NAME in arguments
    aims = [
        aim for name, value in options.items() for aim in _parse_aims(name, value, axis, engine or "", gauges=gauges)
    ]
    return Sweep(axis, sizes, tuple(aims), cast("Engine", engine or ""), reason)


def _parse_aims(name: str, value: Any, axis: str, engine: str, *, gauges: bool) -> list[Aim]:
    with invalid_at(f"{name}={value!r}"):
        resource = _find_measurable(name, gauges=gauges)
        figures: Mapping[str, Any] = value if isinstance(value, dict) else {"total": value}
        _check_figures(resource, figures, engine)
        unit = find_resource(resource).unit
        return [
            Aim(resource, cast("Figure", figure), parse_bound(text, axis, unit, lower=figure == "at_least"))
            for figure, text in figures.items()
        ]


def _check_figures(resource: str, figures: Mapping[str, Any], engine: str) -> None:
    unknown = [figure for figure in figures if figure not in _FIGURE_NAMES]
    if unknown or not figures:
        raise InputError(f"{[*figures]!r} is not valid: write one or more of {', '.join(map(repr, _FIGURE_NAMES))}")
    if "per_rank" in figures and not engine:
        raise InputError("'per_rank' needs ranks: set an engine")
    if "per_rank" in figures and engine == "thread" and not resource.startswith(GAUGE_PREFIX):
        raise InputError("'per_rank': threads share their process's memory and descriptors: bound the total instead")


def _find_measurable(name: str, *, gauges: bool) -> str:
    measurable = [resource.name for resource in RESOURCES.values() if resource.peak]
    if name in measurable:
        return name
    if name in RESOURCES:
        raise InputError(f"has no peak that can be measured; valid resources are {', '.join(measurable)}")
    near = did_you_mean(name, measurable)
    if gauges and not near:
        return GAUGE_PREFIX + name
    counter = f"for your own counter, use the fixture: def test_it(leakcheck), leakcheck.gauge({name!r}, read)"
    raise InputError(f"no such resource.{near} Valid resources are {', '.join(measurable)}; {counter}")


def check_axis(sizes: object) -> tuple[int, ...]:
    """Check the sizes of an axis, or raise `InputError`: at least 3 whole numbers that rise by a constant factor.

    The factor is at least 1.5. The ratio of two successive sizes may deviate from the factor by 10 %.
    """
    if not isinstance(sizes, list | tuple):
        wrong = f"the sizes are of type {type(sizes).__name__}, not a list"
    elif any(not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= _MAX_SIZE for size in sizes):
        wrong = "a size is not a whole number from 1 to 2**53"
    else:
        wrong = _describe_wrong(sizes)
    if wrong:
        raise InputError(f"{wrong}: write sizes such as [8, 16, 32, 64]")
    return tuple(cast("Sequence[int]", sizes))


def _describe_wrong(sizes: Sequence[int]) -> str:
    shown = list(sizes) if len(sizes) <= 12 else f"[{', '.join(map(str, sizes[:12]))}, ...]"
    if len(sizes) < FEWEST_SIZES:
        return f"{shown} has {len(sizes)} sizes, at least {FEWEST_SIZES} are needed"
    for before, after in pairwise(sizes):
        if after <= before:
            return f"{shown} has {after} twice" if after == before else f"{shown} falls from {before} to {after}"
    ratio = mean_ratio(sizes)
    if any(abs(after / before / ratio - 1) > _RATIO_TOLERANCE for before, after in pairwise(sizes)):
        ratios = ", ".join(f"{after / before:.3g}" for before, after in pairwise(sizes[:12]))
        return f"{shown} rises by the factors {ratios}, not by a constant factor"
    if ratio < _MIN_RATIO:
        return f"{shown} rises by a factor of {ratio:.3g} only, at least {_MIN_RATIO} is needed"
    return ""


def mean_ratio(sizes: Sequence[int]) -> float:
    """Return the geometric mean of the ratios of successive sizes."""
    return float((sizes[-1] / sizes[0]) ** (1 / (len(sizes) - 1)))
