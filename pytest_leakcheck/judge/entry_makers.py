"""Judge a shared folder in the light of who made its entries. An entry of unknown origin is never an ``ok``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, lgamma, log
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.folders import SetAside

# An ``ok`` excludes a random leak in every third iteration with 99 % confidence, as thirteen quiet iterations do
# (`judge_series.SCARCE`).
_EXCLUDED_RATE: Final = 1 / 3
_MISS_PROBABILITY: Final = 0.01
# More iterations may decide if at most this share of them had an entry set aside, up to this number of iterations.
_MAX_SET_ASIDE_SHARE: Final = 1 / 4
_MAX_ITERATIONS: Final = 100


@dataclass(frozen=True, slots=True)
class EntryMakers:
    """What is known of who made the entries of a shared folder.

    Attributes:
        path: The folder.
        private_folder_helps: A process can be given a folder of its own in place of it (``TMPDIR``).
        counted: Entries that count.
        made_here: How many of them this process or one below it made.
        aside: Entries that do not count, because entries with such names also come while the test rests.
    """

    path: str
    private_folder_helps: bool
    counted: int
    made_here: int
    aside: SetAside


def account_for_makers(verdict: Verdict, budget: Budget, makers: EntryMakers, *, final: bool) -> Verdict | None:
    """Judge again with what is known of who made the entries.

    Args:
        verdict: What the numbers say, without the entries that are set aside.
        budget: What is allowed.
        makers: Who made the entries.
        final: No further iteration will follow.

    Returns:
        The verdict; None if more iterations would decide.
    """
    if verdict.outcome == "over_budget" and verdict.kind == "measured":
        return _judge_level(verdict, budget, makers)
    aside = makers.aside
    if not aside.working or verdict.outcome not in ("ok", "inconclusive"):
        return verdict
    n, text = verdict.iterations, _describe(aside)
    if verdict.outcome == "inconclusive":
        return replace(verdict.adding(text), advice=_advice(makers))
    excluded = _excluded(aside.working, n)
    if excluded <= _EXCLUDED_RATE:
        return replace(verdict.adding(text), floor=max(excluded, verdict.floor or 0.0))
    if not final and n < _MAX_ITERATIONS and aside.working <= n * _MAX_SET_ASIDE_SHARE:
        return None
    return replace(verdict, outcome="inconclusive", reason=text, advice=_advice(makers), floor=None)


def _judge_level(verdict: Verdict, budget: Budget, makers: EntryMakers) -> Verdict:
    """Judge a level. A single entry exceeds it, so an entry that another process made must not count."""
    if makers.made_here > (budget.level or 0):
        return verdict
    unknown = makers.counted - makers.made_here
    came = "came once, maker unknown" if unknown == 1 else f"came {unknown} times, makers unknown"
    reason = f"{verdict.reason}; {came}: not by Python in this process"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=_advice(makers))


def _describe(aside: SetAside) -> str:
    kinds = " and ".join(aside.kinds[:2])
    return f"names like {kinds} also come from elsewhere: {aside.working} while the test ran, {aside.resting} while it rested"


def _advice(makers: EntryMakers) -> str:
    how = (
        "a TMPDIR of its own, or --leakcheck-isolate"
        if makers.private_folder_helps
        else "-n0, no other session beside it"
    )
    return f"run it where nothing else writes into {makers.path}: {how}"


def _excluded(found: int, iterations: int) -> float:
    """Return the smallest rate of a leak that would leave more entries than these with 99 % probability; 1 if above the limit."""
    if found >= iterations * _EXCLUDED_RATE or _fewer(found, iterations, _EXCLUDED_RATE) >= _MISS_PROBABILITY:
        return 1.0
    low, high = 0.0, _EXCLUDED_RATE
    for _ in range(10):
        rate = (low + high) / 2
        low, high = (low, rate) if _fewer(found, iterations, rate) < _MISS_PROBABILITY else (rate, high)
    return high


def _fewer(found: int, iterations: int, rate: float) -> float:
    """Return the probability that a leak of this rate leaves no more entries than these."""

    def chance(k: int) -> float:
        # In logarithms, because the binomial coefficient of a few thousand is more than a float holds.
        ways = lgamma(iterations + 1) - lgamma(k + 1) - lgamma(iterations - k + 1)
        return exp(ways + k * log(rate) + (iterations - k) * log(1 - rate))

    return sum(map(chance, range(found + 1)))
