"""The file of known leaks, ``leakcheck-baseline.json``: its text, its matches and its updates.

An entry is one cause. Its keys are sorted, and the entries by their id, so two branches that add
different leaks merge without a conflict, and two updates in a row write the same bytes.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import platform
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from pytest_leakcheck.model import InputError, LeakcheckError
from pytest_leakcheck.model.culprit import (
    creating_line,
    fingerprint,
    fingerprint_of_owner,
    is_installed,
    is_of_tests,
    own_line,
    own_owner,
    short_file,
    short_id,
)
from pytest_leakcheck.model.decoding import DecodeError, decode, encode, parse
from pytest_leakcheck.model.finding import RED, Finding
from pytest_leakcheck.model.regular_file import Ours, open_regular
from pytest_leakcheck.model.resources import RESOURCES, find_resource

# Keys that are written even if they are empty, for people to fill in.
_FOR_PEOPLE: Final = ("reason", "link", "expires")
_CONDITIONS: Final = ("python", "platform")
# A known leak has grown if its rate is more than this multiple of the recorded one, and by at least
# one unit.
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


class BaselineError(LeakcheckError, ValueError):
    """The file of known leaks is unusable; the message names the file, the fault and the remedy."""


@dataclass(frozen=True, slots=True)
class KnownLeak:
    """One cause of known leaks; people write `reason` (why it is not fixed), `link` and `expires`.

    Attributes:
        rate: Growth per iteration, in the unit of the resource.
        owner: The object that retains the growth; empty if it was never found, or is everybody's,
            such as ``sys.path``.
        site: The line that creates the resource, as file and function; empty if it was never found.
        tests: The tests that reach it, sorted: node ids, or ``file::*`` for all tests of a file.
        seen: The date on which the entry was added.
        expires: The date from which the entry counts no more. Empty: never.
        package: The installed package that creates the resource; empty if it is the project.
        only: Where the entry counts: ``python`` (a version specifier) and ``platform`` (as in
            ``sys.platform``).
        fault: The function that raises on the failing path that leaks, and where; empty if the test
            leaks as it is.
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
    fault: str = ""
    rest: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `InputError` for a value from a file if it is out of range."""
        if self.rate < 0:
            raise InputError(f"rate: {self.rate!r} is negative: write 0 or more")

    @property
    def is_uncertain(self) -> bool:
        """Whether the entry has no owner, and at most a line of a test or an installed package."""
        file = self.site.partition(":")[0]
        is_of_package = PurePath(file.partition("/")[0]).stem == self.package
        return not self.owner and (not file or is_of_tests(file) or is_of_package)

    def covers(self, resource: str) -> bool:
        """Return whether growth of a resource may be that of the entry."""
        # An object is counted as blocks and as bytes too, and what holds a handle is an object.
        known = RESOURCES.get(self.resource)
        of_python = known is not None and bool(known.counts_python or known.handles)
        return resource == self.resource or (of_python and find_resource(resource).counts_python)

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
    """Read the file; raise `BaselineError` if it, or an entry in it, is unreadable or invalid."""
    try:
        with open_regular(path) as file:
            text = file.read()
        baseline = decode(Baseline, parse(text))
        _check_depth((baseline.rest, *(leak.rest for leak in baseline.known)))
    except DecodeError as error:
        raise BaselineError(
            f"{path}: {error}. Restore the file, or delete it and write a new one"
        ) from None
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
        parts = [
            value.values() if isinstance(value, dict) else value
            for value in values
            if isinstance(value, (dict, list))
        ]
        values = [part for some in parts for part in some]
    if values:
        raise DecodeError("its values are nested too deeply")


def _check(leak: KnownLeak, where: str) -> None:
    if leak.expires:
        try:
            dt.date.fromisoformat(leak.expires)
        except ValueError:
            raise BaselineError(
                f"{where}.expires: {leak.expires!r} is not a date: write 2027-01-31"
            ) from None
    unknown = [key for key in leak.only if key not in _CONDITIONS]
    if unknown:
        raise BaselineError(f"{where}.only: {unknown[0]!r} is not one of {', '.join(_CONDITIONS)}")
    if "python" in leak.only:
        # pytest itself requires this package.
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            SpecifierSet(leak.only["python"])
        except InvalidSpecifier:
            raise BaselineError(
                f"{where}.only.python: {leak.only['python']!r} is no version: write >=3.12"
            ) from None


@dataclass(frozen=True, slots=True)
class Match:
    """What the file says of a cause.

    ``grown`` is faster than recorded, ``expired`` an entry that counts no more. `rate` is the
    growth per iteration of the resource of the entry.
    """

    state: State
    leak: KnownLeak | None = None
    rate: float = 0.0


class KnownLeaks:
    """The known leaks that count on this machine today."""

    def __init__(self, baseline: Baseline, today: str, *, updating: bool = False) -> None:
        """Take the entries, and the date (``YYYY-MM-DD``); if `updating`, each cause is known."""
        self.baseline = baseline
        self.updating = updating
        self._today = today
        # The entries by id, owner, site and test.
        self._named: dict[str, list[KnownLeak]] = defaultdict(list)
        for leak in filter(counts_here, baseline.known):
            self.add(leak)
        self._tests = frozenset(test for leak in baseline.known for test in leak.tests)

    def add(self, leak: KnownLeak) -> None:
        """Take one more entry."""
        for name in {leak.finding, leak.owner, leak.site, *leak.tests} - {""}:
            self._named[name].append(leak)

    def lists(self, test: str) -> bool:
        """Return whether an entry names a test, by its id or by its file."""
        return not self._tests.isdisjoint(_names_of(test))

    def match(self, finding: Finding) -> Match:
        """Find the entry of the cause of a finding's worst verdict, and compare the rates."""
        found = self.find(finding)
        if found is None:
            return Match("new")
        rate = _rate_in(finding, found.resource)
        if found.expires and found.expires <= self._today:
            return Match("expired", found, rate)
        return Match("grown" if has_grown(rate, found) else "known", found, rate)

    def find(self, finding: Finding) -> KnownLeak | None:
        """Return the entry of a cause by its name or, if either name is uncertain, by its test."""
        owner, line = own_owner(finding.culprit), own_line(finding.culprit)
        # A run on a busy machine may find less of a cause, and what an event loop creates has
        # another line in each run.
        is_uncertain = owner is None and (line is None or is_of_tests(line.file))
        site = site_of(finding) if line else ""
        named = [
            *(self._named.get(finding.fingerprint, ()) if owner or line else ()),
            *(
                leak
                for leak in self._named.get(owner.name if owner else "", ())
                if not _is_of_namesake(leak, finding)
            ),
            *(
                leak
                for leak in self._named.get(site, ())
                if not (owner and leak.owner) and not is_outdated(leak, finding)
            ),
        ]
        listing = [one for name in _names_of(finding.test) for one in self._named.get(name, ())]
        listed = [
            one for one in listing if is_uncertain or one.is_uncertain or is_outdated(one, finding)
        ]
        for entries in (named, listed):
            if covering := [
                leak
                for leak in entries
                if leak.covers(finding.verdict.resource) and leak.fault == _fault_of(finding)
            ]:
                # Of several, the one of the resource itself, and the fastest.
                return max(
                    covering,
                    key=lambda leak: (
                        leak.resource == finding.verdict.resource,
                        leak.rate,
                        leak.finding,
                    ),
                )
        return None

    def with_id(self, finding: Finding) -> KnownLeak | None:
        """Return the entry with the id of a finding, whatever its tests."""
        return next(
            (
                leak
                for leak in self._named.get(finding.fingerprint, ())
                if leak.finding == finding.fingerprint
            ),
            None,
        )


