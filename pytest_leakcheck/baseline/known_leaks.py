"""The file of known leaks, ``leakcheck-baseline.json``: its text, which findings it lists, and how it is updated.

An entry is one cause. Its keys are sorted, and the entries by their id, so two branches that add different leaks merge
without a conflict, and two updates in a row write the same bytes.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import platform
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from pytest_leakcheck.model import InputError, LeakcheckError
from pytest_leakcheck.model.culprit import creating_line, is_installed, is_of_tests, own_line, short_file
from pytest_leakcheck.model.decoding import DecodeError, decode, encode, parse
from pytest_leakcheck.model.finding import RED, Finding
from pytest_leakcheck.model.regular_file import Ours, open_regular
from pytest_leakcheck.model.resources import find_resource

# Keys that are written even if they are empty, for people to fill in.
_FOR_PEOPLE: Final = ("reason", "link", "expires")
_CONDITIONS: Final = ("python", "platform")
# A known leak has grown if its rate is more than this multiple of the recorded one, and by at least one unit.
GROWN_RATIO: Final = 1.5
State: TypeAlias = Literal["new", "known", "grown", "expired"]
# More tests than this of one file are written as ``file::*``.
_MAX_TESTS_PER_FILE: Final = 20
# A rate is rewritten if it has at least halved, or has grown (`known_leaks.has_grown`).
_FALLEN_RATIO: Final = 0.5
_SIGNIFICANT_DIGITS: Final = 2
# Whether it is one, `read` tells: people may write the keys in any order.
FILE: Final = Ours("a file of known leaks", re.compile(b""))
# What people add to the file may be nested so deep.
_MAX_DEPTH: Final = 20
# What tells entries apart: the id, and how many entries before it have the same one.
Key: TypeAlias = tuple[str, int]
_NEW: Final = -1


class BaselineError(LeakcheckError, ValueError):
    """The file of known leaks cannot be used; the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class KnownLeak:
    """One cause of known leaks; people write `reason` (why it is not fixed yet), `link` and `expires`.

    Attributes:
        rate: Growth per iteration, in the unit of the resource.
        owner: The object that retains the growth; empty if it was never found.
        site: The line that creates the resource, as file and function; empty if it was never found.
        tests: The tests that reach it, sorted: node ids, or ``file::*`` for all tests of a file.
        seen: The date on which the entry was added.
        expires: The date from which the entry counts no more. Empty: never.
        package: The installed package that creates the resource; empty if it is the project.
        only: Where the entry counts: ``python`` (a version specifier) and ``platform`` (as in ``sys.platform``).
        rest: What else people or other versions have written, by key.
    """

    SPARSE: ClassVar = True
    REST: ClassVar = "rest"

    finding: str
    resource: str
    verdict: str
    rate: float
    owner: str
    site: str
    tests: tuple[str, ...]
    seen: str
    reason: str = ""
    link: str = ""
    expires: str = ""
    package: str = ""
    only: Mapping[str, str] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `InputError` for a value from a file if it is out of range."""
        if self.rate < 0:
            raise InputError(f"rate: {self.rate!r} is negative: write 0 or more")

    @property
    def names(self) -> frozenset[str]:
        """The finding id, the owner and the site, as far as they are known."""
        return frozenset(filter(None, (self.finding, self.owner, self.site)))

    def lists(self, test: str) -> bool:
        """Return whether the entry names a test, by its id or by its file."""
        return any(name in self.tests for name in _names_of(test))


@dataclass(frozen=True, slots=True)
class Baseline:
    """The content of the file; `rest` is what people or other versions have added, by key."""

    SCHEMA: ClassVar[int] = 1
    REST: ClassVar = "rest"

    known: tuple[KnownLeak, ...] = ()
    rest: Mapping[str, Any] = field(default_factory=dict)


def read(path: Path) -> Baseline:
    """Read the file; raise `BaselineError` if it cannot be read, is no baseline, or has an invalid entry."""
    try:
        with open_regular(path) as file:
            text = file.read()
        baseline = decode(Baseline, parse(text))
        _check_depth((baseline.rest, *(leak.rest for leak in baseline.known)))
    except DecodeError as error:
        raise BaselineError(f"{path}: {error}. Restore the file, or delete it and write a new one") from None
    except OSError as error:
        raise BaselineError(f"{path}: {error.strerror}" if error.strerror else str(error)) from None
    for at, leak in enumerate(baseline.known):
        _check(leak, f"{path}: known[{at}]")
    return baseline


def to_text(baseline: Baseline) -> str:
    """Return the text of the file."""
    known = [dict.fromkeys(_FOR_PEOPLE, "") | encode(leak) for leak in baseline.known]
    content = {**baseline.rest, "schema": Baseline.SCHEMA, "known": known}
    return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _check_depth(values: Iterable[Any]) -> None:
    for _depth in range(_MAX_DEPTH):
        parts = [one.values() if isinstance(one, dict) else one for one in values if isinstance(one, (dict, list))]
        values = [part for some in parts for part in some]
    if values:
        raise DecodeError("its values are nested too deeply")


def _check(leak: KnownLeak, where: str) -> None:
    if leak.expires:
        try:
            dt.date.fromisoformat(leak.expires)
        except ValueError:
            raise BaselineError(f"{where}.expires: {leak.expires!r} is not a date: write 2027-01-31") from None
    unknown = [key for key in leak.only if key not in _CONDITIONS]
    if unknown:
        raise BaselineError(f"{where}.only: {unknown[0]!r} is not one of {', '.join(_CONDITIONS)}")
    if "python" in leak.only:
        # pytest itself requires this package.
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(leak.only["python"])
        except InvalidSpecifier:
            raise BaselineError(f"{where}.only.python: {leak.only['python']!r} is no version: write >=3.12") from None


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
        # The first of the entries with a name or a test, and its position; that with a site and no owner. By resource.
        self._named: dict[tuple[str, str], KnownLeak] = {}
        self._ownerless: dict[tuple[str, str], KnownLeak] = {}
        self._of_test: dict[tuple[str, str], tuple[int, KnownLeak]] = {}
        for at, leak in enumerate(one for one in baseline.known if counts_here(one)):
            for name in leak.names:
                self._named.setdefault((leak.resource, name), leak)
                if not leak.owner:
                    self._ownerless.setdefault((leak.resource, name), leak)
            for test in leak.tests:
                self._of_test.setdefault((leak.resource, test), (at, leak))
        self._tests = frozenset(test for leak in baseline.known for test in leak.tests)

    def lists(self, test: str) -> bool:
        """Return whether an entry names a test, by its id or by its file."""
        return not self._tests.isdisjoint(_names_of(test))

    def match(self, finding: Finding) -> Match:
        """Find the entry of the cause of a finding's worst verdict."""
        # These are compared, in this order: the finding id; the owner, or the site if either has no owner; and the
        # test, if the finding has no owner, and at most a line of the test. A run on a busy machine may find that
        # little.
        resource = finding.verdict.resource
        owner, site, line = owner_of(finding), site_of(finding), creating_line(finding.culprit)
        of_test = not owner and (line is None or is_of_tests(line.file))
        listed = (self._of_test.get((resource, name)) for name in _names_of(finding.test)) if of_test else ()
        found = (
            self._named.get((resource, finding.fingerprint))
            or self._named.get((resource, owner))
            or (self._ownerless if owner else self._named).get((resource, site))
            or min(filter(None, listed), key=itemgetter(0), default=(0, None))[1]
        )
        if found is None:
            return Match("new")
        if found.expires and found.expires <= self._today:
            return Match("expired", found)
        return Match("grown" if has_grown(finding.verdict.slope, found) else "known", found)


