"""For scripts and notebooks: repeat a function and judge it, without a test suite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from pytest_leakcheck.config.budget import Level, read_levels
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.report.finding_text import block
from pytest_leakcheck.report.glyphs import glyphs_for
from pytest_leakcheck.runner.repetition import Repetition


@dataclass(frozen=True, slots=True)
class Measurement:
    """What `measure` found; its text is the report."""

    finding: Finding

    def check(self) -> None:
        """Pass, or say why not.

        Raises:
            LeakError: The verdict is red, or a level was given for something that this machine cannot read.
        """
        if self.finding.colour == "red":
            from pytest_leakcheck.plugin.errors import LeakError

            raise LeakError(str(self))

    def __str__(self) -> str:
        return block(self.finding, glyphs_for(getattr(sys.stdout, "encoding", None)))


def measure(
    function: Callable[[], object],
    *,
    iterations: int = 0,
    warmup: int = 3,
    max_time: float = 30.0,
    **levels: Level,
) -> Measurement:
    """Call a function again and again, and judge what it retains: ``measure(work, fd=0, heap="1 MiB").check()``.

    Args:
        function: One iteration; what it returns is dropped.
        iterations: Judged calls; 0 stops when the verdict is known.
        warmup: Calls before the start.
        max_time: Seconds for all calls.
        levels: How far each resource may stand above the start; None bounds growth only. Left out, growth of all that
            is judged by default.

    Returns:
        The measurement.

    Raises:
        BudgetError: A level that cannot be read.
        EffortError: An effort out of range.
        BaseException: What the function raises, unless that is a leak running out of descriptors or memory.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    effort = Effort(iterations, warmup, max_time)
    repetition = Repetition(Plan(name, read_levels(levels), effort))
    repetition.begin()
    try:
        function()
        while repetition.iteration_done():
            function()
    except BaseException as error:
        result = repetition.end("failed", error)
        if not any(verdict.outcome == "leak" for verdict in result.verdicts):
            raise
    else:
        result = repetition.end()
    # A script cannot be skipped, and must not pass on what was not read.
    return Measurement(conclude(result, ("leak", "over_budget", "unclosed"), "fail"))