def is_outdated(leak: KnownLeak, finding: Finding) -> bool:
    """Return whether an entry's id is from an earlier version, which used only the owner's name."""
    former = fingerprint_of_owner(leak.resource, finding.culprit)
    return (
        leak.finding
        == former
        != fingerprint(finding.test, leak.resource, finding.culprit, finding.fault)
    )


def _is_of_namesake(leak: KnownLeak, finding: Finding) -> bool:
    """Return whether an entry is of an owner with the same name in another module, by its id."""
    ours = fingerprint(finding.test, leak.resource, finding.culprit, finding.fault)
    return (
        leak.finding != ours and leak.finding[len(short_id(ours)) :] == ours[len(short_id(ours)) :]
    )


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


def _rate_in(finding: Finding, resource: str) -> float:
    """Return the growth of a resource per iteration in the run of a finding; 0 if unknown."""
    rates = {one.resource: one.slope for one in finding.seen}
    # The worst verdict on a resource comes first.
    rates |= {one.resource: one.slope for one in reversed(finding.verdicts)}
    return rates.get(resource, 0.0)


def _owner_of(finding: Finding) -> str:
    owner = own_owner(finding.culprit)
    return owner.name if owner is not None else ""


def _fault_of(finding: Finding) -> str:
    return finding.fault.place if finding.fault is not None else ""


