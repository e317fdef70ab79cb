"""The owner of a peak is a variable that the user wrote."""

from __future__ import annotations

import sys

from pytest_leakcheck.attribution.tracing.allocations import Composition

MIB = 1 << 20


def test_the_hidden_iterator_of_a_generator_expression_is_no_owner() -> None:
    parts = [bytes([number]) * MIB for number in range(8)]
    composition = Composition("rss", 8 * MIB)

    def inspect(part: bytes) -> int:
        composition.look(sys._getframe(1), 8 * MIB, 8 * MIB)
        return len(part)

    assert sum(inspect(part) for part in parts) == 8 * MIB
    owner = composition.culprit().owner
    assert owner is not None
    # The frame of the generator expression has a variable `.0`, which reaches all of the parts too.
    assert owner.name == f"{test_the_hidden_iterator_of_a_generator_expression_is_no_owner.__name__}() local 'parts'"
    assert owner.holds.startswith("8 × bytes")
