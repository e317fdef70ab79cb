"""A training with two workers, watched until a worker of the leaky arm dies: the slope and the end that were foretold."""

from __future__ import annotations

from pathlib import Path

import pytest

from watch_workers import PER_SWITCH, descriptors, foretold, watch

pytestmark = pytest.mark.laboratory

WORKERS = 2
# What the training's own descriptors leave of 1,024, and what the workers make ahead of it.
LEAST, MOST = 2 * (1024 - 60) // PER_SWITCH - 8, 2 * 1024 // PER_SWITCH


def test_the_leaky_arm_dies_as_foretold(tmp_path: Path) -> None:
    watched = watch("leaky", WORKERS, 1_000_000, tmp_path / "watch.jsonl", interval=0.05)
    assert "Too many open files" in watched.said
    assert LEAST <= watched.taken <= MOST
    fd = descriptors(watched.whole())
    assert fd.state == "grows"
    assert fd.axis == "step"
    assert fd.slope is not None
    assert fd.slope.value == pytest.approx(PER_SWITCH, rel=0.05)
    # By steps, since how fast they come is the machine's matter.
    steps, _seconds = foretold(watched, 0.5)
    assert steps == pytest.approx(1, rel=0.1)


def test_the_fixed_arm_shows_no_growth_and_what_would_have_shown(tmp_path: Path) -> None:
    watched = watch("fixed", WORKERS, 200, tmp_path / "watch.jsonl", interval=0.05)
    assert watched.taken == 200
    fd = descriptors(watched.whole())
    assert fd.state == "flat"
    assert not fd.left
    # A sixth of the leak that was fixed, or less.
    assert fd.floor is not None
    assert fd.floor <= PER_SWITCH / 6
    assert "no growth seen; would have caught ≥ " in watched.said