def site_of(finding: Finding) -> str:
    """Return the creating line, as file and function; empty if unknown or a line of any test."""
    line = creating_line(finding.culprit)
    return f"{short_file(line.file)}:{line.function}" if line is not None else ""


@dataclass
class Observed:
    """What a session has found: `leaks` that the file may list, new and known, in order of arrival.

    For each test that has run and that an entry lists, `floors` has the floor of each resource with
    the verdict ``ok``; `of_faults` has the same for its failing paths, by the place of the fault.
    `suite` are the node ids of the suite, if all of it was selected and has run; else it is empty.
    """

    leaks: list[Finding] = field(default_factory=list)
    floors: dict[str, Mapping[str, float | None]] = field(default_factory=dict)
    suite: Collection[str] = ()
    of_faults: dict[str, dict[str, Mapping[str, float | None]]] = field(default_factory=dict)

    def floors_of(self, fault: str) -> dict[str, Mapping[str, float | None]]:
        """Return the floors of the failing paths of one fault, by test.

        If `fault` is empty, they are those of the tests as they are.
        """
        return self.of_faults.setdefault(fault, {}) if fault else self.floors

    def add_floors(self, finding: Finding, known: KnownLeaks) -> None:
        """Take the floors of a test, if an entry lists it.

        A test that judges several loops is ok if all of them are.
        """
        if not known.lists(finding.test):
            return
        floors = {one.resource: one.floor for one in finding.verdicts if one.outcome == "ok"}
        of_tests = self.floors_of(_fault_of(finding))
        earlier = of_tests.get(finding.test, floors)
        of_tests[finding.test] = {name: floors[name] for name in earlier if name in floors}


class Update(NamedTuple):
    """The new content of the file, and how many causes changed in which way."""

    baseline: Baseline
    added: int = 0
    changed: int = 0
    fixed: int = 0
    replaced: int = 0
    unchanged: int = 0


def find_fixed(baseline: Baseline, observed: Observed) -> tuple[KnownLeak, ...]:
    """Return the entries whose leak is gone: each test they list ran and would have shown it."""
    # Entries that do not count here say nothing, nor do tests that did not run, were inconclusive,
    # or had a weaker floor.
    known = KnownLeaks(baseline, "")
    found = {id(known.find(finding)) for finding in observed.leaks}
    leaks = (leak for leak in baseline.known if counts_here(leak) and id(leak) not in found)
    return tuple(leak for leak in leaks if _is_gone(leak, observed))


def find_outdated(baseline: Baseline, observed: Observed) -> tuple[str, ...]:
    """Return the ids of the entries of an earlier version that an update replaces."""
    known = KnownLeaks(baseline, "")
    matches = ((known.find(finding), finding) for finding in observed.leaks)
    return tuple(
        sorted(
            {
                leak.finding
                for leak, finding in matches
                if leak is not None and is_outdated(leak, finding)
            }
        )
    )


