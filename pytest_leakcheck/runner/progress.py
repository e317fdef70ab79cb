"""Report the progress of a repetition between iterations, at a limited rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner.readings import Samples

State: TypeAlias = Literal["warming up", "measuring", "naming"]
# A repetition that ends before this many seconds reports nothing.
AFTER: Final = 1.0
# Minimum number of seconds between two reports while measuring, so that the reports cost almost
# nothing.
EVERY: Final = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress report.

    Attributes:
        state: ``naming`` is the search for the cause of a red verdict.
        iteration: The number of iterations so far in this state, of `most`; while naming, those
            that were measured.
        growth: The growth per iteration so far of each judged counter that was read, in its unit,
            by resource.
    """

    state: State
    iteration: int
    most: int
    growth: Mapping[str, float]
    verdicts: Mapping[str, str]


Follower: TypeAlias = Callable[[Progress], None]
# Functions that each repetition reports to; `follow` adds one.
FOLLOWERS: Final[list[Follower]] = []


def follow(follower: Follower) -> Callable[[], None]:
    """Report later repetitions of this process to `follower`; return a function that ends this."""
    FOLLOWERS.append(follower)
    return lambda: FOLLOWERS.remove(follower)


class ProgressReports:
    """The progress reports of one repetition, for the followers registered when it began."""

    def __init__(self, most: int) -> None:
        self._followers = tuple(FOLLOWERS)
        self._most = most
        self._first = self._due = clock.monotonic() + AFTER

    def report_warm_up(self, iterations: int, most: int) -> None:
        if self._is_due():
            self._send(Progress("warming up", iterations, most, {}, {}))

    def report(
        self,
        samples: Samples,
        judged: Iterable[Budget],
        verdicts: Mapping[str, Verdict],
        state: State = "measuring",
    ) -> bool:
        """Report the progress, if a report is due, and return whether it was.

        If measuring continues, the caller must then subtract the memory of the report
        (`Sampler.subtract_own_work`).
        """
        if not self._is_due(at_once=state == "naming"):
            return False
        growth = samples.growth([budget.resource for budget in judged])
        outcomes = {name: verdict.outcome for name, verdict in verdicts.items()}
        self._send(Progress(state, samples.n, self._most, growth, outcomes))
        return True

    def _is_due(self, *, at_once: bool = False) -> bool:
        return bool(self._followers) and clock.monotonic() >= (
            self._first if at_once else self._due
        )

    def _send(self, progress: Progress) -> None:
        self._due = clock.monotonic() + EVERY
        for follower in self._followers:
            follower(progress)
