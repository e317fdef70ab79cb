"""Report the progress of a repetition between iterations, at a limited rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner.samples import Samples

State: TypeAlias = Literal["measuring", "naming"]
# Minimum number of seconds between two reports while measuring, so that the reports cost almost nothing.
EVERY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress report.

    Attributes:
        state: The purpose of the iterations: to measure, or to find the cause of a red verdict.
        iteration: The number of the last iteration after which the counters were read.
        most: The maximum number of iterations.
        levels: The last reading of each counter, by resource.
        verdicts: The outcomes decided so far, by resource.
    """

    state: State
    iteration: int
    most: int
    levels: Mapping[str, int]
    verdicts: Mapping[str, str]


Follower: TypeAlias = Callable[[Progress], None]
# Functions that each repetition reports to; `follow` adds one.
FOLLOWERS: Final[list[Follower]] = []


def follow(follower: Follower) -> None:
    """Call this function with the progress of each repetition that begins in this process from now on."""
    FOLLOWERS.append(follower)


class ProgressReports:
    """The progress reports of one repetition, for the followers that were registered when it began."""

    def __init__(self, most: int) -> None:
        """Store the followers that are registered now.

        Args:
            most: The maximum number of iterations.
        """
        self._followers = tuple(FOLLOWERS)
        self._most = most
        self._last = float("-inf")

    def report(self, samples: Samples, verdicts: Mapping[str, Verdict], state: State = "measuring") -> bool:
        """Report the progress, if a report is due.

        Returns:
            Whether anything was reported. If measuring continues, the caller must then subtract the memory that the
            report allocated (`Sampler.subtract_own_work`).
        """
        now = clock.monotonic()
        if not self._followers or (now - self._last < EVERY and state == "measuring"):
            return False
        self._last = now
        outcomes = {name: verdict.outcome for name, verdict in verdicts.items()}
        progress = Progress(state, samples.n, self._most, samples.levels(), outcomes)
        for follower in self._followers:
            follower(progress)
        return True