def update(baseline: Baseline, observed: Observed, today: str) -> Update:
    """Add what is new, adjust rates and tests, drop what is fixed; keep what people wrote.

    New entries get the date `today`, ``YYYY-MM-DD``.
    """
    known = KnownLeaks(baseline, today)
    entries = list(baseline.known)
    at = {id(leak): number for number, leak in enumerate(entries)}
    found: dict[int, list[Finding]] = defaultdict(list)
    # For each entry of an earlier version, the tests that an entry of one function lists now.
    moved: dict[int, set[str]] = defaultdict(set)
    for finding in sorted(observed.leaks, key=_best_named_first):
        leak = known.find(finding) or known.with_id(finding)
        former = (
            leak if leak is not None and is_outdated(leak, finding) and site_of(finding) else None
        )
        if leak is None or former is not None:
            leak = _entry_for(finding, today, former)
            at[id(leak)] = len(entries)
            entries.append(leak)
            known.add(leak)
        if former is not None:
            moved[at[id(former)]].add(finding.test)
        found[at[id(leak)]].append(finding)
    fixed = set(map(id, find_fixed(baseline, observed)))
    kept: list[KnownLeak] = []
    changed = replaced = 0
    for number, leak in enumerate(entries):
        if id(leak) in fixed:
            continue
        rest = leak
        if moved[number]:
            # A test that was not judged may still have it.
            tests = _tests_of(leak, observed) - moved[number]
            rest = replace(leak, tests=tuple(tests))
            if not found[number] and (not tests or _is_gone(rest, observed)):
                replaced += 1
                continue
        kept.append(_with_findings(rest, found[number]))
        changed += number < len(baseline.known) and kept[-1] != leak
    added = len(entries) - len(baseline.known)
    counts = (added, changed, len(fixed), replaced, len(kept) - added - changed)
    return Update(replace(baseline, known=_sorted(kept)), *counts)


def _best_named_first(finding: Finding) -> tuple[bool, bool, bool, str, str]:
    """Return a sort key that ignores the order of xdist's reports; a handle leads its objects."""
    owner, line = own_owner(finding.culprit), own_line(finding.culprit)
    return (
        owner is None,
        line is None,
        finding.verdict.traits.counts_python,
        finding.test,
        finding.fingerprint,
    )


def _with_findings(leak: KnownLeak, findings: Sequence[Finding]) -> KnownLeak:
    """Return an entry with what its findings add: missing names, tests and the fastest rate."""
    owner = leak.owner or next(filter(None, map(_owner_of, findings)), "")
    site = leak.site or next(filter(None, map(site_of, findings)), "")
    rate = max((_rate_in(finding, leak.resource) for finding in findings), default=0.0)
    tests = (*leak.tests, *(finding.test for finding in findings if not leak.lists(finding.test)))
    leak = replace(
        leak, owner=owner, site=site, rate=_rate_of(leak, rate) if rate else leak.rate, tests=tests
    )
    return replace(leak, tests=_fold(leak))


def baseline_of(findings: Iterable[Finding]) -> Baseline:
    """Return the leaks of a session as if they were known."""
    leaks = [finding for finding in findings if finding.verdict.outcome in RED]
    return update(Baseline(), Observed(leaks), "").baseline


def prune(baseline: Baseline, existing: Collection[str], root: Path) -> Baseline:
    """Drop the tests that are gone, and the entries without a test.

    `existing` are the node ids of the suite, also of what could not be collected, such as a module
    that is skipped. A file below `root` of which none is known may have been ignored.
    """
    files = {test.partition("::")[0] for test in existing}
    starts = tuple(f"{test}::" for test in existing)

    def exists(test: str) -> bool:
        file, _, inside = test.partition("::")
        if file not in files:
            return Path(root, file).exists()
        return inside == "*" or f"{test}::".startswith(starts)

    kept = (replace(leak, tests=tuple(filter(exists, leak.tests))) for leak in baseline.known)
    return replace(baseline, known=tuple(leak for leak in kept if leak.tests))


