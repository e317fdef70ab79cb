"""A window of owners that was full before the start, and a list that grows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import MutableSequence

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.runner.repetition import Repetition
from pytest_leakcheck.runner.settling import Settling


class Owner:
    def __init__(self) -> None:
        self.itself = self
        self.descriptor = os.open("/dev/null", os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.descriptor)


def outcome(window: MutableSequence[Owner]) -> str:
    repetition = Repetition(Plan("t", (Budget("fd", 0, unclosed="allow"),)))
    repetition.begin()
    window.append(Owner())
    while repetition.iteration_done():
        window.append(Owner())
    return repetition.end().verdicts[0].outcome


Settling.seconds = Settling.seconds_alone = 0.002
print(outcome(deque((Owner() for _ in range(30)), maxlen=30)), outcome([Owner() for _ in range(30)]))
