"""How many iterations the search may use, and what it reports if there were none."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from pytest_leakcheck.attribution.handle_kinds import Things
from pytest_leakcheck.attribution.tracing.tracing_rounds import Made, Schedule, charge, follow
from pytest_leakcheck.probes import clock

NO_ITERATION = "no iteration was left to trace its calls"


def schedule(deadline: float) -> Schedule:
    return Schedule(0.0, deadline, lambda: None)


def result_of(rounds: Generator[None, None, Made]) -> Made:
    made = []

    def steps() -> Iterator[None]:
        made.append((yield from rounds))

    list(steps())
    return made[0]


def test_without_an_iteration_the_report_says_so() -> None:
    things = Things(lambda: 0, dict)
    assert result_of(follow(things, 1.0, schedule(0.0), unclosed=False)).why == NO_ITERATION
    assert result_of(charge(lambda: 0, 1.0, 1.0, schedule(0.0))).why == NO_ITERATION
    # With iterations, in which nothing is created, the reason is another one.
    assert result_of(follow(things, 1.0, schedule(float("inf")), unclosed=False)).why != NO_ITERATION
    assert result_of(charge(lambda: 0, 1.0, 1.0, schedule(float("inf")))).why != NO_ITERATION


def test_other_work_of_the_search_takes_no_time_from_its_iterations() -> None:
    late = schedule(clock.monotonic() - 1)
    assert list(late.iterations(1.0)) == []
    late.postpone(60)
    assert list(late.iterations(1.0)) == list(range(7))


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, [7, 7, 7, 4, 0]), (0.1, [31, 31, 31, 7, 0])])
def test_a_rare_growth_gets_enough_iterations_for_three_rounds(rate: float, rounds: list[int]) -> None:
    endless = schedule(float("inf"))
    assert [len(list(endless.iterations(rate))) for _ in rounds] == rounds
