"""What there is more and more of is told by type, most telling first."""

from __future__ import annotations

from typing import Any

from pytest_leakcheck.attribution.heap.object_kinds import kinds_of
from pytest_leakcheck.model.culprit import Held


class Frame:
    def __init__(self, number: int) -> None:
        self.pixels = [number] * 4


def test_builtin_types_are_told_where_there_are_none_of_the_programs_own_and_what_is_rare_is_left_out() -> None:
    frames: list[Any] = [Frame(n) for n in range(20)]
    lists: list[Any] = [[] for _ in range(30)]
    (own,) = kinds_of([*frames, *lists, {}, lambda: None], 20, 0.5)
    assert (own.what, own.count) == ("Frame", 20)
    assert own.note.endswith(" B each, in 20 iterations")
    (builtin,) = kinds_of([*lists, {}, lambda: None], 20, 0.5)
    assert builtin == Held("list", 30, "56 B each, in 20 iterations")
    assert kinds_of(frames, 21, 1.0) == ()
    assert kinds_of(frames[:1], 1, 0.0) == ()


def test_functions_and_frames_are_not_told() -> None:
    assert kinds_of([lambda: None for _ in range(30)], 20, 0.5) == ()
