"""The campaign of ci/faults recognises each kind of defect, some of its faults are tried here; so is the long session."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import around
import many_tests
from around import CLEAN, LEAKS, Fault, judge
from campaign import format_table, run_fault
from inside import catalogue
from outside import EVENTS
from sandbox import Ran

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals, /proc")

FAULTS = {one.name: one for one in catalogue()}
AROUND = {name: {"fd": verdict} for name, verdict in (around.BEFORE | around.AFTER).items()}
GOOD = Ran(
    status=1,
    text="2 failed, 3 passed",
    verdicts={**AROUND, "test_fault": {"fd": "leak"}},
    whole=True,
    outcomes=dict.fromkeys((*AROUND, "test_fault"), "passed"),
)
LEAKY = Fault("name", "category", "leak()", LEAKS)


def judged(ran: Ran, fault: Fault = LEAKY, plain: Ran = GOOD) -> str:
    return judge(fault, ran, lambda: plain)[0]


def with_verdict(name: str, verdict: str) -> Ran:
    return replace(GOOD, verdicts={**GOOD.verdicts, name: {"fd": verdict}})


@pytest.mark.parametrize(
    ("ran", "result"),
    [
        (GOOD, around.SURVIVED),
        (replace(GOOD, status=None), around.HANG),
        (replace(GOOD, status=3), around.SESSION_ENDED),
        (replace(GOOD, text="INTERNALERROR> "), around.SESSION_ENDED),
        (replace(GOOD, status=-9, verdicts={}), around.LOST_FINDING),
        (replace(GOOD, whole=False), around.LOST_FINDING),
        (replace(GOOD, verdicts={name: {"fd": one} for name, one in around.BEFORE.items()}), around.SESSION_ENDED),
        (with_verdict("test_leaky_after", "ok"), around.SILENT_PASS),
        (with_verdict("test_leaky_before", "ok"), around.SILENT_PASS),
        (with_verdict("test_clean_after", "leak"), around.FALSE_ALARM),
        (with_verdict("test_clean_after", "inconclusive"), around.NOT_JUDGED),
        (with_verdict("test_fault", "ok"), around.SILENT_PASS),
        (replace(GOOD, verdicts=AROUND), around.SILENT_PASS),
        (replace(GOOD, files=["leakcheck-x"]), around.LEFTOVERS),
        (replace(GOOD, processes=["sleep 60"]), around.LEFTOVERS),
        (replace(GOOD, text="\x1b[2J"), around.RAW_TEXT),
    ],
)
def test_each_kind_of_defect_is_recognised(ran: Ran, result: str) -> None:
    assert judged(ran) == result


def test_the_expectation_of_the_fault_itself_counts() -> None:
    assert judged(with_verdict("test_fault", "leak"), replace(LEAKY, expected=CLEAN)) == around.FALSE_ALARM
    assert judged(with_verdict("test_fault", "ok"), replace(LEAKY, expected=CLEAN)) == around.SURVIVED
    assert judged(with_verdict("test_fault", "inconclusive"), replace(LEAKY, expected=CLEAN)) == around.SURVIVED
    assert judged(GOOD, replace(LEAKY, never_ok=("heap",))) == around.SURVIVED
    heap = replace(GOOD, verdicts={**AROUND, "test_fault": {"heap": "ok", "fd": "leak"}})
    assert judged(heap, replace(LEAKY, never_ok=("heap",))) == around.SILENT_PASS
    assert judged(with_verdict("test_clean_after", "inconclusive"), replace(LEAKY, lasting=True)) == around.SURVIVED
    assert judged(with_verdict("test_leaky_after", "ok"), replace(LEAKY, lasting=True)) == around.SILENT_PASS


@pytest.mark.parametrize("status", [None, -9])
def test_what_plain_pytest_does_not_survive_either_counts_as_survived(status: int | None) -> None:
    ended = replace(GOOD, status=status, verdicts={name: {"fd": one} for name, one in around.BEFORE.items()})
    assert judged(ended, plain=replace(GOOD, status=status)) == around.AS_PLAIN


def test_the_catalogue_is_large_enough() -> None:
    assert len(FAULTS) >= 150
    assert len(EVENTS) >= 13
    assert len({fault.category for fault in FAULTS.values()}) >= 19
    for fault in FAULTS.values():
        compile(fault.source(isolated=True), fault.name, "exec")


@pytest.mark.laboratory
@pytest.mark.parametrize(
    ("name", "mode", "result"),
    [
        ("SIGKILL in body", "in place", around.AS_PLAIN),
        ("SIGKILL in body", "isolated", around.SURVIVED),
        ("gc.get_objects raises", "in place", around.SURVIVED),
        ("MemoryError in set-up", "in place", around.SURVIVED),
        ("loop: return at 1", "in place", around.SURVIVED),
        ("fork: both processes return", "in place", around.SURVIVED),
    ],
)
def test_some_of_the_faults(tmp_path: Path, name: str, mode: str, result: str) -> None:
    row = run_fault(FAULTS[name], mode, tmp_path / "run")
    assert row.result == result, row
    assert row.name in format_table([replace(row, result=around.HANG)])


def test_figures_of_a_log() -> None:
    # 2 ms per test at first, 3 ms from the hundredth test on, and 100 bytes per test.
    rows, cpu = [], 0
    for number in range(1000):
        cpu += 3_000_000 if number >= 200 else 2_000_000
        rows.append((cpu, 10_000 + 100 * number))
    assert many_tests.hundreds(rows) == pytest.approx((2.0, 3.0))
    assert many_tests.rss_growth(rows) == pytest.approx(100)
