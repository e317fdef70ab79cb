"""A red verdict on memory of a device, as a second witness leaves it: the driver, or where that cannot see it yet, the tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pytest_leakcheck.attribution.heap.tensors import bytes_on_device, new_tensors
from pytest_leakcheck.judge.device_witness import hear, kept_in_reserve
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.device import Vram

# What is free in the allocator's reserve is told from so much on: its largest pieces are 20 MiB.
_TOLD: Final = 1 << 20
# Live tensors that came since the start must make out so much of the growth.
_MOST_OF_IT: Final = 0.5


def attest(verdict: Verdict, device: Vram, *, final: bool) -> Verdict | None:
    """Hear the second witness.

    Args:
        verdict: On the devices' memory, by the allocator's own count.
        device: Knows how it was at the start.
        final: No further iteration will follow.

    Returns:
        The verdict: growth that the driver denies is ``inconclusive``. None where more iterations would tell.
    """
    states = device.states()
    if verdict.outcome == "ok":
        return verdict.adding(kept_in_reserve(states, _TOLD))
    if verdict.outcome not in ("leak", "over_budget"):
        return verdict
    witness = hear(states)
    said = verdict.adding(witness.text)
    if witness.says == "denied":
        said = replace(said, outcome="inconclusive", advice="")
    elif witness.says == "unseen":
        alive = bytes_on_device(new_tensors())
        if alive >= _MOST_OF_IT * verdict.level:
            said = said.adding(f"{format_amount(alive, 'bytes')} of new tensors are alive on it")
        elif final:
            said = replace(said, outcome="inconclusive", advice="more iterations would tell: --leakcheck-iterations")
        else:
            return None
    return said
