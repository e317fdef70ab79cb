"""Hold what a finding is made of: the result of a repetition, and what decides whether an outcome is red."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from pytest_leakcheck.baseline.known_leaks import KnownLeaks
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


@dataclass(frozen=True, slots=True)
class Policy:
    """What decides whether an outcome is red: the settings of the session, and what is known of its leaks.

    Attributes:
        fail_on: Outcomes that are red; ``inconclusive`` only under an explicit budget. If empty, nothing is red.
        missing: With ``"fail"``, a resource that has an explicit budget but cannot be read is red.
        blame: Packages. A ``leak``, ``over_budget`` or ``unclosed`` is red only if a suspect line is in one of them. If
            empty, the line may be anywhere.
        library: The lines of ``leakcheck_library``; None if known leaks of installed packages are red as well.
    """

    fail_on: tuple[str, ...]
    missing: str = "skip"
    blame: tuple[str, ...] = ()
    known: KnownLeaks | None = None
    library: tuple[str, ...] | None = None

    @classmethod
    def of(cls, settings: Settings, known: KnownLeaks | None) -> Policy:
        library = settings.library if settings.library_leaks else None
        return cls(settings.fail_on, settings.missing, settings.blame, known, library)
