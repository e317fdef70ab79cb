from __future__ import annotations

from dataclasses import replace

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude
from pytest_leakcheck.model.culprit import Remainder
from pytest_leakcheck.model.finding import Finding, UnjudgedGrowth, Verdict
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.summary import Tally, fold, summary_lines


def finding(test: str, *verdicts: Verdict, held: str = "") -> Finding:
    budgets = tuple(Budget(verdict.resource, 0) for verdict in verdicts)
    kept = {verdicts[0].resource: (Remainder(held, 17),)} if held else {}
    recording = Recording(f"tests/test_loader.py::{test}", (), seconds=1.25)
    return conclude(
        Result(Plan(recording.test, budgets), recording, verdicts, kept), Policy(("leak", "over_budget", "unclosed"))
    )


def leak(test: str = "test_switch") -> Finding:
    verdict = Verdict("fd", "leak", slope=1.0, level=13, iterations=17, reason="+1.0/iter sustained over 17 iterations")
    return finding(test, verdict, held="/data/episodes/video_0001.mp4")


WAITING = finding("test_short", Verdict("fd", "inconclusive", iterations=8, reason="8 iterations, 13 needed"))
CLEAN = finding(
    "test_clean",
    Verdict("fd", "ok", iterations=46, floor=0.125, reason="one-off +1 at iteration 7"),
    Verdict("heap", "ok", iterations=58, floor=17.0),
)
WEAKER = finding("test_weaker", Verdict("fd", "ok", iterations=13, floor=0.5), Verdict("heap", "ok", floor=4.0))


def shown(*findings: Finding, wanted: str = "failed") -> list[tuple[str, str]]:
    return list(summary_lines(findings, Tally(findings), wanted))


def test_the_first_line_counts_verdicts_and_says_what_it_cost() -> None:
    findings = Tally([leak(), WAITING, CLEAN, WEAKER])
    assert findings.headline(12.5) == "4 tests: 2 ok · 1 leak · 1 inconclusive · repeating took 5.0 s"


def test_the_first_line_accounts_for_each_test_once() -> None:
    ends = replace(WAITING.recording, test="tests/test_loader.py::test_once", stopped="failed")
    tally = Tally([leak(), leak("test_twin"), replace(WAITING, test=ends.test, recording=ends), CLEAN])
    # A test has a report for each of its phases, and a finding with one of them.
    for finding in (leak(), CLEAN):
        tally.add_run(finding.test, "")
    for name, reason in (("test_skips", ""), ("test_fails", ""), ("test_plain", "without a mark")):
        for _phase in range(3):
            tally.add_run(name, reason)
    assert tally.headline(12.5) == (
        "7 tests: 1 ok · 2 leak · 1 not repeatable · 3 not judged (2 fail or skip by themselves, 1 without a mark) · "
        "repeating took 5.0 s"
    )
    same = Tally([leak(), replace(leak(), recording=replace(leak().recording, test="t"))])
    assert same.headline(9).startswith("1 test: 1 leak · ")


def test_a_leak_that_is_not_the_projects_is_not_counted_among_those_that_fail() -> None:
    yellow = (replace(leak().verdict, colour="yellow"),)
    spared = [replace(leak(test), verdicts=yellow, third_party="known: click<9") for test in ("test_one", "test_two")]
    tally = Tally([*spared, CLEAN])
    assert tally.headline(9).startswith("3 tests: 1 ok · 2 third-party · ")
    assert tally.how_to_fix == []
    # Of two causes, one fails no test.
    assert Tally([leak(), replace(leak("test_two"), verdicts=yellow)]).headline(9).startswith("2 tests: 2 leak · ")
    # Another verdict on the test is red.
    assert Tally([replace(leak(), third_party="known: click<9")]).headline(9).startswith("1 test: 1 leak · ")


def test_nothing_judged_has_a_line_of_its_own() -> None:
    tally = Tally()
    assert tally.nothing_judged == ""
    tally.add_run("test_plain", "without a mark")
    assert tally.nothing_judged == (
        "leakcheck: 0 of 1 tests carry a budget, nothing was judged: mark tests, or use --leakcheck-scope=all"
    )
    for reason in ("", "run once with --trace"):
        tally.add_run("test_other", reason)
        assert tally.nothing_judged == "leakcheck: nothing was judged"
    tally.add(CLEAN)
    assert tally.nothing_judged == ""


def test_by_default_only_what_is_not_green_has_lines() -> None:
    assert shown(leak(), CLEAN, WAITING, WEAKER) == [
        ("red", f"{leak().fingerprint[:6]}  fd +1.0/iter — 17 × video_0001.mp4 (17 iterations)"),
        ("dim", "  tests/test_loader.py::test_switch"),
        ("yellow", f"{WAITING.fingerprint[:6]}  fd inconclusive: 8 iterations, 13 needed"),
        ("dim", "  tests/test_loader.py::test_short"),
        ("dim", f"  how to fix: {GUIDE}"),
    ]


