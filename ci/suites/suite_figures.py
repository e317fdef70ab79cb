"""Draw the sample of a suite, read the outcomes of its runs, and compute the figures that `ci/suites.py` prints."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from statistics import median
from typing import Any, Final
from xml.etree import ElementTree as ET

# A line of `-rA`: the outcome, and the test or, where pytest counts equal skips together, their number and line. The
# message after it may differ from run to run: it is cut off. A test that passed has none, and any text in its name.
_OUTCOME_LINE: Final = re.compile(
    r"^(?:(?P<passed>PASSED \S.*)|(?P<skipped>SKIPPED \[\d+\] \S+?)(?:: .*)?|(?P<other>[A-Z]{4,}(?: [A-Z]+)? \S.*?)(?: - .*)?)$"
)
# The worst of several findings on one test counts; an outcome that is not here comes first.
_MILDEST_FIRST: Final = ("ok", "unavailable", "inconclusive", "does not repeat", "known")
_TABLE: Final = """\
| suite | tests | judged | ok | red (causes) | unclosed | known | inconclusive | does not repeat | differing | CPU ratio |\
 first pass | before | median ms | CPU ms/test |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |"""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the sample: the lines of `-rA` without their messages, and the seconds of each test.

    `session` is what else a user sees of it: the exit status, the line of counts, and the JUnit report. `cpu` is the CPU
    seconds of the test loop, with its child processes; the rest is the start and the collection.
    """

    outcomes: Counter[str]
    session: Counter[str]
    cpu: float
    durations: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """What is reported of a suite.

    Attributes:
        passed: How many of the sample pass in the plain run.
        outcomes: Those of them that have a verdict, by outcome: ok, leak, over_budget, unclosed, known, inconclusive,
            does not repeat.
        red: The red tests of each cause, by its fingerprint.
        notes: A line for each other finding that is not ok, and for each test that passes plainly and has no verdict.
        differing: Outcomes that differ from the plain run, except for the leak of a test with a red finding.
        differing_without_failing: What differs under `--leakcheck-fail-on=none`: outcomes, and what else a user sees.
        ratios: CPU seconds of the judged run by those of the plain run and by those of the plugin `before`, and of the
            judged first pass by those of the plain one.
        median_seconds: Duration of the median test in the plain run.
    """

    suite: str
    tests: int
    passed: int
    outcomes: Counter[str]
    red: Mapping[str, Sequence[str]]
    notes: Sequence[str]
    differing: Sequence[str]
    differing_without_failing: Sequence[str]
    ratios: Mapping[str, float]
    median_seconds: float
    cpu_per_judged: float

    def __str__(self) -> str:
        judged, outcomes = self.outcomes.total(), self.outcomes
        cells = (
            self.suite,
            self.tests,
            f"{judged} of {self.passed}",
            outcomes["ok"],
            f"{sum(map(len, self.red.values()))} ({len(self.red)})",
            *(outcomes[one] for one in ("unclosed", "known", "inconclusive", "does not repeat")),
            f"{len(self.differing)} / {len(self.differing_without_failing)}",
            f"{self.ratios['plain']:.1f}",
            *(f"{self.ratios[one]:.2f}" if one in self.ratios else "-" for one in ("first pass", "before")),
            f"{self.median_seconds * 1000:.1f}",
            f"{self.cpu_per_judged * 1000:.0f}",
        )
        lines = [f"{_TABLE}\n| {' | '.join(map(str, cells))} |"]
        lines += [f"red {cause}: {', '.join(tests)}" for cause, tests in self.red.items()]
        lines += [*self.notes, *(f"differs: {line}" for line in self.differing)]
        lines += [f"differs under --leakcheck-fail-on=none: {line}" for line in self.differing_without_failing]
        return "\n  ".join(lines)


def draw(collected: Sequence[str], wanted: int, seed: int) -> list[str]:
    """Return a sample of node ids: one case of each function first, spread evenly over the files.

    A test that is new in a release changes little: which tests come first depends on their names and the seed alone.
    """

    def chance(test: str) -> bytes:
        return sha256(f"{seed} {test}".encode()).digest()

    functions: dict[str, list[str]] = {}
    for test in collected:
        functions.setdefault(test.partition("[")[0], []).append(test)
    files: dict[str, list[list[str]]] = {}
    for function, cases in functions.items():
        cases.sort(key=chance)
        files.setdefault(function.partition("::")[0], []).append(cases)
    for of_file in files.values():
        of_file.sort(key=lambda cases: chance(cases[0].partition("[")[0]))
    order: list[str] = []
    # The n-th case of every function, and of these the m-th function of every file.
    for number in range(max(map(len, functions.values()), default=0)):
        nth = ([cases[number] for cases in of_file if number < len(cases)] for of_file in files.values())
        order += [test for row in zip_longest(*nth) for test in row if test is not None]
        if len(order) >= wanted:
            break
    return order[:wanted]


