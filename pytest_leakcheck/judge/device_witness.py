"""Compare two counts of device memory: the allocator's and the driver's.

An allocator reserves memory from the driver in segments, and hands it out in pieces. So the driver does not see growth
until the memory that was reserved and free at the start is used up. From then on, each further byte must be reserved,
and the driver must see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.device_state import State
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict

Testimony: TypeAlias = Literal["alone", "confirmed", "denied", "unseen"]

# The tolerance of the comparison, in bytes: drivers round to pages of up to 64 KiB, and count a few pages of their own.
_DRIVER_ROUNDING: Final = 1 << 17
# The smallest growth of the allocator's free reserve that is reported, in bytes. Its largest pieces are 20 MiB.
_MIN_RESERVE_GROWTH: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Witness:
    """What the driver's count shows about growth that the allocator counted; `text` is part of a sentence, or empty.

    It is ``alone`` without growth or a driver's count, ``confirmed`` if the driver's count rose as well, ``denied`` if
    it did not rise enough, and ``unseen`` if the growth still fits into what was reserved and free.
    """

    says: Testimony
    text: str


def check_with_driver(verdict: Verdict, states: Sequence[tuple[State, State]]) -> Verdict:
    """Make a verdict on growth ``inconclusive`` if the driver denies it; what the driver cannot see or count stands."""
    if verdict.outcome == "ok":
        return verdict.adding(kept_in_reserve(states, _MIN_RESERVE_GROWTH))
    if verdict.outcome not in ("leak", "over_budget"):
        return verdict
    witness = compare_counts(states)
    said = verdict.adding(witness.text)
    return replace(said, outcome="inconclusive", advice="") if witness.says == "denied" else said


def compare_counts(states: Sequence[tuple[State, State]]) -> Witness:
    """Compare the counts of each device at the start and now, both after free memory was returned to the driver."""
    grown = [(before, now) for before, now in states if now.allocated > before.allocated]
    where = _describe_growth(grown) if len(states) > 1 else ""
    heard = [pair for pair in grown if _is_comparable(*pair)]
    if not grown or len(heard) < len(grown):
        return Witness("alone", where)
    risen = sum((now.driver or 0) - (before.driver or 0) for before, now in heard)
    # Memory that was free at the start could be handed out without asking the driver for more.
    due = sum(_growth(*pair) - _free_reserve(pair[0]) for pair in heard if _growth(*pair) > _free_reserve(pair[0]))
    if due <= 0:
        free = sum(_free_reserve(before) for before, _now in heard)
        text = f"the driver cannot see it yet: it fits into the {_bytes(free)} that were reserved and free"
        return Witness("unseen", _join(where, text))
    if risen + _DRIVER_ROUNDING >= due:
        return Witness("confirmed", _join(where, f"the driver confirms it, +{_bytes(risen)}"))
    text = f"the driver does not confirm it: it counts {risen:+,} B, but {_bytes(due)} more must have been reserved"
    return Witness("denied", _join(where, text))


def kept_in_reserve(states: Sequence[tuple[State, State]], least: int) -> str:
    """Describe, as part of a sentence, how the reserved but free memory grew; empty if by less than ``least`` bytes."""
    more = sum(_free_reserve(now) - _free_reserve(before) for before, now in states)
    if more < least:
        return ""
    free, reserved = sum(_free_reserve(now) for _, now in states), sum(now.reserved or 0 for _, now in states)
    return f"{_bytes(free)} of the {_bytes(reserved)} reserved are free, {_bytes(more)} more than at the start"


def _describe_growth(grown: Sequence[tuple[State, State]]) -> str:
    return ", ".join(f"{now.device} +{_bytes(_growth(before, now))}" for before, now in grown)


def _is_comparable(before: State, now: State) -> bool:
    return None not in (before.reserved, now.reserved, before.driver, now.driver)


def _growth(before: State, now: State) -> int:
    return now.allocated - before.allocated


def _free_reserve(state: State) -> int:
    return max(0, state.reserved - state.allocated) if state.reserved is not None else 0


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _bytes(value: int) -> str:
    return format_amount(value, "bytes")