def test_a_reason_that_does_not_fit_is_written_out_below() -> None:
    long = finding(
        "test_long", Verdict("fd", "inconclusive", iterations=8, reason="rises and falls " * 6, advice="wait")
    )
    _headline, _test, *below = shown(long)
    assert " ".join(line.strip() for _colour, line in below) == "rises and falls " * 6 + "; wait"


def test_tests_whose_memory_rose_while_the_time_ended_are_named() -> None:
    still = replace(finding("test_still", Verdict("fd", "ok")), out_of_time=("heap",))
    rose = replace(still, test="test_rose", seen=(UnjudgedGrowth("heap", 100.0, 1300),))
    line = "memory not judged in 2 of 2 tests, for lack of time: --leakcheck-max-time"
    assert shown(still, rose) == [("yellow", f"{line}; it"), ("yellow", "  rose in test_rose")]
    # What rose is judged, or was not looked at for another reason.
    assert shown(replace(rose, out_of_time=("object",)))[0][1].endswith("--leakcheck-max-time")


def test_the_sensitivity_is_one_line_if_it_is_wanted() -> None:
    """Of each resource the weakest floor, from whichever test."""
    assert shown(CLEAN, WEAKER) == []
    assert shown(CLEAN, WEAKER, wanted="sensitivity") == [
        ("dim", "  sensitivity (each ok test would have caught): fd 1 in 2 iter; heap 17 B/iter"),
    ]
    same = finding("test_same", Verdict("fd", "ok", floor=0.5), Verdict("thread", "ok", floor=0.5))
    assert shown(same, wanted="sensitivity")[0][1].endswith(": fd, thread 1 in 2 iter")


def test_all_shows_each_green_test_with_what_it_would_have_seen() -> None:
    assert shown(CLEAN, WEAKER, wanted="all") == [
        ("green", "ok  tests/test_loader.py::test_clean"),
        ("dim", "  would have caught fd 1 in 8 iter; heap 17 B/iter"),
        ("dim", "  fd: one-off +1 at iteration 7"),
        ("green", "ok  tests/test_loader.py::test_weaker"),
        ("dim", "  would have caught fd 1 in 2 iter; heap 4 B/iter"),
    ]


def test_none_shows_nothing() -> None:
    assert shown(leak(), CLEAN, wanted="none") == []
    assert shown() == []


def test_one_fingerprint_has_one_line() -> None:
    assert shown(leak(), leak()) == [
        ("red", f"{leak().fingerprint[:6]}  fd +1.0/iter — 17 × video_0001.mp4 (17 iterations)"),
        ("dim", "  tests/test_loader.py::test_switch (2 times)"),
        ("dim", f"  how to fix: {GUIDE}"),
    ]
    assert len(shown(leak(), leak("test_other"))) == 5


def test_no_line_is_wider_than_a_terminal() -> None:
    long = finding("test_" + "x" * 120, Verdict("fd", "leak", slope=1.0, iterations=17), held="/" + "y" * 120)
    clean = finding("test_" + "z" * 120, *CLEAN.verdicts, Verdict("object", "ok", floor=1.0, reason="moved " * 30))
    for wanted in ("failed", "all"):
        lines = shown(long, clean, wanted=wanted)
        assert lines
        assert all(len(line) <= 80 for _colour, line in lines)


def test_what_has_no_floor_claims_none() -> None:
    bare = finding("test_bare", Verdict("heap", "ok", iterations=5))
    for wanted in ("failed", "all"):
        assert not [line for _colour, line in shown(bare, wanted=wanted) if "would have" in line]


def test_no_sensitivity_is_stated_for_what_a_green_test_has_not_counted_and_it_says_so() -> None:
    reason = "1 child process: its memory is not counted"
    beside = finding("test_beside_a_helper", Verdict("fd", "ok", floor=0.5), Verdict("rss", "ok", reason=reason))
    alone = finding("test_alone", Verdict("fd", "ok", floor=0.5), Verdict("rss", "ok", floor=4096.0))
    assert [text.strip() for _colour, text in shown(alone, wanted="sensitivity")] == [
        "sensitivity (each ok test would have caught): fd 1 in 2 iter; rss 4.0 KiB/iter"
    ]
    assert [text.strip() for _colour, text in shown(alone, beside, wanted="sensitivity")] == [
        "sensitivity (each ok test would have caught): fd 1 in 2 iter",
        f"rss: {reason}",
        "(tests/test_loader.py::test_beside_a_helper)",
    ]


def test_a_folded_line_keeps_a_number_with_what_it_counts() -> None:
    line = f"{'x' * 76} 12 inconclusive (2 causes)"
    assert fold(line) == ["x" * 76, "  12 inconclusive (2 causes)"]