def parse_outcomes(output: str, prefix: str = "") -> Counter[str]:
    """Return the lines of `-rA` without messages, nor the path of the root folder, each with how often it occurs."""
    _, _, summary = output.rpartition("short test summary info")
    found = (_OUTCOME_LINE.match(line) for line in summary.splitlines())
    return Counter(str(match[str(match.lastgroup)]).replace(f" {prefix}", " ", 1) for match in found if match)


def parse_session(output: str, status: int) -> Counter[str]:
    """Return the exit status, and pytest's last line without the time: it counts outcomes, and warnings too."""
    counts = [line for line in output.splitlines() if re.search(r" in [\d.]+s\b", line)][-1:]
    return Counter([f"exit status {status}", *(line.rpartition(" in ")[0] for line in counts)])


def parse_junit(text: str) -> Counter[str]:
    """Return what a JUnit report holds of each test, and its totals, without times and messages."""
    found: Counter[str] = Counter()
    for suite in ET.fromstring(text).iter("testsuite"):  # noqa: S314 - a file of our own run
        totals = (f"{name}={suite.get(name)}" for name in ("tests", "failures", "errors", "skipped"))
        found[f"junit {' '.join(totals)}"] += 1
        for case in suite.iter("testcase"):
            inside = sorted(element.tag for element in case)
            found[f"junit {case.get('classname')}::{case.get('name')} {' '.join(inside) or 'passed'}"] += 1
    return found


def compare(plain: Counter[str], other: Counter[str], red: Sequence[str] = ()) -> list[str]:
    """Return the outcomes that only one of two runs has, except for one more report of each red test."""
    leaks = Counter(f"LEAK {test}" for test in red)
    return [*(f"- {line}" for line in plain - other), *(f"+ {line}" for line in other - plain - leaks)]


def _test_of(line: str) -> str:
    """Return the node id in an outcome; the word before it may be two: OVER BUDGET."""
    return re.sub(r"^[A-Z]{4,}(?: [A-Z]+)? ", "", line)


def compute(
    suite: str, runs: Sequence[Run], findings: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]
) -> Figures:
    """Compute the figures of a suite from its plain run, its judged run, and runs in which nothing fails, if any."""
    plain, judged, *without_failing = runs
    passed = {_test_of(line) for line in plain.outcomes if line.startswith("PASSED ")}
    passed -= {_test_of(line) for line in plain.outcomes if line.startswith("ERROR ")}
    worst: dict[str, str] = {}
    red: dict[str, list[str]] = {}
    notes: list[str] = []
    for finding in findings:
        test, first, outcome = finding["test"], finding["verdicts"][0], _outcome(finding)
        worst[test] = max(worst.get(test, "ok"), outcome, key=_badness)
        if finding["colour"] == "red":
            red.setdefault(finding["fingerprint"], []).append(test)
        elif outcome not in ("ok", "unavailable"):
            notes.append(f"{outcome} {test}: {first['resource']}: {first.get('reason') or finding['fingerprint']}")
    # Also a test that fails by itself can have a finding; the share is of those that pass.
    outcomes = Counter(outcome for test, outcome in worst.items() if test in passed)
    notes += [f"not judged: {test}" for test in sorted(passed - set(worst))]
    return Figures(
        suite=suite,
        tests=len(plain.durations),
        passed=len(passed),
        outcomes=outcomes,
        red=red,
        notes=notes,
        differing=compare(plain.outcomes, judged.outcomes, [test for tests in red.values() for test in tests]),
        differing_without_failing=[
            line
            for one in without_failing
            for line in compare(plain.outcomes + plain.session, one.outcomes + one.session)
        ],
        ratios={"plain": judged.cpu / plain.cpu, **ratios},
        median_seconds=median(plain.durations.values()),
        cpu_per_judged=judged.cpu / max(1, outcomes.total()),
    )


def _outcome(finding: Mapping[str, Any]) -> str:
    if finding.get("known"):
        return "known"
    outcome: str = finding["verdicts"][0]["verdict"]
    stopped = finding["recording"].get("stopped")
    return "does not repeat" if outcome == "inconclusive" and stopped == "failed" else outcome


def _badness(outcome: str) -> int:
    return _MILDEST_FIRST.index(outcome) if outcome in _MILDEST_FIRST else len(_MILDEST_FIRST)
