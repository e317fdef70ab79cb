from __future__ import annotations

import pytest

from pytest_leakcheck.config.plan import ADAPTIVE, LONGEST, Effort
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.model import InputError


def test_0_iterations_mean_as_many_as_are_needed() -> None:
    assert (Effort().usual, Effort().most) == (ADAPTIVE, LONGEST)
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
    assert [Effort(longest=120).within_timeout(timeout).longest for timeout in (600, 200, 2)] == [120, 70, 0]
    limited = Effort().within_timeout(2)
    assert (limited.max_time, limited.time_without_timeout) == (1.4, 30.0)
    assert limited.advise_time(11.2) == "a timeout of 18 s, because pytest-timeout limits this test"
    both = "--leakcheck-max-time=35 and a timeout of 50 s, because pytest-timeout limits this test"
    assert limited.advise_time(35) == both
