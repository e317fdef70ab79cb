"""Explain growth of resident memory by a large buffer that was allocated at once and is written piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_leakcheck.probes.large_blocks import touched_large_blocks
from pytest_leakcheck.runner.sampler import Sampler

# Share of the growth that must be in large blocks.
_MIN_SHARE: Final = 0.8


class FilledBuffers:
    """The touched bytes (on pages used at least once) of malloc's large blocks, compared at two moments, the looks."""

    def __init__(self) -> None:
        # At the first look: the iteration, the level of the counter, and the touched bytes of each block.
        self._first: tuple[int, int, Mapping[tuple[int, int], int]] | None = None

    def restart(self) -> None:
        self._first = None

    def full_level(self, sampler: Sampler, name: str) -> int | None:
        """Return the level above the start, in bytes, at which all bytes of the large blocks will be touched.

        None if the blocks do not account for the growth since the first look, or if this is the first look.
        """
        samples, blocks = sampler.samples, touched_large_blocks()
        if self._first is None:
            self._first = samples.n, samples.level(name), blocks
            return None
        n, level, earlier = self._first
        grown = samples.level(name) - level
        touched = sum(blocks[one] - earlier[one] for one in blocks.keys() & earlier.keys())
        if samples.n == n or grown <= 0 or touched < _MIN_SHARE * grown:
            return None
        untouched = sum(end - start - inside for (start, end), inside in blocks.items())
        return samples.above_start(name) + max(0, untouched)

    def needs_second_look(self, sampler: Sampler) -> bool:
        """Return whether the first look was in this iteration and found large blocks."""
        return self._first is not None and self._first[0] == sampler.samples.n and bool(self._first[2])
