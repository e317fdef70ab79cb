"""Draw the sample of a suite, read the outcomes of its runs, and compute the figures that `ci/suites.py` prints."""

from __future__ import annotations

import random
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

# A line of `-rA`: the outcome, and the test or, where pytest counts equal skips together, their number and line. The
# message after it may differ from run to run: it is cut off. A test that passed has none, and any text in its name.
_OUTCOME_LINE: Final = re.compile(
    r"^(?:(?P<passed>PASSED \S.*)|(?P<skipped>SKIPPED \[\d+\] \S+?)(?:: .*)?|(?P<other>[A-Z]{4,}(?: [A-Z]+)? \S.*?)(?: - .*)?)$"
)
_SUMMARY: Final = "short test summary info"
_PASSED: Final = "PASSED"
# The worst of several findings on one test counts; an outcome that is not here comes first.
_MILDEST_FIRST: Final = ("ok", "unavailable", "inconclusive", "does not repeat", "known")

_HEADS: Final = (
    "suite",
    "tests",
    "pass",
    "judged",
    "decided",
    "red (causes)",
    "unclosed",
    "known",
    "inconcl.",
    "not rep.",
    "differ",
    "CPU ×",
    "median ms",
    "CPU ms/test",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the sample.

    Attributes:
        outcomes: The lines of `-rA` without their messages, each with its number.
        session_cpu: CPU seconds of the whole run, with its child processes.
        cpu: CPU seconds of the test loop, with its child processes; the rest is the start and the collection.
        wall: Seconds of the test loop.
        tests: The number of tests.
        durations: Seconds of each test, in a run that is not judged.
        not_judged: Why tests were not judged, where the plugin gives a reason.
    """

    outcomes: Counter[str]
    session_cpu: float
    cpu: float
    wall: float
    tests: int
    durations: Mapping[str, float]
    not_judged: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is reported of a suite.

    Attributes:
        suite: Its name.
        release: The release.
        collected: The number of tests that it has.
        tests: The size of the sample.
        passed: How many of these pass in the plain run.
        judged: How many of those have a verdict, which may be `inconclusive`.
        outcomes: The judged tests by outcome: ok, leak, over_budget, unclosed, known, inconclusive, does not repeat.
        red: The red tests of each cause, by its fingerprint.
        yellow: The tests of each other finding that is not ok, by outcome and fingerprint.
        inconclusive: Why tests are inconclusive: the resource and the reason, by test.
        not_repeated: Why tests do not repeat, by test.
        not_judged: Why tests that pass plainly are not judged, by test.
        differing: Outcomes that differ from the plain run, except for tests with a red finding.
        differing_without_failing: Outcomes that differ under `--leakcheck-fail-on=none`.
        plain_cpu: CPU seconds of the tests in the plain run.
        judged_cpu: CPU seconds of the tests when they are judged.
        cpu_ratio: The quotient of the two.
        session_cpu_ratio: The same quotient with the start and the collection, which both runs have.
        median_seconds: Duration of the median test in the plain run.
        cpu_per_judged: CPU seconds of the judged run per judged test.
        wall_per_test: Seconds of the judged run per test.
    """

    suite: str
    release: str
    collected: int
    tests: int
    passed: int
    judged: int
    outcomes: dict[str, int]
    red: dict[str, list[str]]
    yellow: dict[str, list[str]]
    inconclusive: dict[str, str]
    not_repeated: dict[str, str]
    not_judged: dict[str, str]
    differing: list[str]
    differing_without_failing: list[str]
    plain_cpu: float
    judged_cpu: float
    cpu_ratio: float
    session_cpu_ratio: float
    median_seconds: float
    cpu_per_judged: float
    wall_per_test: float

    @property
    def decided(self) -> int:
        """How many tests have a verdict that decides: neither `inconclusive` nor `does not repeat`."""
        undecided = ("inconclusive", "does not repeat", "unavailable")
        return self.judged - sum(self.outcomes.get(outcome, 0) for outcome in undecided)


def draw(collected: Sequence[str], wanted: int, seed: int) -> list[str]:
    """Return a sample of node ids: one case of each function first, spread evenly over the files.

    Args:
        collected: The node ids of all tests.
        wanted: The size of the sample.
        seed: The same seed draws the same sample from the same tests.
    """
    chance = random.Random(seed)  # noqa: S311 - a sample, no secret
    functions: dict[str, list[str]] = {}
    for test in collected:
        functions.setdefault(test.partition("[")[0], []).append(test)
    files: dict[str, list[list[str]]] = {}
    for function, cases in functions.items():
        chance.shuffle(cases)
        files.setdefault(function.partition("::")[0], []).append(cases)
    for of_file in files.values():
        chance.shuffle(of_file)
    order: list[str] = []
    # The n-th case of every function, and of these the m-th function of every file.
    for number in range(max(map(len, functions.values()), default=0)):
        nth = ([cases[number] for cases in of_file if number < len(cases)] for of_file in files.values())
        order += [test for row in zip_longest(*nth) for test in row if test is not None]
        if len(order) >= wanted:
            break
    return order[:wanted]


def parse_outcomes(output: str, prefix: str = "") -> Counter[str]:
    """Return the lines of `-rA`, without the messages, each with how often it occurs.

    Args:
        output: The output of pytest.
        prefix: The path of the root folder, as the lines show it; it is cut off, as in node ids.
    """
    _, _, summary = output.rpartition(_SUMMARY)
    found = (_OUTCOME_LINE.match(line) for line in summary.splitlines())
    return Counter(str(match[str(match.lastgroup)]).replace(f" {prefix}", " ", 1) for match in found if match)


def compare(plain: Counter[str], other: Counter[str], red: Sequence[str] = ()) -> list[str]:
    """Return the outcomes that only one of two runs has, except for those of red tests.

    Args:
        plain: The outcomes of the plain run.
        other: Those of the other run.
        red: The tests whose outcome may differ.
    """
    differing = [*(f"- {line}" for line in plain - other), *(f"+ {line}" for line in other - plain)]
    allowed = set(red)
    return [line for line in differing if _test_of(line[2:]) not in allowed]


def _test_of(line: str) -> str:
    """Return the node id in an outcome; the word before it may be two: OVER BUDGET."""
    return re.sub(r"^[A-Z]{4,}(?: [A-Z]+)? ", "", line)


def compute(
    suite: str, release: str, collected: int, runs: Sequence[Run], findings: Sequence[Mapping[str, Any]]
) -> Figures:
    """Compute the figures of a suite.

    Args:
        suite: Its name.
        release: Its release.
        collected: How many tests it has.
        runs: The plain run, the judged run, and the judged run in which nothing fails.
        findings: The findings of the judged run.
    """
    plain, judged, without_failing = runs
    passed = {_test_of(line) for line in plain.outcomes if line.startswith(f"{_PASSED} ")}
    passed -= {_test_of(line) for line in plain.outcomes if line.startswith("ERROR ")}
    worst: dict[str, str] = {}
    causes: dict[str, dict[str, list[str]]] = {"red": {}, "yellow": {}}
    inconclusive: dict[str, str] = {}
    not_repeated: dict[str, str] = {}
    for finding in findings:
        test, first = finding["test"], finding["verdicts"][0]
        outcome = _outcome(finding)
        worst[test] = max(worst.get(test, "ok"), outcome, key=_badness)
        if outcome == "inconclusive":
            inconclusive[test] = f"{first['resource']}: {first.get('reason', '')}"
        elif outcome == "does not repeat":
            not_repeated[test] = first.get("reason", "")
        elif (colour := finding["colour"]) != "green":
            name = finding["fingerprint"] if colour == "red" else f"{outcome} {finding['fingerprint']}"
            causes[colour].setdefault(name, []).append(test)
    red = [test for tests in causes["red"].values() for test in tests]
    # Also a test that fails by itself can have a finding; the share is of those that pass.
    of_passed = {test: outcome for test, outcome in worst.items() if test in passed}
    missing = sorted(passed - set(worst))
    return Figures(
        suite=suite,
        release=release,
        collected=collected,
        tests=plain.tests,
        passed=len(passed),
        judged=len(of_passed),
        outcomes=dict(Counter(of_passed.values()).most_common()),
        red=causes["red"],
        yellow=causes["yellow"],
        inconclusive=inconclusive,
        not_repeated=not_repeated,
        not_judged={test: judged.not_judged.get(test, "no reason given") for test in missing},
        differing=compare(plain.outcomes, judged.outcomes, red),
        differing_without_failing=compare(plain.outcomes, without_failing.outcomes),
        plain_cpu=round(plain.cpu, 2),
        judged_cpu=round(judged.cpu, 2),
        cpu_ratio=round(judged.cpu / plain.cpu, 2),
        session_cpu_ratio=round(judged.session_cpu / plain.session_cpu, 2),
        median_seconds=round(statistics.median(plain.durations.values()), 5),
        cpu_per_judged=round(judged.cpu / max(1, len(of_passed)), 4),
        wall_per_test=round(judged.wall / max(1, judged.tests), 4),
    )


def _outcome(finding: Mapping[str, Any]) -> str:
    if finding.get("known"):
        return "known"
    outcome: str = finding["verdicts"][0]["verdict"]
    return (
        "does not repeat" if outcome == "inconclusive" and finding["recording"].get("stopped") == "failed" else outcome
    )


def _badness(outcome: str) -> int:
    return _MILDEST_FIRST.index(outcome) if outcome in _MILDEST_FIRST else len(_MILDEST_FIRST)


def format_table(done: Sequence[Figures]) -> str:
    """Return the figures as text: a table, then what stands out in each suite."""
    rows = [_HEADS, *map(_row, done)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for figures in done:
        lines += _details(figures)
    return "\n".join(lines)


def _row(figures: Figures) -> tuple[str, ...]:
    def share(count: int) -> str:
        return f"{count} ({count / max(1, figures.passed):.1%})"

    outcomes = figures.outcomes
    return (
        f"{figures.suite} {figures.release}".strip(),
        str(figures.tests),
        str(figures.passed),
        share(figures.judged),
        share(figures.decided),
        f"{sum(map(len, figures.red.values()))} ({len(figures.red)})",
        str(outcomes.get("unclosed", 0)),
        str(outcomes.get("known", 0)),
        str(outcomes.get("inconclusive", 0)),
        str(outcomes.get("does not repeat", 0)),
        f"{len(figures.differing)} / {len(figures.differing_without_failing)}",
        f"{figures.cpu_ratio:.1f}",
        f"{figures.median_seconds * 1000:.1f}",
        f"{figures.cpu_per_judged * 1000:.0f}",
    )


def _details(figures: Figures) -> list[str]:
    lines = []
    for kind, tests in (*figures.red.items(), *figures.yellow.items()):
        word = "red" if kind in figures.red else ""
        lines.append(f"  {word} {kind}: {tests[0]}" + (f" and {len(tests) - 1} more" if tests[1:] else ""))
    for label, reasons in (
        ("inconclusive", figures.inconclusive),
        ("does not repeat", figures.not_repeated),
        ("not judged", figures.not_judged),
    ):
        lines += [f"  {label} {test}: {reason}" for test, reason in reasons.items()]
    lines += [f"  differs: {line}" for line in figures.differing]
    lines += [f"  differs under --leakcheck-fail-on=none: {line}" for line in figures.differing_without_failing]
    return [f"{figures.suite}:", *lines] if lines else lines
