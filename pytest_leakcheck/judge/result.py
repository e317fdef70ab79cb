"""Hold the result of a repetition: plan, readings, verdicts and cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from pytest_leakcheck.model.culprit import Culprit, Held


@dataclass(frozen=True, slots=True)
class Result:
    """What the repetition of one test found: one verdict per judged resource, in order; none follows a red one.

    `held` are the survivors by resource (for ``unclosed``: what the collector released), if they can be identified.
    """

    plan: Plan
    recording: Recording
    verdicts: tuple[Verdict, ...]
    held: Mapping[str, tuple[Held, ...]]
    culprit: Culprit | None = None
