"""A session with a time says how many more it takes until all tests were judged."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.config.settings import resolve
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.plugin.collection import Sampling


class Cache:
    """That of pytest, in memory."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str, default: Any) -> Any:
        return self.values.get(key, default)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = value


def judge(cache: Cache | None, tests: Collection[str], left_out: Collection[str]) -> str:
    """Judge tests in one session, and return its line, which is the same before and after the costs are kept."""
    config: Any = SimpleNamespace(cache=cache)
    sampling = Sampling(config, resolve({"session_time": "10min"}, {}, ""))
    for test in tests:
        finding: Any = SimpleNamespace(test=test, colour="green", recording=Recording(test, ()))
        sampling.add(finding)
    line = sampling.describe(left_out)
    sampling.pytest_sessionfinish()
    assert sampling.describe(left_out) == line
    return line.partition(": ")[2]


def test_it_counts_those_that_were_never_judged() -> None:
    cache, waited = Cache(), "those that have waited longest come first next time"
    assert judge(cache, "ab", "cdefg") == f"{waited}; about 3 more sessions until all were judged"
    # One of these was judged before.
    assert judge(cache, "acd", "befg") == f"{waited}; about 2 more sessions until all were judged"
    # At this rate, nothing is known.
    assert judge(cache, "a", "bcdefg") == waited
    assert judge(cache, "efg", "abcd") == f"{waited}; earlier sessions have judged all of them"


@pytest.mark.parametrize("left_out", ["b", "bcd"])
def test_without_a_cache_no_session_goes_on(left_out: str) -> None:
    assert judge(None, "a", left_out) == "the next session begins with the same ones, because pytest's cache is off"
