from __future__ import annotations

import pytest

from pytest_leakcheck.config.budget import Budget, growth_budgets
from pytest_leakcheck.config.plan import ADAPTIVE, LONGEST, Effort, plan_test
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.model import InputError


def names(plan_budgets: tuple[Budget, ...]) -> list[str]:
    return [budget.resource for budget in plan_budgets]


def test_budgets_alone_are_judged_in_the_order_of_scarcity() -> None:
    plan = plan_test("t", (Budget("rss", 5), Budget("fd", 0)), Effort())
    assert plan.budgets == (Budget("fd", 0), Budget("rss", 5))


def test_everything_adds_growth_budgets_that_are_not_explicit() -> None:
    plan = plan_test("t", (Budget("heap", 5),), Effort(), growth_budgets(("countable", "memory")))
    memory = ["heap", "object", "block", "arrow", "vram", "mmap", "rss"]
    assert names(plan.budgets) == ["process", "fd", "thread", "shm", "disk", "task", *memory]
    assert [budget for budget in plan.budgets if budget.explicit] == [Budget("heap", 5)]


def test_named_resources_are_added_as_explicit_and_nothing_else() -> None:
    plan = plan_test("t", (), Effort(), (Budget("rss"), Budget("fd")))
    assert names(plan.budgets) == ["fd", "rss"]
    assert all(budget.explicit and budget.level is None for budget in plan.budgets)


def test_the_effort_is_carried_and_0_iterations_mean_as_many_as_are_needed() -> None:
    effort = Effort(iterations=0, warmup=1)
    assert plan_test("t", (), effort).effort == effort
    assert (effort.usual, effort.most) == (ADAPTIVE, LONGEST)
    assert (Effort(iterations=40).usual, Effort(iterations=40).most) == (40, 40)


def test_a_cheap_test_goes_on_until_it_has_taken_the_least_time() -> None:
    effort = Effort(min_time=3)
    assert not effort.is_enough(ADAPTIVE, seconds=2.9)
    assert effort.is_enough(ADAPTIVE, seconds=3.0)
    assert not effort.is_enough(ADAPTIVE - 1, seconds=20.0)
    assert effort.is_enough(LONGEST, seconds=0.1)
    assert Effort(iterations=40).is_enough(40, seconds=0.1)
    assert Effort(min_time=0).most == ADAPTIVE
    with pytest.raises(InputError, match=r"min_time=-1: must be a number of seconds from 0"):
        Effort(min_time=-1)


def test_the_adaptive_effort_passes_the_horizon_of_memory_with_a_look_to_spare() -> None:
    late = [at for at in looks(ADAPTIVE) if at >= 200]
    assert late == [229, 287, 359, 449, 562]


def test_the_setting_that_gives_more_time_is_the_one_that_limits_it() -> None:
    assert Effort().advise_time(11.2) == "--leakcheck-max-time=12"
    assert Effort(in_script=True).advise_time(11.2) == "max_time=12"
    assert Effort().within_timeout(60) == Effort()
    limited = Effort().within_timeout(2)
    assert (limited.max_time, limited.time_without_timeout) == (1.4, 30.0)
    assert limited.advise_time(11.2) == "a timeout of 18 s, because pytest-timeout limits this test"
    both = "--leakcheck-max-time=35 and a timeout of 50 s, because pytest-timeout limits this test"
    assert limited.advise_time(35) == both
