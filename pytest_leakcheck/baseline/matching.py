"""Match a finding with the known leaks: is its cause one of them, and does it grow as it did?"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak
from pytest_leakcheck.model.culprit import creating_line, is_of_tests, short_file
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource

# A known leak has grown if its rate is more than this multiple of the recorded one, and by at least one unit.
GROWN_RATIO: Final = 1.5

State: TypeAlias = Literal["new", "known", "grown", "expired"]


@dataclass(frozen=True, slots=True)
class Match:
    """What the file says of a cause: ``grown`` is faster than recorded, ``expired`` an entry that counts no more."""

    state: State
    leak: KnownLeak | None = None


class KnownLeaks:
    """The known leaks that count on this machine today."""

    def __init__(self, baseline: Baseline, today: str, *, updating: bool = False) -> None:
        """Take the entries and the date, as ``YYYY-MM-DD``; a session that is updating takes each cause for known."""
        self.baseline = baseline
        self.updating = updating
        self._today = today
        self._counting = [leak for leak in baseline.known if counts_here(leak)]

    def match(self, finding: Finding) -> Match:
        """Find the entry of the cause of a finding's worst verdict.

        These are compared, in this order: the finding id; the owner, or the site if either has no owner; and the test,
        if the finding has no owner, and at most a line of the test. A run on a busy machine may find that little.
        """
        leak = next(iter(self._candidates(finding)), None)
        if leak is None:
            return Match("new")
        if leak.expires and leak.expires <= self._today:
            return Match("expired", leak)
        return Match("grown" if has_grown(finding.verdict.slope, leak) else "known", leak)

    def _candidates(self, finding: Finding) -> list[KnownLeak]:
        same = [leak for leak in self._counting if leak.resource == finding.verdict.resource]
        owner, site = owner_of(finding), site_of(finding)
        return (
            [leak for leak in same if finding.fingerprint in leak.names]
            or [leak for leak in same if owner and owner in leak.names]
            or [leak for leak in same if site and site in leak.names and not (owner and leak.owner)]
            or [leak for leak in same if not owner and _is_of_test(finding) and leak.lists(finding.test)]
        )


def has_grown(rate: float, leak: KnownLeak) -> bool:
    """Return whether a rate is more than the recorded one, by the tolerance of `GROWN_RATIO`."""
    return rate > GROWN_RATIO * leak.rate and rate - leak.rate >= find_resource(leak.resource).grain


def counts_here(leak: KnownLeak) -> bool:
    """Return whether an entry counts for this version of Python and on this platform."""
    if leak.only.get("platform", sys.platform) != sys.platform:
        return False
    if "python" not in leak.only:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(leak.only["python"]).contains(platform.python_version(), prereleases=True)


def owner_of(finding: Finding) -> str:
    """Return the name of the owner; empty if it is unknown."""
    return finding.owner.name if finding.owner is not None else ""


def site_of(finding: Finding) -> str:
    """Return the line that creates the resource, as file and function; empty if it is unknown, or a line of any test."""
    line = creating_line(finding.culprit)
    return f"{short_file(line.file)}:{line.function}" if line is not None else ""


def _is_of_test(finding: Finding) -> bool:
    line = creating_line(finding.culprit)
    return line is None or is_of_tests(line.file)
