"""Judge a folder that other processes use too by who made its entries; unknown ones can make it ``inconclusive``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, lgamma, log
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.folders import SetAside

# An ``ok`` must exclude a random leak at this rate (in every third iteration) with 99 % confidence, as thirteen quiet
# iterations do (`judge_series.SCARCE`).
_EXCLUDED_RATE: Final = 1 / 3
_MISS_PROBABILITY: Final = 0.01
# More iterations are requested if the entries set aside (`EntryMakers.aside`) are at most this share of the iterations,
# and if fewer than this number of iterations have run.
_MAX_SET_ASIDE_SHARE: Final = 1 / 4
_MAX_ITERATIONS: Final = 100


@dataclass(frozen=True, slots=True)
class EntryMakers:
    """What is known of who made the entries of a shared folder.

    The test is held to have left `counted` entries, `made_here` of them by this process or a descendant. Those `aside`
    do not count, because entries with such names also arrive while the test is paused. `private_folder_helps`: a
    process can be given a private folder instead (``TMPDIR``).
    """

    path: str
    private_folder_helps: bool
    counted: int
    made_here: int
    aside: SetAside


def account_for_makers(verdict: Verdict, budget: Budget, makers: EntryMakers, *, final: bool) -> Verdict | None:
    """Correct a verdict by who made the entries; None if more iterations would decide, but never with `final`."""
    if verdict.outcome == "over_budget" and verdict.kind == "measured":
        return _judge_level(verdict, budget, makers)
    aside = makers.aside
    if not aside.working or verdict.outcome not in ("ok", "inconclusive"):
        return verdict
    n, text = verdict.iterations, _describe(aside)
    if verdict.outcome == "inconclusive":
        return replace(verdict.adding(text), advice=_advice(makers))
    excluded = _find_excluded_rate(aside.working, n)
    if excluded <= _EXCLUDED_RATE:
        return replace(verdict.adding(text), floor=max(excluded, verdict.floor or 0.0))
    if not final and n < _MAX_ITERATIONS and aside.working <= n * _MAX_SET_ASIDE_SHARE:
        return None
    return replace(verdict, outcome="inconclusive", reason=text, advice=_advice(makers), floor=None)


def _judge_level(verdict: Verdict, budget: Budget, makers: EntryMakers) -> Verdict:
    """Judge a level by the entries that are known to come from this process tree; a single other one may exceed it."""
    if makers.made_here > (budget.level or 0):
        return verdict
    unknown = makers.counted - makers.made_here
    came = "1 entry of unknown origin" if unknown == 1 else f"{unknown} entries of unknown origin"
    reason = f"{verdict.reason}; {came}, which Python in this process did not create"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=_advice(makers))


def _describe(aside: SetAside) -> str:
    kinds = " and ".join(aside.kinds[:2])
    return f"names like {kinds} also come from elsewhere: {aside.working} while the test ran, {aside.resting} while it was paused"


def _advice(makers: EntryMakers) -> str:
    how = (
        "with a private TMPDIR, or with --leakcheck-isolate"
        if makers.private_folder_helps
        else "with -n0, and no other session at the same time"
    )
    return f"run it where nothing else writes to {makers.path}: {how}"


def _find_excluded_rate(found: int, iterations: int) -> float:
    """Return the smallest leak rate per iteration that `found` excludes with 99 %; 1 if above `_EXCLUDED_RATE`."""
    if (
        found >= iterations * _EXCLUDED_RATE
        or _tail_probability(found, iterations, _EXCLUDED_RATE) >= _MISS_PROBABILITY
    ):
        return 1.0
    low, high = 0.0, _EXCLUDED_RATE
    for _ in range(10):
        rate = (low + high) / 2
        low, high = (low, rate) if _tail_probability(found, iterations, rate) < _MISS_PROBABILITY else (rate, high)
    return high


def _tail_probability(found: int, iterations: int, rate: float) -> float:
    """Return the probability that a leak of this rate leaves no more entries than were found."""

    def chance(k: int) -> float:
        # In logarithms: the binomial coefficient of a few thousand exceeds the range of a float.
        ways = lgamma(iterations + 1) - lgamma(k + 1) - lgamma(iterations - k + 1)
        return exp(ways + k * log(rate) + (iterations - k) * log(1 - rate))

    return sum(map(chance, range(found + 1)))