def merge(baselines: Iterable[Baseline]) -> Baseline:
    """Join several files, such as those of a matrix of Python versions; the first one prevails."""
    merged: dict[tuple[str, ...], KnownLeak] = {}
    rest: dict[str, Any] = {}
    for baseline in baselines:
        rest = {**baseline.rest, **rest}
        for leak in baseline.known:
            # Entries for different versions of Python or platforms stay apart.
            first = merged.setdefault(
                key := (leak.finding, *map(str, sorted(leak.only.items()))), leak
            )
            texts = {
                name: getattr(first, name) or getattr(leak, name)
                for name in ("owner", "site", "reason", "link")
            }
            tests = _fold(replace(first, tests=(*first.tests, *leak.tests)))
            rate, seen, others = (
                max(first.rate, leak.rate),
                min(first.seen, leak.seen),
                {**leak.rest, **first.rest},
            )
            merged[key] = replace(first, tests=tests, rate=rate, seen=seen, rest=others, **texts)
    return Baseline(_sorted(merged.values()), rest)


def _sorted(leaks: Iterable[KnownLeak]) -> tuple[KnownLeak, ...]:
    return tuple(sorted(leaks, key=lambda one: one.finding))


def _tests_of(leak: KnownLeak, observed: Observed) -> set[str]:
    """Return the tests that an entry lists, by their ids if all of the suite was selected."""
    # Which tests a file has is known only then.
    if not observed.suite:
        return set(leak.tests)
    # Of a file that was not collected, they are not known even then.
    tests = [test for test in observed.suite if "::" in test]
    files = {test.partition("::")[0] for test in tests}
    listed = {
        test
        for test in leak.tests
        if not test.endswith("::*") or test.partition("::")[0] not in files
    }
    return listed.union(filter(leak.lists, tests))


def _is_gone(leak: KnownLeak, observed: Observed) -> bool:
    floors = observed.floors_of(leak.fault)

    def shows_no_leak(test: str) -> bool:
        floor = floors.get(test, {}).get(leak.resource)
        return floor is not None and floor <= leak.rate

    tests = _tests_of(leak, observed)
    return bool(tests) and all(map(shows_no_leak, tests))


def _entry_for(finding: Finding, today: str, former: KnownLeak | None) -> KnownLeak:
    """Return an entry for a finding, with what people wrote in `former`, of an earlier version."""
    path = (
        finding.culprit.where.path
        if finding.culprit is not None and finding.culprit.where is not None
        else ()
    )
    line = own_line(finding.culprit)
    # The innermost file in an installed package begins with its name; there is none if only the
    # project's code is seen.
    files = (
        ()
        if line is not None and is_installed(line.file)
        else (site.file for site in reversed(path))
    )
    package = PurePath(
        next(map(short_file, filter(is_installed, files)), "").partition("/")[0]
    ).stem
    return replace(
        former or KnownLeak("", "", "", 0.0, "", "", (), today),
        finding=finding.fingerprint,
        resource=finding.verdict.resource,
        verdict=finding.verdict.outcome,
        rate=0.0,
        owner=_owner_of(finding),
        site=site_of(finding),
        tests=(finding.test,),
        package=package,
        fault=_fault_of(finding),
    )


def _rate_of(leak: KnownLeak, rate: float) -> float:
    """Return the rate to record: that of the file, unless the measured one differs by much."""
    differs = not leak.rate or has_grown(rate, leak) or rate < _FALLEN_RATIO * leak.rate
    return _round_up(rate, leak.resource) if differs else leak.rate


def _fold(leak: KnownLeak) -> tuple[str, ...]:
    """Sort the node ids of an entry, and replace many of one file by ``file::*``."""
    unique = set(leak.tests)
    # The tests are what an uncertain entry is known by.
    most = math.inf if leak.is_uncertain else _MAX_TESTS_PER_FILE
    counts = Counter(test.partition("::")[0] for test in unique)
    whole = {file for file, count in counts.items() if count > most or f"{file}::*" in unique}
    return tuple(
        sorted(
            {
                f"{file}::*" if (file := test.partition("::")[0]) in whole else test
                for test in unique
            }
        )
    )


def _round_up(rate: float, resource: str) -> float:
    """Round a rate up: a count of at least 1 to an integer, any other to two significant digits."""
    if rate <= 0:
        return 0.0
    if rate >= 1 and find_resource(resource).unit == "count":
        return float(math.ceil(rate - 1e-9))
    step = 10.0 ** (math.floor(math.log10(rate)) + 1 - _SIGNIFICANT_DIGITS)
    return float(f"{math.ceil(rate / step - 1e-9) * step:.12g}")
