"""Identify the resource that ran out from the error, and judge its growth until then.

This module reads no counter and no clock.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import Exhausts, exhausting, find_resource
from pytest_leakcheck.model.units import format_amount, format_rate

_EXHAUSTED_BY_ERRNO: Final[dict[int, Exhausts]] = {
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
    errno.ENOMEM: "memory",
}
# Patterns in the messages of libraries and worker processes; the first match counts. Devices come
# first, because their messages mention memory, too.
_EXHAUSTED_BY_MESSAGE: Final[tuple[tuple[re.Pattern[str], Exhausts], ...]] = (
    (re.compile(r"out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|ResourceExhausted"), "device"),
    # The last alternative is torch's message when it runs out of descriptors for tensors that
    # processes share.
    (re.compile(r"Too many open files|\[Errno 2[34]\]|received 0 items of ancdata"), "descriptors"),
    (re.compile(r"MemoryError|Cannot allocate memory|\[Errno 12\]|not enough memory"), "memory"),
    (re.compile(r"can't start new thread"), "threads"),
)
# The class of TensorFlow's error. It is not a RuntimeError, unlike those of torch and JAX.
_TENSORFLOW_ERROR: Final = "ResourceExhaustedError"


def exhausted_by(error: BaseException) -> tuple[str, ...]:
    """List what may have run out, by an error and its causes.

    Libraries and workers may say it only in the message.
    """
    for cause in causes(error):
        if isinstance(cause, MemoryError):
            return exhausting("memory")
        if isinstance(cause, OSError) and cause.errno in _EXHAUSTED_BY_ERRNO:
            return exhausting(_EXHAUSTED_BY_ERRNO[cause.errno])
        if isinstance(cause, (OSError, RuntimeError)) or type(cause).__name__ == _TENSORFLOW_ERROR:
            said = f"{type(cause).__name__}: {cause}"
            for pattern, what in _EXHAUSTED_BY_MESSAGE:
                if pattern.search(said):
                    return exhausting(what)
    return ()


def explain(
    error: BaseException,
    budgets: Iterable[Budget],
    series: Iterable[Series],
    ceiling: Mapping[str, int],
) -> Verdict | None:
    """Return the red verdict on the first resource that ran out; None if that is not the error.

    The resource leaks if it grew until then; else the test itself needs more of it than its ceiling
    allows. `ceiling` are the limits in force, by resource.
    """
    gone, said = exhausted_by(error), first_line(error)
    read = {one.resource: one for one in series if one.resource in gone}
    for budget in budgets:
        if budget.resource in read and (found := ran_out(read[budget.resource], budget, said)):
            return found
    names = [name for name in ceiling if name in gone]
    return over_ceiling(names[0], ceiling[names[0]], read.get(names[0]), said) if names else None


def ran_out(series: Series, budget: Budget, error: str) -> Verdict | None:
    """Judge a series that ended as a resource ran out: a leak if the series grew until then.

    None if the resource is not the cause: it rose in under half of the iterations, or did not end
    above its start.
    """
    x = series.readings
    if len(x) < 2 or 2 * len(series.rises) < series.iterations or x[-1] <= x[0]:
        return None
    slope = (x[-1] - x[0]) / series.iterations
    reason = f"{format_rate(slope, series.traits.unit)} over {series.iterations} iterations, then {error}"
    return _judge_so_far(series, budget, "leak", reason, slope=slope)


def over_ceiling(name: str, size: int, series: Series | None, error: str) -> Verdict:
    """Judge a resource that ran out under its ceiling without growth.

    Before the start level, `series` is empty or None.
    """
    resource = find_resource(name)
    limit = (
        f"{size:,} {resource.plural}"
        if resource.unit == "count"
        else format_amount(size, resource.unit)
    )
    return Verdict(
        name,
        "over_budget",
        # The level above the start at which the test must have failed.
        level=size - (series.readings[0] if series is not None and series.readings else 0),
        iterations=max(0, series.iterations) if series is not None else 0,
        reason=f"failed under the ceiling of {limit}, before growth was detected: {error}",
        advice="the test itself needs more than that: raise the ceiling",
        kind=series.kind if series is not None else "measured",
    )


def device_lost(series: Series, budget: Budget, error: str) -> Verdict:
    """Judge the memory of a device that is lost; its readings repeat the last successful one."""
    reason = f"the device was lost by iteration {series.iterations}: {error}"
    advice = "check the driver's log, and run the test again"
    return _judge_so_far(series, budget, "inconclusive", reason, advice=advice)


def _judge_so_far(
    series: Series, budget: Budget, outcome: Outcome, reason: str, **more: Any
) -> Verdict:
    return Verdict(
        series.resource,
        outcome,
        level=series.readings[-1] - series.readings[0],
        iterations=series.iterations,
        reason=reason,
        explicit=budget.explicit,
        kind=series.kind,
        **more,
    )


def first_line(error: BaseException) -> str:
    """Return an error in one line; for a worker's error, the last line of its own traceback."""
    lines = str(error).strip().splitlines() or [""]
    said = lines[-1] if "Original Traceback" in str(error) else lines[0]
    name = type(error).__name__
    return said if said.startswith(f"{name}: ") else f"{name}: {said}".removesuffix(": ")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause or else the error handled when it was raised, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
