"""Bring the file of known leaks up to date with what a session has found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final, NamedTuple

from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak
from pytest_leakcheck.baseline.matching import KnownLeaks, counts_here, has_grown, owner_of, site_of
from pytest_leakcheck.model.culprit import own_line
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource

# More tests than this of one file are written as ``file::*``.
_MAX_TESTS_PER_FILE: Final = 20
# A rate is rewritten if it has at least halved, or has grown (`matching.has_grown`).
_FALLEN_RATIO: Final = 0.5
_SIGNIFICANT_DIGITS: Final = 2


@dataclass
class Observed:
    """What a session has found: `leaks` that the file may list, new and known, in the order in which they came.

    For each test that an entry lists, `floors` has the floor of each resource with the verdict ``ok``; `ran` has those
    tests that have run. `whole`: all tests of the suite were selected and have run.
    """

    leaks: list[Finding] = field(default_factory=list)
    floors: dict[str, Mapping[str, float | None]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    whole: bool = False

    def add_floors(self, finding: Finding) -> None:
        """Take the floors of a test that an entry lists. A test that judges several loops is ok if all of them are."""
        floors = {one.resource: one.floor for one in finding.verdicts if one.outcome == "ok"}
        earlier = self.floors.get(finding.test, floors)
        self.floors[finding.test] = {name: floors[name] for name in earlier if name in floors}
        self.ran.add(finding.test)


class Change(NamedTuple):
    """The new content of the file, and how many causes changed in which way."""

    baseline: Baseline
    added: int = 0
    changed: int = 0
    fixed: int = 0
    unchanged: int = 0


def find_fixed(baseline: Baseline, observed: Observed) -> tuple[KnownLeak, ...]:
    """Return the entries whose leak is gone: each test that they list has run, and would have shown it.

    Entries that do not count here say nothing, nor do tests that did not run, were inconclusive, or had a weaker floor.
    """
    return tuple(leak for leak in baseline.known if counts_here(leak) and _is_gone(leak, observed))


def update(baseline: Baseline, observed: Observed, today: str) -> Change:
    """Add what is new, dated ``YYYY-MM-DD``, adjust rates and tests, drop what is fixed; what people wrote stays."""
    known = KnownLeaks(baseline, today)
    written = {leak.finding: leak for leak in baseline.known}
    found: dict[str, KnownLeak] = {}
    rates: dict[str, float] = {}
    # The order in which xdist workers report must not matter. A finding without a line of its own comes last, and joins
    # the entry of its owner.
    for finding in sorted(observed.leaks, key=_by_line_first):
        leak = known.match(finding).leak or _entry_of_owner(finding, found)
        name = leak.finding if leak is not None else finding.fingerprint
        entry = found.get(name) or leak
        found[name] = _entry_for(finding, today) if entry is None else _joined(entry, finding)
        rates[name] = max(rates.get(name, 0.0), finding.verdict.slope)
    fixed = {leak.finding for leak in find_fixed(baseline, observed)} - found.keys()
    found = {name: replace(leak, rate=_rate_of(leak, rates[name])) for name, leak in found.items()}
    entries = {name: leak for name, leak in written.items() if name not in fixed} | found
    entries = {name: replace(leak, tests=_fold(leak.tests)) for name, leak in entries.items()}
    added = len(entries.keys() - written.keys())
    changed = sum(name in written and leak != written[name] for name, leak in entries.items())
    return Change(_sorted(entries.values()), added, changed, len(fixed), len(entries) - added - changed)


def prune(baseline: Baseline, existing: Collection[str]) -> Baseline:
    """Drop the tests that are not among the node ids of the suite, and the entries without a test."""
    files = {test.partition("::")[0] for test in existing}

    def exists(test: str) -> bool:
        file, _, inside = test.partition("::")
        return file in files if inside == "*" else test in existing

    kept = (replace(leak, tests=tuple(filter(exists, leak.tests))) for leak in baseline.known)
    return Baseline(tuple(leak for leak in kept if leak.tests))


def merge(baselines: Iterable[Baseline]) -> Baseline:
    """Join several files, such as those of a matrix of Python versions; the first has the last word."""
    merged: dict[str, KnownLeak] = {}
    for baseline in baselines:
        for leak in baseline.known:
            first = merged.setdefault(leak.finding, leak)
            texts = {name: getattr(first, name) or getattr(leak, name) for name in ("owner", "site", "reason", "link")}
            tests = _fold((*first.tests, *leak.tests))
            rate, seen = max(first.rate, leak.rate), min(first.seen, leak.seen)
            merged[leak.finding] = replace(first, tests=tests, rate=rate, seen=seen, **texts)
    return _sorted(merged.values())


def _sorted(leaks: Iterable[KnownLeak]) -> Baseline:
    return Baseline(tuple(sorted(leaks, key=lambda one: one.finding)))


def _by_line_first(finding: Finding) -> tuple[bool, str, str]:
    return own_line(finding.culprit) is None, finding.test, finding.fingerprint


def _entry_of_owner(finding: Finding, found: Mapping[str, KnownLeak]) -> KnownLeak | None:
    owner = owner_of(finding)
    if not owner or own_line(finding.culprit) is not None:
        return None
    same = (leak for leak in found.values() if leak.resource == finding.verdict.resource and leak.owner == owner)
    return min(same, key=lambda one: one.finding, default=None)


def _is_gone(leak: KnownLeak, observed: Observed) -> bool:
    def shows_no_leak(test: str) -> bool:
        floor = observed.floors.get(test, {}).get(leak.resource)
        return floor is not None and floor <= leak.rate

    tests = {test for test in leak.tests if not test.endswith("::*")}
    if len(tests) < len(leak.tests):
        # Whether all tests of a file have run is known only if all of the suite have.
        if not observed.whole:
            return False
        tests |= {test for test in observed.ran if leak.lists(test)}
    return bool(tests) and all(map(shows_no_leak, tests))


def _entry_for(finding: Finding, today: str) -> KnownLeak:
    verdict, owner, site = finding.verdict, owner_of(finding), site_of(finding)
    names = finding.fingerprint, verdict.resource, verdict.outcome
    return KnownLeak(*names, 0.0, owner, site, (finding.test,), today, package=_package_of(finding))


def _joined(leak: KnownLeak, finding: Finding) -> KnownLeak:
    tests = leak.tests if leak.lists(finding.test) else (*leak.tests, finding.test)
    return replace(leak, owner=leak.owner or owner_of(finding), site=leak.site or site_of(finding), tests=tests)


def _rate_of(leak: KnownLeak, rate: float) -> float:
    """Return the rate to record: that of the file, unless the measured one differs by much."""
    differs = not leak.rate or has_grown(rate, leak) or rate < _FALLEN_RATIO * leak.rate
    return _round_up(rate, leak.resource) if differs else leak.rate


def _fold(tests: Iterable[str]) -> tuple[str, ...]:
    """Sort node ids, and replace those of a file by ``file::*`` if they are many."""
    unique = set(tests)
    counts = Counter(test.partition("::")[0] for test in unique)
    whole = {file for file, count in counts.items() if count > _MAX_TESTS_PER_FILE or f"{file}::*" in unique}
    return tuple(sorted({f"{file}::*" if (file := test.partition("::")[0]) in whole else test for test in unique}))


def _round_up(rate: float, resource: str) -> float:
    """Round a rate up: to a whole number for a count of at least 1, else to two significant digits."""
    if rate <= 0:
        return 0.0
    if rate >= 1 and find_resource(resource).unit == "count":
        return float(math.ceil(rate - 1e-9))
    step = 10.0 ** (math.floor(math.log10(rate)) + 1 - _SIGNIFICANT_DIGITS)
    return float(f"{math.ceil(rate / step - 1e-9) * step:.12g}")


def _package_of(finding: Finding) -> str:
    """Return the installed package of the innermost frame in one; empty if the project's own code creates it."""
    where = finding.culprit.where if finding.culprit is not None else None
    for site in reversed(where.path if where is not None else ()):
        parts = PurePath(site.file).parts
        for folder in ("site-packages", "dist-packages"):
            if folder in parts[:-1]:
                return PurePath(parts[parts.index(folder) + 1]).stem
    return ""
