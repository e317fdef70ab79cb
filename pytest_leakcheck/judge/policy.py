"""Hold what decides whether an outcome is red: the settings of the session, and what is known of its leaks."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_leakcheck.baseline.matching import KnownLeaks
from pytest_leakcheck.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Policy:
    """What decides whether an outcome is red.

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
