"""How far a repetition is, for whoever follows it while it runs: told between iterations, and not too often."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.runner.samples import Rows

State: TypeAlias = Literal["measuring", "naming"]
# Seconds between two words, so that following costs next to nothing.
EVERY: Final = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """One word of it.

    Attributes:
        state: What the iterations are for: to measure, or to name what was found.
        iteration: The last one that was read.
        most: There will be no more than so many.
        levels: What the counters stand at, by resource.
        verdicts: What was decided so far, by resource.
    """

    state: State
    iteration: int
    most: int
    levels: Mapping[str, int]
    verdicts: Mapping[str, str]


Follower: TypeAlias = Callable[[Progress], None]
_followers: Final[list[Follower]] = []


def follow(follower: Follower) -> None:
    """From now on each repetition that begins in this process tells this function how far it is."""
    _followers.append(follower)


class Telling:
    """What one repetition tells those who followed when it began."""

    def __init__(self, most: int) -> None:
        """Args: most: Iterations that it may take."""
        self._followers = tuple(_followers)
        self._most = most
        self._last = float("-inf")

    def tell(self, rows: Rows, verdicts: Mapping[str, Verdict], state: State = "measuring") -> bool:
        """Tell it, where it is time to. Returns whether anything was told: what that took is the harness's own work."""
        now = time.perf_counter()
        if not self._followers or (now - self._last < EVERY and state == "measuring"):
            return False
        self._last = now
        outcomes = {name: verdict.outcome for name, verdict in verdicts.items()}
        progress = Progress(state, rows.n, self._most, rows.levels(), outcomes)
        for follower in self._followers:
            follower(progress)
        return True
