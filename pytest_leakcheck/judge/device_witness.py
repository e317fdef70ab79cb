"""Two witnesses to growth on a device: the allocator that counts, and the driver that it takes its memory from.

An allocator takes memory in segments and gives it out in pieces, so the driver sees growth late: not before what was
reserved and free at the start is used up. From then on each byte more must be reserved, and the driver must have seen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.device_state import State
from pytest_leakcheck.model.units import format_amount

Testimony: TypeAlias = Literal["alone", "confirmed", "denied", "unseen"]


# Drivers round to pages of up to 64 KiB, and count a few of their own.
_ROUNDING: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Witness:
    """What is known of growth beside the allocator's own count.

    Attributes:
        says: ``alone``: nobody else was asked. ``confirmed``: the driver's count rose with it. ``denied``: it did not, though it
            must have. ``unseen``: it still fits into what was reserved, so the driver cannot tell.
        text: The same as a part of a sentence; empty where there is nothing to say.
    """

    says: Testimony
    text: str


def hear(states: Sequence[tuple[State, State]]) -> Witness:
    """Hear the driver.

    Args:
        states: Each device at the start and now, both after what was free was given back.
    """
    grown = [(before, now) for before, now in states if now.allocated > before.allocated]
    where = _where(grown) if len(states) > 1 else ""
    heard = [pair for pair in grown if _both_tell(*pair)]
    if not grown or len(heard) < len(grown):
        return Witness("alone", where)
    risen = sum((now.driver or 0) - (before.driver or 0) for before, now in heard)
    # What was free at the start could be given out without a word to the driver.
    due = sum(_growth(*pair) - _free(pair[0]) for pair in heard if _growth(*pair) > _free(pair[0]))
    if due <= 0:
        free = sum(_free(before) for before, _now in heard)
        text = f"the driver cannot see it yet: it fits into the {_bytes(free)} that were reserved and free"
        return Witness("unseen", _join(where, text))
    if risen + _ROUNDING >= due:
        return Witness("confirmed", _join(where, f"the driver confirms it, +{_bytes(risen)}"))
    text = f"the driver does not confirm it: it counts {risen:+,} B, where {_bytes(due)} more must have been reserved"
    return Witness("denied", _join(where, text))


def kept_in_reserve(states: Sequence[tuple[State, State]], least: int) -> str:
    """What the allocator holds beside what it has given out, where that grew by so many bytes; as a part of a sentence."""
    more = sum(_free(now) - _free(before) for before, now in states)
    if more < least:
        return ""
    free, reserved = sum(_free(now) for _, now in states), sum(now.reserved or 0 for _, now in states)
    return f"{_bytes(free)} of the {_bytes(reserved)} reserved are free, {_bytes(more)} more than at the start"


def _where(grown: Sequence[tuple[State, State]]) -> str:
    return ", ".join(f"{now.device} +{_bytes(_growth(before, now))}" for before, now in grown)


def _both_tell(before: State, now: State) -> bool:
    return None not in (before.reserved, now.reserved, before.driver, now.driver)


def _growth(before: State, now: State) -> int:
    return now.allocated - before.allocated


def _free(state: State) -> int:
    return max(0, state.reserved - state.allocated) if state.reserved is not None else 0


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _bytes(value: int) -> str:
    return format_amount(value, "bytes")
