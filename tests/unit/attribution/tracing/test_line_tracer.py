"""The tree of calls goes down to the line: of a function, of the loop that arms it, of a recursion."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_leakcheck.attribution.tracing.backends import Lines
from traced import PLAIN, Counter, followed, line_found, marked


def own_line(counter: Counter) -> None:
    for _ in range(3):
        len("")
    counter.value += 1  # here
    len("")


def test_growth_in_a_line_of_its_own() -> None:
    counter = Counter()
    culprit = followed(counter.read, lambda: own_line(counter))
    assert culprit.path[-1].function == "own_line"
    assert culprit.path[-1].call == ""
    assert culprit.code is own_line.__code__
    lines = Lines(own_line.__code__, counter.read, PLAIN)
    lines.arm()
    own_line(counter)
    lines.disarm()
    lines.close()
    assert lines.line() == marked(own_line)


def drop_in_part(counter: Counter) -> None:
    counter.value += 100  # here
    counter.value -= 99


def drop_one_of_two(counter: Counter) -> None:
    counter.value += 50
    counter.value += 50
    counter.value -= 99


def match_twice(counter: Counter) -> None:
    counter.value += 1
    counter.value += 1
    counter.value -= 1


def test_the_only_line_that_gains_made_what_remains() -> None:
    counter = Counter()
    assert line_found(drop_in_part, counter.read, lambda: drop_in_part(counter)) == marked(drop_in_part)
    # Which of two lines made what remains cannot be known.
    assert line_found(drop_one_of_two, counter.read, lambda: drop_one_of_two(counter)) == 0
    assert line_found(match_twice, counter.read, lambda: match_twice(counter)) == 0


def test_lines_of_a_generator_and_of_a_recursion() -> None:
    counter = Counter()

    def numbers() -> Iterator[int]:
        yield 1
        counter.value += 5  # in the generator
        yield 2

    def down(n: int) -> None:
        if n:
            down(n - 1)
        else:
            counter.value += 5  # in the recursion

    def consume() -> None:
        for _ in numbers():
            # Not its doing.
            counter.value += 1

    here = test_lines_of_a_generator_and_of_a_recursion
    assert line_found(numbers, counter.read, consume) == marked(here, "# in the generator")
    assert line_found(down, counter.read, lambda: down(4)) == marked(here, "# in the recursion")


def test_a_trace_function_that_was_in_force_is_so_after_the_second_round() -> None:
    def hook(*_: object) -> Any:
        return hook

    counter = Counter()
    before = sys.gettrace()
    sys.settrace(hook)
    try:
        assert line_found(own_line, counter.read, lambda: own_line(counter)) == marked(own_line)
        assert sys.gettrace() is hook
    finally:
        sys.settrace(before)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring leaves sys.settrace alone")
def test_a_program_that_sets_its_own_trace_function_keeps_it() -> None:
    def hook(*_: object) -> None: ...

    before = sys.gettrace()
    lines = Lines(own_line.__code__, int, PLAIN)
    try:
        lines.arm()
        sys.settrace(hook)
        lines.disarm()
        assert sys.gettrace() is hook
    finally:
        sys.settrace(before)
    assert "sys.settrace" in lines.interrupted
