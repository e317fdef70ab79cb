"""Keep the verdicts of one repetition: given, taken back, withdrawn once, completed at its end."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge import conclude_finding
from pytest_leakcheck.judge.exhaustion import exhausted_by, first_line, over_ceiling, ran_out
from pytest_leakcheck.model.finding import RED, Verdict
from pytest_leakcheck.runner.readings import Samples


class Verdicts:
    """The verdicts on one test, by resource, in the order in which they were given.

    Attributes:
        given: Those that stand. After a red one, no other resource is judged.
    """

    def __init__(self) -> None:
        self.given: dict[str, Verdict] = {}
        self._withdrawn: Verdict | None = None
        # In the search. Then only the cause of the leak is missing.
        self._recurred = False

    @property
    def red(self) -> Verdict | None:
        """The red verdict; None if there is none."""
        return next((verdict for verdict in self.given.values() if verdict.outcome in RED), None)

    def give(self, verdict: Verdict) -> Verdict:
        """Add a verdict, or replace that on its resource; return it with what was withdrawn."""
        earlier = self._withdrawn
        if earlier is not None and earlier.resource == verdict.resource:
            verdict = conclude_finding.judged_again(verdict, earlier, recurred=self._recurred)
        self.given[verdict.resource] = verdict
        return verdict

    def replace_all(self, verdict: Verdict) -> None:
        """Give one verdict on the whole test, in place of all others."""
        self.given = {verdict.resource: verdict}

    def take_back(self, resource: str) -> None:
        """Take back the verdict on a resource that is judged again, if there is one."""
        self.given.pop(resource, None)

    def take_all_back(self) -> None:
        """Take back all, because the series begins again."""
        self.given.clear()

    @property
    def can_withdraw(self) -> bool:
        """Whether no verdict was withdrawn so far: that is done once."""
        return self._withdrawn is None

    def withdraw(self, red: Verdict, *, recurred: bool) -> None:
        """Take back all, because a red one is doubted; the next on its resource mentions it."""
        self._withdrawn, self._recurred = red, recurred
        self.take_all_back()

    def exhausted(
        self,
        error: BaseException,
        plan: Plan,
        samples: Samples | None,
        ceiling: Mapping[str, int],
    ) -> bool:
        """Judge the first resource that ran out; return whether a red verdict explains `error`.

        `ceiling` are the limits in force, by resource.
        """
        # The resource leaks if it grew until then; else the test itself needs more of it than its
        # ceiling allows.
        if self.red is not None:
            return False
        gone, said = exhausted_by(error), first_line(error)
        read = {
            name: samples.series(name) for name in gone if samples is not None and samples.has(name)
        }
        for budget in plan.budgets:
            if budget.resource in read:
                verdict = ran_out(read[budget.resource], budget, said)
                if verdict is not None:
                    self.give(verdict)
                    return True
        for name, size in ceiling.items():
            if name in gone:
                self.give(over_ceiling(name, size, read.get(name), said))
                return True
        return False

    def complete(
        self, plan: Plan, missing: Mapping[str, Exception], unlimited: Mapping[str, str]
    ) -> tuple[Verdict, ...]:
        """Return all, with those on what could not be read or, if `unlimited`, has no ceiling."""
        unread = conclude_finding.missing_verdicts(plan, missing)
        return conclude_finding.without_ceiling((*self.given.values(), *unread), unlimited)