def _names_of(test: str) -> tuple[str, str]:
    """Return how an entry may name a test: by its id, or by its file."""
    return test, f"{test.partition('::')[0]}::*"


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


@dataclass
class Observed:
    """What a session has found: `leaks` that the file may list, new and known, in the order in which they came.

    For each test that has run and that an entry lists, `floors` has the floor of each resource with the verdict ``ok``.
    `whole`: all tests of the suite were selected and have run.
    """

    leaks: list[Finding] = field(default_factory=list)
    floors: dict[str, Mapping[str, float | None]] = field(default_factory=dict)
    whole: bool = False

    def add_floors(self, finding: Finding, known: KnownLeaks) -> None:
        """Take the floors of a test, if an entry lists it. A test that judges several loops is ok if all of them are."""
        if not known.lists(finding.test):
            return
        floors = {one.resource: one.floor for one in finding.verdicts if one.outcome == "ok"}
        earlier = self.floors.get(finding.test, floors)
        self.floors[finding.test] = {name: floors[name] for name in earlier if name in floors}


class Update(NamedTuple):
    """The new content of the file, and how many causes changed in which way."""

    baseline: Baseline
    added: int = 0
    changed: int = 0
    fixed: int = 0
    unchanged: int = 0


def find_fixed(baseline: Baseline, observed: Observed) -> tuple[KnownLeak, ...]:
    """Return the entries whose leak is gone: each test that they list has run, and would have shown it."""
    # Entries that do not count here say nothing, nor do tests that did not run, were inconclusive, or had a weaker
    # floor.
    return tuple(leak for leak in baseline.known if counts_here(leak) and _is_gone(leak, observed))


