from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from pytest_leakcheck.baseline.known_leaks import (
    Baseline,
    KnownLeak,
    KnownLeaks,
    Observed,
    find_fixed,
    merge,
    prune,
    to_text,
    update,
)
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Site
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording

Floors: TypeAlias = dict[str, Mapping[str, float | None]]

TODAY = "2026-11-24"
WRAP = Site("/venv/lib/python3.11/site-packages/click/testing.py", 70, "Wrapper.__init__", "super().__init__()")


def leak(test: str = "t.py::test_a", rate: float = 1.0, *, owner: str = "click.CACHE", site: bool = True) -> Finding:
    """A leak of a package, found with its owner and with the line of the test that calls the package, or with less."""
    line = Site(f"/project/tests/test_{test.partition('.')[0]}.py", 9, test.partition("::")[2], "invoke()")
    culprit = Culprit(
        "object",
        CreationPath((line, WRAP), line) if site else None,
        owner=Owner(owner, "module click", (), "x", rate) if owner else None,
    )
    verdict = Verdict("object", "leak", slope=rate, iterations=229, explicit=False, colour="yellow")
    return Finding(test, (verdict,), {}, (), {}, Recording(test, ()), {}, culprit if owner or site else None, known="x")


def after(*findings: Finding, of: Baseline | None = None) -> Baseline:
    return update(of or Baseline(), Observed(list(findings)), TODAY).baseline


def test_a_cause_is_one_entry_whatever_the_order_of_its_tests() -> None:
    findings = (leak("t.py::test_a", 7.0), leak("t.py::test_b", 14.0), leak("u.py::test_c", 6.2))
    texts = {to_text(after(*some)) for some in itertools.permutations(findings)}
    assert len(texts) == 1
    (entry,) = after(*findings).known
    assert (entry.rate, entry.tests) == (14.0, ("t.py::test_a", "t.py::test_b", "u.py::test_c"))
    assert (entry.owner, entry.package, entry.seen) == ("click.CACHE", "click", TODAY)
    assert entry.site == "click/testing.py:Wrapper.__init__"
    # The same again changes nothing.
    assert after(*findings, of=after(*findings)) == after(*findings)


def test_a_rate_is_rewritten_only_if_it_differs_by_much() -> None:
    before = after(leak(rate=100.0))
    assert after(leak(rate=140.0), of=before).known[0].rate == 100.0
    assert after(leak(rate=60.0), of=before).known[0].rate == 100.0
    assert after(leak(rate=151.0), of=before).known[0].rate == 151.0
    assert after(leak(rate=49.0), of=before).known[0].rate == 49.0
    assert after(leak(rate=0.5432)).known[0].rate == 0.55


def test_a_run_that_finds_less_of_a_cause_matches_its_entry() -> None:
    whole = leak()
    lost_owner, lost_both = leak(owner=""), leak(owner="", site=False)
    assert len({one.fingerprint for one in (whole, lost_owner, lost_both)}) == 3
    baseline = after(whole)
    assert KnownLeaks(baseline, TODAY).match(lost_owner).state == "known"
    assert KnownLeaks(baseline, TODAY).match(lost_both).state == "known"
    # A test that the entry does not list, and a cause that has another owner, are new.
    assert KnownLeaks(baseline, TODAY).match(leak("t.py::test_z", owner="", site=False)).state == "new"
    assert KnownLeaks(baseline, TODAY).match(leak(owner="click.OTHER")).state == "new"
    # What such a run has found changes nothing, and an owner that is found later is added.
    assert after(lost_owner, lost_both, of=baseline) == baseline
    assert after(whole, of=after(lost_owner)).known[0].owner == "click.CACHE"


@pytest.mark.parametrize(("rate", "state"), [(1.0, "known"), (1.9, "known"), (2.0, "grown"), (0.1, "known")])
def test_one_that_doubles_has_grown(rate: float, state: str) -> None:
    assert KnownLeaks(after(leak()), TODAY).match(leak(rate=rate)).state == state


def test_an_entry_expires_on_its_day() -> None:
    (entry,) = after(leak()).known
    expiring = Baseline((replace(entry, expires="2026-12-01"),))
    assert KnownLeaks(expiring, "2026-11-30").match(leak()).state == "known"
    assert KnownLeaks(expiring, "2026-12-01").match(leak()).state == "expired"


def test_a_leak_is_fixed_if_each_of_its_tests_would_have_shown_it() -> None:
    baseline = after(leak("t.py::test_a", 2.0), leak("t.py::test_b", 2.0))

    def fixed(**floors: float | None) -> bool:
        seen: Floors = {f"t.py::{test}": {"object": floor} for test, floor in floors.items()}
        return bool(find_fixed(baseline, Observed(floors=seen)))

    assert fixed(test_a=1.0, test_b=2.0)
    assert not fixed(test_a=1.0)
    assert not fixed(test_a=1.0, test_b=3.0)
    assert not fixed(test_a=1.0, test_b=None)
    elsewhere = Baseline(tuple(replace(one, only={"platform": "win32"}) for one in baseline.known))
    floors: Floors = {f"t.py::test_{name}": {"object": 1.0} for name in "ab"}
    assert not find_fixed(elsewhere, Observed(floors=floors))
    # A leak that one more test shows is not fixed, though the tests of its entry are clean.
    assert update(baseline, Observed([leak("t.py::test_c")], floors), TODAY).fixed == 0


def test_many_tests_of_a_file_are_one_line() -> None:
    findings = [leak(f"t.py::test[{number}]") for number in range(21)]
    (entry,) = after(*findings, leak("u.py::test_a")).known
    assert entry.tests == ("t.py::*", "u.py::test_a")
    assert entry.lists("t.py::test_of_tomorrow")
    # Only a run of the whole suite shows that all of them are fixed.
    tests = ("u.py::test_a", *(f"t.py::test[{number}]" for number in range(21)))
    floors: Floors = {test: {"object": 0.5} for test in tests}
    baseline, suite = Baseline((entry,)), (*tests, "v.py::test_of_another_file")
    assert find_fixed(baseline, Observed(floors=floors, suite=suite))
    assert not find_fixed(baseline, Observed(floors=floors))
    # A test of the file that was not judged, or that showed too little, says nothing.
    assert not find_fixed(baseline, Observed(floors=floors, suite=(*suite, "t.py::test_left_out")))
    floors["t.py::test[7]"] = {}
    assert not find_fixed(baseline, Observed(floors=floors, suite=suite))


def test_tests_that_are_gone_are_pruned_and_entries_without_a_test(tmp_path: Path) -> None:
    baseline = after(leak("t.py::test_a"), leak("u.py::test_b"), leak("v.py::test_c", owner="click.OTHER"))
    pruned = prune(baseline, {"u.py::test_b", "w.py::test_d"}, tmp_path)
    assert [entry.tests for entry in pruned.known] == [("u.py::test_b",)]


def test_files_of_several_versions_are_joined() -> None:
    (here,) = after(leak("t.py::test_a", 1.0)).known
    there = replace(here, tests=("t.py::test_b",), rate=3.0, reason="issue 7", seen="2026-01-01")
    other = KnownLeak("ff-fd", "fd", "leak", 1.0, "", "", ("t.py::test_z",), TODAY)
    merged = merge([Baseline((here,)), Baseline((there, other))])
    assert len(merged.known) == 2
    joined = next(entry for entry in merged.known if entry.finding == here.finding)
    assert (joined.tests, joined.rate, joined.reason, joined.seen) == (
        ("t.py::test_a", "t.py::test_b"),
        3.0,
        "issue 7",
        "2026-01-01",
    )
    assert merge([merged, merged]) == merged
