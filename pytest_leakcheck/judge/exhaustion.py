"""What failed since something ran out: which resource that was, and the verdict on the growth up to there. Pure."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import Exhausts, exhausting, find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.model.verdict import Verdict

_BY_NUMBER: Final[dict[int, Exhausts]] = {
    errno.EMFILE: "descriptors",
    errno.ENFILE: "descriptors",
    errno.ENOMEM: "memory",
}
# Of what a library or a worker process says in words of its own; the first that fits. Devices first: they say memory too.
_BY_WORDS: Final[tuple[tuple[re.Pattern[str], Exhausts], ...]] = (
    (re.compile(r"out of memory|OutOfMemoryError|RESOURCE_EXHAUSTED|ResourceExhausted"), "device"),
    # What torch says where descriptors for shared tensors ran out between processes.
    (re.compile(r"Too many open files|\[Errno 2[34]\]|received 0 items of ancdata"), "descriptors"),
    (re.compile(r"MemoryError|Cannot allocate memory|\[Errno 12\]|not enough memory"), "memory"),
    (re.compile(r"can't start new thread"), "threads"),
)
# TensorFlow's, which is no RuntimeError as those of torch and JAX are.
_OF_TENSORFLOW: Final = "ResourceExhaustedError"


def exhausted_by(error: BaseException) -> tuple[str, ...]:
    """The resources that may have run out, judged by what failed or by what caused that; empty where none did.

    Where a library says it in words, as in what a worker process failed with, those are read.
    """
    for cause in causes(error):
        if isinstance(cause, MemoryError):
            return exhausting("memory")
        if isinstance(cause, OSError) and cause.errno in _BY_NUMBER:
            return exhausting(_BY_NUMBER[cause.errno])
        if isinstance(cause, (OSError, RuntimeError)) or type(cause).__name__ == _OF_TENSORFLOW:
            said = f"{type(cause).__name__}: {cause}"
            for pattern, what in _BY_WORDS:
                if pattern.search(said):
                    return exhausting(what)
    return ()


def ran_out(series: Series, budget: Budget, error: str) -> Verdict | None:
    """Judge a series that ended because the process ran out: a leak if it grew up to there.

    Args:
        series: The readings before the failure.
        budget: What is allowed.
        error: What the failing iteration said.

    Returns:
        A verdict, or None where this resource did not rise in most iterations, so that it is not the cause.
    """
    x = series.readings
    rises = sum(1 for i in range(1, len(x)) if x[i] > x[i - 1])
    if len(x) < 2 or 2 * rises < series.iterations or x[-1] <= x[0]:
        return None
    slope = (x[-1] - x[0]) / series.iterations
    rate = format_rate(slope, find_resource(series.resource).unit)
    return Verdict(
        series.resource,
        "leak",
        slope,
        x[-1] - x[0],
        series.iterations,
        reason=f"{rate} over {series.iterations} iterations, then {error}",
        explicit=budget.explicit,
        kind=series.kind,
    )


def device_lost(series: Series, budget: Budget, error: str) -> Verdict:
    """Judge the memory of a device that answers no more.

    Args:
        series: The readings; the last ones repeat what it answered last.
        budget: What is allowed.
        error: What it failed with.
    """
    return Verdict(
        series.resource,
        "inconclusive",
        level=series.readings[-1] - series.readings[0],
        iterations=series.iterations,
        reason=f"the device was lost by iteration {series.iterations}: {error}",
        advice="see what the driver says of it, and run the test again",
        explicit=budget.explicit,
        kind=series.kind,
    )


def first_line(error: BaseException) -> str:
    """What failed, in a line. Of what a worker process failed with, the last line of its own traceback says it."""
    lines = str(error).strip().splitlines() or [""]
    said = lines[-1] if "Original Traceback" in str(error) else lines[0]
    name = type(error).__name__
    return said if said.startswith(f"{name}: ") else f"{name}: {said}".removesuffix(": ")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it or was being handled, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
