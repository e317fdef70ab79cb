"""The causes of leaks that a session or its baseline knows already.

A leak with a known owner is no pool or cache that fills. If its line is known too, a further test
with it needs no search: both are confirmed in a few iterations. So is the line of handles that only
the garbage collector closes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.call_paths import (
    is_harness,
    is_own,
    is_standard,
    read_path,
    text_of,
)
from pytest_leakcheck.model.culprit import (
    Culprit,
    Owner,
    Site,
    Step,
    fingerprint,
    is_of_tests,
    own_owner,
)
from pytest_leakcheck.model.finding import Finding, Outcome, Verdict
from pytest_leakcheck.model.recording import Recording

if TYPE_CHECKING:
    from pytest_leakcheck.baseline.known_leaks import KnownLeaks

_ATTRIBUTE: Final = re.compile(r"\.?(\w+)")
# Bytes may differ from those of the entries by this share, for the tables that hold these.
_MAX_BYTES_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class KnownCause:
    """A leak: a container, and a line outside of the tests.

    A module, a class or one of their attributes refers to the container. While the line runs, the
    resource grows by `each` per entry of the container, in its unit. `code` is the function of the
    line.
    """

    test: str
    resource: str
    owner: Owner
    site: Site
    code: CodeType
    each: float

    def explains(self, grown: float, gained: int, iterations: int, verdict: Verdict) -> bool:
        """Return whether the gained entries account for all growth, and for that of the verdict."""
        expected = self.each * gained
        allowed = 1.0 if verdict.traits.unit == "count" else _MAX_BYTES_SHARE * expected
        # In so few iterations, the interpreter may keep as many blocks for reuse.
        of_few = expected if verdict.traits.made_of == "blocks" else allowed
        return (
            gained > 0
            and abs(grown - expected) < of_few
            and verdict.slope * iterations < expected + allowed
        )


class KnownCauses:
    """The causes that this process has found, and those of the baseline."""

    def __init__(self, baseline: KnownLeaks | None = None) -> None:
        # By resource, name and root of the owner, and line.
        self._found: dict[tuple[str, str, str, str, int], KnownCause] = {}
        # The test with the first leak of threads that no owner holds, or of unclosed handles, by
        # resource, outcome and line.
        self._lines: dict[tuple[str, str, str, int], str] = {}
        self._baseline = baseline

    def add(self, test: str, outcome: Outcome, culprit: Culprit | None, each: float) -> None:
        """Take the cause of a red verdict, once the search for it has ended.

        `each` is the growth per entry of the owner; 0 if it cannot be confirmed by that.
        """
        owner = culprit.owner if culprit is not None else None
        if culprit is None or culprit.others:
            return
        where = culprit.where if owner is None and not culprit.companion else None
        if (
            where is not None
            and not where.process
            and (outcome == "unclosed" or culprit.traits.handles == "threads")
        ):
            self._lines.setdefault(
                (culprit.resource, outcome, where.site.file, where.site.line), test
            )
        if owner is None or outcome != "leak" or each <= 0:
            return
        site = _find_site(culprit)
        code = _find_code(site) if site is not None else None
        if site is None or code is None or not _identifies(site, culprit):
            return
        key = (culprit.resource, owner.name, owner.root, site.file, site.line)
        self._found.setdefault(key, KnownCause(test, culprit.resource, owner, site, code, each))

    def of(self, resource: str) -> list[KnownCause]:
        return [cause for cause in self._found.values() if cause.resource == resource]

    def knows(self, resource: str) -> bool:
        """Return whether a leak, or an unclosed resource, of this kind may be confirmed."""
        return bool(self.of(resource)) or any(name == resource for name, *_ in self._lines)

    def test_with(self, resource: str, outcome: Outcome, line: tuple[str, int]) -> str:
        """Return the first test with an ownerless cause of this creating line; empty if none."""
        return self._lines.get((resource, outcome, *line), "")

    def lists(self, test: str, verdict: Verdict, culprit: Culprit) -> bool:
        """Return whether the baseline lists this owner as a leak, at this rate or a higher one."""
        owner = own_owner(culprit)
        if self._baseline is None or owner is None:
            return False
        match = self._baseline.match(
            Finding(test, (verdict,), {}, (), {}, Recording(test, ()), {}, culprit)
        )
        return match.state == "known" and match.leak is not None and match.leak.owner == owner.name


def find_container(owner: Owner) -> object:
    """Return the container of an owner as it is now; None if its name leads to none."""
    module, _colon, names = owner.place.partition(":")
    found: Any = sys.modules.get(module)
    for name in (*names.split("."), *(step.via for step in _steps_to(owner))):
        if name:
            attribute = _ATTRIBUTE.fullmatch(name)
            found = (
                inspection.variables_of(found).get(attribute[1])
                if attribute and found is not None
                else None
            )
    return found if inspection.container_kind(found) is not None else None


def owner_now(owner: Owner, container: object, gained: int, iterations: int) -> Owner:
    """Describe an owner in another test, in which its container has gained so many entries."""
    steps = (*_steps_to(owner), Step(inspection.describe(container), "entries", suspect=True))
    holds = inspection.describe_many(
        [value for _, value in inspection.last_entries(container, gained)], gained
    )
    return replace(owner, steps=steps, holds=holds, gained=gained / iterations)


def _steps_to(owner: Owner) -> Iterator[Step]:
    """Yield the steps from the root of an owner to its container."""
    return takewhile(lambda step: not step.suspect, owner.steps)


def _find_site(culprit: Culprit) -> Site | None:
    """Return the line outside of tests in which all growth occurs: the project's, if it has one."""
    if culprit.where is None or culprit.companion or culprit.where.process:
        return None
    lines = [
        site
        for site in culprit.where.path
        if not (is_harness(site.file) or is_of_tests(site.file) or is_standard(site.file))
    ]
    lines = [one for one in lines if is_own(one.file)] or lines
    if culprit.traits.made_of == "handles":
        return culprit.where.site if culprit.where.site in lines else None
    # An object may consist of several, which lines further in create.
    return lines[0] if lines else None


def _identifies(site: Site, culprit: Culprit) -> bool:
    """Return whether the cause keeps its identifier if no more is known of where it is created."""
    reduced = replace(culprit, where=read_path((site,)), source=text_of(site))
    return fingerprint("", culprit.resource, reduced) == fingerprint("", culprit.resource, culprit)


def _find_code(site: Site) -> CodeType | None:
    """Return the code of the function of a line, if its name leads there."""
    for module in list(sys.modules.values()):
        found: Any = inspection.instance_dict(module) or {}
        if found.get("__file__") != site.file:
            continue
        for name in site.function.split("."):
            found = (
                found.get(name) if type(found) is dict else inspection.variables_of(found).get(name)
            )
        code = found.__code__ if type(found) is FunctionType else None
        return code if code is not None and code.co_qualname == site.function else None
    return None
