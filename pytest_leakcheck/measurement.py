"""Repeat a function and judge what it retains, for scripts and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_leakcheck.config.budget import Levels, read_levels
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.config.settings import MAX_TIME, MIN_TIME, WARMUP
from pytest_leakcheck.judge.conclude_finding import Policy, conclude
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.report.finding_text import block, headline
from pytest_leakcheck.report.glyphs import printable, shown_in
from pytest_leakcheck.runner.repetition import Repetition

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True, repr=False)
class Measurement:
    """The result of `measure`; converted to a string, it is the text of the report.

    A notebook shows it as a card of the HTML page.
    """

    finding: Finding

    def check(self) -> None:
        """Raise `LeakError` if the function leaks or exceeds a level.

        The error is also raised if a needed resource cannot be read here.
        """
        if self.finding.colour == "red":
            from pytest_leakcheck.plugin.inert import LeakError

            raise LeakError(str(self))

    def __str__(self) -> str:
        return shown_in(block(self.finding), getattr(sys.stdout, "encoding", None))

    def __repr__(self) -> str:
        return printable(f"<Measurement of {self.finding.test}: {headline(self.finding)}>")

    def _repr_html_(self) -> str:
        from html import escape

        from pytest_leakcheck.report.html.findings_page import page_of_finding
        from pytest_leakcheck.report.html.page import render

        # In a frame, because the page has a style of its own.
        page = escape(render(page_of_finding(self.finding)))
        return f'<iframe srcdoc="{page}" sandbox style="width: 100%; height: 40em; border: 0"></iframe>'


def measure(
    function: Callable[[], object],
    *,
    iterations: int = 0,
    warmup: int = WARMUP,
    max_time: float = MAX_TIME,
    min_time: float = MIN_TIME,
    **levels: Unpack[Levels],
) -> Measurement:
    """Call a function repeatedly and judge what it retains.

    For example, ``measure(work, fd=0, heap="1 MiB").check()`` raises `LeakError` if ``work`` leaks
    or exceeds these levels.

    Args:
        function: Performs one iteration; its return value is dropped.
        iterations: Number of judged calls, unless a red verdict or `max_time` ends the measurement
            earlier; 0 stops as soon as the verdict is known.
        warmup: Number of calls before the start level of each resource is read, at least 1.
        max_time: Time limit for all calls together, in seconds; a call that has begun is not cut
            short.
        min_time: Seconds that must pass before growth counts as a leak, and before an undecided
            measurement of cheap calls ends; used only if `iterations` is 0.
        levels: How far each resource may be above its start level; None limits only its growth.
            Without levels, the growth of all resources that are judged by default is judged.

    Raises:
        InputError: A resource is unknown, its level cannot be read, or another number is out of
            range.
        BaseException: Any exception that `function` raises, unless the calls until then show a
            leak, such as growth until descriptors or memory ran out.
    """
    name = getattr(function, "__qualname__", type(function).__name__)
    effort = Effort(iterations, warmup, max_time, min_time=min_time, in_script=True)
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
    # "fail": a script cannot be skipped, and it must not pass if a resource could not be read.
    return Measurement(conclude(result, Policy(("leak", "over_budget", "unclosed"), "fail")))
