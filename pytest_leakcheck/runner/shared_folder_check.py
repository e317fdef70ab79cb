"""A verdict on a shared folder, where nobody knows who made an entry: what cannot be told apart is never an ``ok``."""

from __future__ import annotations

from dataclasses import replace
from math import exp, lgamma, log
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.folders import Folder, SetAside

# An ``ok`` excludes a leak at random in every third iteration at 99 %, as thirteen quiet iterations do (`judge.SCARCE`).
_RATE: Final = 1 / 3
_CHANCE: Final = 0.01
# More iterations may tell where so few of them, at most, had an entry set aside, and not after so many iterations.
_WORTH_MORE: Final = 1 / 4
_MORE: Final = 100
_ADVICE: Final = "run it where nothing else writes into {path}: {how}"


def account_for_makers(verdict: Verdict, budget: Budget, folder: Folder, *, final: bool) -> Verdict | None:
    """The verdict, with what is not known of the entries.

    Args:
        verdict: What the numbers say, entries left out that are set aside.
        budget: What is allowed.
        folder: Knows which entries were made here, and which were set aside.
        final: No further iteration will follow.

    Returns:
        None where more iterations would tell.
    """
    if verdict.outcome == "over_budget" and verdict.kind == "measured":
        return _level(verdict, budget, folder)
    aside = folder.set_aside
    if not aside.working or verdict.outcome not in ("ok", "inconclusive"):
        return verdict
    n, text = verdict.iterations, _describe(aside)
    if verdict.outcome == "inconclusive":
        return replace(verdict.adding(text), advice=_advice(folder))
    excluded = _excluded(aside.working, n)
    if excluded <= _RATE:
        return replace(verdict.adding(text), floor=max(excluded, verdict.floor or 0.0))
    if not final and n < _MORE and aside.working <= n * _WORTH_MORE:
        return None
    return replace(verdict, outcome="inconclusive", reason=text, advice=_advice(folder), floor=None)


def _level(verdict: Verdict, budget: Budget, folder: Folder) -> Verdict:
    """A level is exceeded by a single entry, so one that another process made must not be held against it."""
    allowed = budget.level or 0
    if folder.made_here > allowed:
        return verdict
    unknown = folder.count - folder.made_here
    came = "came once, maker unknown" if unknown == 1 else f"came {unknown} times, makers unknown"
    reason = f"{verdict.reason}; {came}: not by Python in this process"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=_advice(folder))


def _describe(aside: SetAside) -> str:
    kinds = " and ".join(aside.kinds[:2])
    return f"names like {kinds} also come from elsewhere: {aside.working} while the test ran, {aside.resting} while it rested"


def _advice(folder: Folder) -> str:
    how = (
        "a TMPDIR of its own, or --leakcheck-isolate"
        if find_resource(folder.resource).handles == "files"
        else "-n0, no other session beside it"
    )
    return _ADVICE.format(path=folder.path, how=how)


def _excluded(found: int, iterations: int) -> float:
    """The least rate of a leak that would have left more entries than these with 99 % probability; 1 if above `_RATE`."""
    if found >= iterations * _RATE or _fewer(found, iterations, _RATE) >= _CHANCE:
        return 1.0
    low, high = 0.0, _RATE
    for _ in range(10):
        rate = (low + high) / 2
        low, high = (low, rate) if _fewer(found, iterations, rate) < _CHANCE else (rate, high)
    return high


def _fewer(found: int, iterations: int, rate: float) -> float:
    """The chance that a leak of this rate leaves no more than these."""

    def chance(k: int) -> float:
        # By logarithms: the binomial coefficient of a few thousand is more than a float holds.
        ways = lgamma(iterations + 1) - lgamma(k + 1) - lgamma(iterations - k + 1)
        return exp(ways + k * log(rate) + (iterations - k) * log(1 - rate))

    return sum(map(chance, range(found + 1)))