def update(baseline: Baseline, observed: Observed, today: str) -> Update:
    """Add what is new, dated ``YYYY-MM-DD``, adjust rates and tests, drop what is fixed; what people wrote stays."""
    known = KnownLeaks(baseline, today)
    written = _by_key(baseline.known)
    keys = {id(leak): key for key, leak in written.items()}
    found: dict[Key, KnownLeak] = {}
    tests: dict[Key, dict[str, None]] = {}
    rates: dict[Key, float] = {}
    # The first entry of each owner.
    owners: dict[tuple[str, str], Key] = {}
    # The order in which xdist workers report must not matter. A finding without a line of its own comes last, and joins
    # the entry of its owner.
    for finding in sorted(observed.leaks, key=lambda one: (own_line(one.culprit) is None, one.test, one.fingerprint)):
        leak, owner = known.match(finding).leak, owner_of(finding)
        if leak is not None:
            key = keys[id(leak)]
        elif owner and own_line(finding.culprit) is None:
            key = owners.get((finding.verdict.resource, owner), (finding.fingerprint, _NEW))
        else:
            key = finding.fingerprint, _NEW
        entry = found.get(key) or leak or _entry_for(finding, today)
        listed = tests.setdefault(key, dict.fromkeys(entry.tests))
        if listed.keys().isdisjoint(_names_of(finding.test)):
            listed[finding.test] = None
        found[key] = entry = replace(entry, owner=entry.owner or owner, site=entry.site or site_of(finding))
        of_owner = entry.resource, entry.owner
        owners[of_owner] = min(owners.get(of_owner, key), key)
        rates[key] = max(rates.get(key, 0.0), finding.verdict.slope)
    fixed = {keys[id(leak)] for leak in find_fixed(baseline, observed)} - found.keys()
    for key, leak in found.items():
        found[key] = replace(leak, rate=_rate_of(leak, rates[key]), tests=tuple(tests[key]))
    entries = {key: leak for key, leak in written.items() if key not in fixed} | found
    entries = {key: replace(leak, tests=_fold(leak.tests)) for key, leak in entries.items()}
    added = len(entries.keys() - written.keys())
    changed = sum(key in written and leak != written[key] for key, leak in entries.items())
    unchanged = len(entries) - added - changed
    return Update(replace(baseline, known=_sorted(entries.values())), added, changed, len(fixed), unchanged)


def baseline_of(findings: Iterable[Finding]) -> Baseline:
    """Return the leaks of a session as if they were known."""
    leaks = [finding for finding in findings if finding.verdict.outcome in RED]
    return update(Baseline(), Observed(leaks), "").baseline


def prune(baseline: Baseline, existing: Collection[str]) -> Baseline:
    """Drop the tests that are not among the node ids of the suite, and the entries without a test."""
    files = {test.partition("::")[0] for test in existing}

    def exists(test: str) -> bool:
        file, _, inside = test.partition("::")
        return file in files if inside == "*" else test in existing

    kept = (replace(leak, tests=tuple(filter(exists, leak.tests))) for leak in baseline.known)
    return replace(baseline, known=tuple(leak for leak in kept if leak.tests))


def merge(baselines: Iterable[Baseline]) -> Baseline:
    """Join several files, such as those of a matrix of Python versions; the first has the last word."""
    merged: dict[tuple[str, ...], KnownLeak] = {}
    rest: dict[str, Any] = {}
    for baseline in baselines:
        rest = {**baseline.rest, **rest}
        for leak in baseline.known:
            # Entries for different versions of Python or platforms stay apart.
            first = merged.setdefault(key := (leak.finding, *map(str, sorted(leak.only.items()))), leak)
            texts = {name: getattr(first, name) or getattr(leak, name) for name in ("owner", "site", "reason", "link")}
            tests = _fold((*first.tests, *leak.tests))
            rate, seen, others = max(first.rate, leak.rate), min(first.seen, leak.seen), {**leak.rest, **first.rest}
            merged[key] = replace(first, tests=tests, rate=rate, seen=seen, rest=others, **texts)
    return Baseline(_sorted(merged.values()), rest)


def _sorted(leaks: Iterable[KnownLeak]) -> tuple[KnownLeak, ...]:
    return tuple(sorted(leaks, key=lambda one: one.finding))


def _by_key(leaks: Iterable[KnownLeak]) -> dict[Key, KnownLeak]:
    """Tell entries apart by their id, and those with one id by their order, so that none replaces another."""
    before: Counter[str] = Counter()
    found = {}
    for leak in leaks:
        found[leak.finding, before[leak.finding]] = leak
        before[leak.finding] += 1
    return found


def _is_gone(leak: KnownLeak, observed: Observed) -> bool:
    def shows_no_leak(test: str) -> bool:
        floor = observed.floors.get(test, {}).get(leak.resource)
        return floor is not None and floor <= leak.rate

    tests = {test for test in leak.tests if not test.endswith("::*")}
    if len(tests) < len(leak.tests):
        # Whether all tests of a file have run is known only if all of the suite have.
        if not observed.whole:
            return False
        tests |= {test for test in observed.floors if leak.lists(test)}
    return bool(tests) and all(map(shows_no_leak, tests))


def _entry_for(finding: Finding, today: str) -> KnownLeak:
    names = finding.fingerprint, finding.verdict.resource, finding.verdict.outcome
    path = finding.culprit.where.path if finding.culprit is not None and finding.culprit.where is not None else ()
    # The innermost file in an installed package begins with its name; there is none if only the project's code is seen.
    file = next((short_file(site.file) for site in reversed(path) if is_installed(site.file)), "")
    return KnownLeak(*names, 0.0, "", "", (), today, package=PurePath(file.partition("/")[0]).stem)


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
