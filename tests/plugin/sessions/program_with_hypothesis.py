"""Properties in each form, one of which leaks."""

from __future__ import annotations

import os
import unittest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

KEPT: list[int] = []

pytestmark = pytest.mark.fd_budget(0)


class TestPlain:
    @given(st.integers())
    def test_method(self, number: int) -> None:
        pass

    @given(number=st.integers())
    @pytest.mark.parametrize("parameter", [1, 2])
    def test_parameters(self, number: int, parameter: int) -> None:
        pass


class TestOfUnittest(unittest.TestCase):
    @given(st.integers())
    def test_case(self, number: int) -> None:
        pass


@given(st.integers())
def test_function(number: int) -> None:
    pass


class Machine(RuleBasedStateMachine):
    @rule(number=st.integers())
    def step(self, number: int) -> None:
        pass


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=5, stateful_step_count=5)


class TestLeaky:
    @settings(max_examples=5)
    @given(st.integers(0, 1000))
    def test_leaks(self, number: int) -> None:
        KEPT.append(os.open(__file__, os.O_RDONLY))
