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
    """What the repetition of one test found.

    Attributes:
        plan: The plan that was carried out.
        recording: All readings.
        verdicts: One per judged resource, in the order of judgment; after a red one, no other resource is judged.
        held: Survivors by resource (for ``unclosed``: what the collector released), if they can be identified.
        culprit: What is known of the cause of a red verdict.
    """

    plan: Plan
    recording: Recording
    verdicts: tuple[Verdict, ...]
    held: Mapping[str, tuple[Held, ...]]
    culprit: Culprit | None = None
