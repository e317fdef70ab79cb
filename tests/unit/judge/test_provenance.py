"""What is known in addition to the readings qualifies a verdict: an ``ok`` claims less, a red one says whose it is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

import pytest

from pytest_leakcheck.judge.provenance import Provenance, qualify
from pytest_leakcheck.model.finding import Outcome, Verdict

OK: Final = Verdict("object", "ok", floor=1.0)
LEAK: Final = Verdict("fd", "leak", slope=1.0, level=5, reason="+1.0/iter")


def test_without_anything_known_a_verdict_stays_as_it_is() -> None:
    assert qualify(OK, Provenance()) == OK
    assert qualify(LEAK, Provenance()) == LEAK


def test_an_ok_that_may_have_missed_something_is_inconclusive() -> None:
    verdict = qualify(OK, Provenance(hidden="the test calls gc.freeze()", uncounted="2 files"))
    assert (verdict.outcome, verdict.reason, verdict.floor) == ("inconclusive", "the test calls gc.freeze()", None)
    assert "heap_budget()" in verdict.advice
    assert qualify(LEAK, Provenance(hidden="the test calls gc.freeze()")) == LEAK


@pytest.mark.parametrize(("resource", "how"), [("shm", "-n0"), ("disk", "a private TMPDIR")])
def test_entries_of_unknown_origin_take_back_an_ok(resource: str, how: str) -> None:
    known = Provenance(unknown=2, folder="/there", uncounted="1 file elsewhere")
    verdict = qualify(Verdict(resource, "ok", floor=1.0), known)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("2 entries of unknown origin in /there: ")
    assert how in verdict.advice
    assert qualify(Verdict(resource, "leak"), known).outcome == "leak"


def test_an_ok_beside_what_is_not_counted_excludes_nothing() -> None:
    verdict = qualify(OK, Provenance(uncounted="1 child process: its memory is not counted"))
    assert (verdict.outcome, verdict.floor) == ("ok", None)
    assert verdict.reason == "1 child process: its memory is not counted"


@pytest.mark.parametrize(
    ("outcome", "level", "expected"),
    [
        ("leak", 5, "inconclusive"),
        ("leak", 6, "leak"),
        ("over_budget", 6, "inconclusive"),
        ("unclosed", 5, "unclosed"),
    ],
)
def test_a_level_that_is_not_the_test_s_fails_no_test(outcome: Outcome, level: int, expected: Outcome) -> None:
    known = Provenance(foreign="files over ours", foreign_level={"leak": 5, "over_budget": inf})
    verdict = qualify(replace(LEAK, outcome=outcome, level=level), known)
    assert verdict.outcome == expected
    assert (verdict.reason == "files over ours") == (expected == "inconclusive")


def test_a_verdict_says_where_the_growth_is() -> None:
    known = Provenance(grown_in="in child 7", on_devices="cuda:0 +1 MiB by the driver")
    assert qualify(LEAK, known).reason == "+1.0/iter; in child 7; cuda:0 +1 MiB by the driver"
    # A green test has no growth to be placed, but a driver may have taken what its allocator does not count.
    assert qualify(OK, known).reason == "cuda:0 +1 MiB by the driver"
