"""Keep the verdicts of one repetition: given, taken back, withdrawn once, completed at its end."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge import conclude_finding
from pytest_leakcheck.model.finding import RED, Verdict


class Verdicts:
    """The verdicts on one test that stand, one for each resource at most.

    Attributes:
        given: Them, by resource.
    """

    def __init__(self) -> None:
        self.given: dict[str, Verdict] = {}
        self._withdrawn: Verdict | None = None

    @property
    def red(self) -> Verdict | None:
        """The red verdict, rather one that does not only warn; None if there is none."""
        red = (verdict for verdict in self.given.values() if verdict.outcome in RED)
        return min(red, key=lambda one: one.tolerated, default=None)

    def give(self, verdict: Verdict) -> Verdict:
        """Add a verdict, or replace that on its resource; return the one that stands.

        After a withdrawal, that may be another one (`conclude_finding.judged_again`).
        """
        earlier = self._withdrawn
        if earlier is not None and earlier.resource == verdict.resource:
            verdict = conclude_finding.judged_again(verdict, earlier)
        self.given[verdict.resource] = verdict
        return verdict

    def replace_all(self, *verdicts: Verdict) -> None:
        """Put verdicts on a test that cannot be judged in place of all others."""
        self.given = {verdict.resource: verdict for verdict in verdicts}

    def take_back(self, resource: str) -> None:
        """Take back the verdict on a resource that is judged again, if there is one."""
        self.given.pop(resource, None)

    def take_all_back(self) -> None:
        """Take back all: what was read so far gives none of them."""
        self.given.clear()

    @property
    def can_withdraw(self) -> bool:
        """Whether no verdict was withdrawn so far: that is done once."""
        return self._withdrawn is None

    def withdraw(self, instead: Verdict) -> None:
        """Judge a doubted leak again; `instead` stands if that leaves its resource undecided."""
        self._withdrawn = instead

    def complete(
        self, plan: Plan, missing: Mapping[str, Exception], unlimited: Mapping[str, str]
    ) -> tuple[Verdict, ...]:
        """Return all, as reported: ``unavailable`` what was `missing`, or under no ceiling.

        `unlimited` says why a ceiling could not be set, by resource.
        """
        unread = conclude_finding.missing_verdicts(plan, missing)
        return conclude_finding.without_ceiling((*self.given.values(), *unread), unlimited)
