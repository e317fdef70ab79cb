"""Summarize a session: at the end of the terminal output, and for a job of GitHub Actions."""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Final

from pytest_leakcheck.model.culprit import is_installed, short_file, short_id
from pytest_leakcheck.model.escaping import in_markdown, in_message, in_property
from pytest_leakcheck.model.finding import WORST_FIRST, Cause, Finding, format_tests
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_count, format_rates
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.finding_text import (
    WIDTH,
    cycle_text,
    floors_text,
    green_lines,
    headline,
    uncounted,
)
from pytest_leakcheck.report.glyphs import shorten

# The outcome of a test that passed at first and failed in a later iteration, in the count of tests.
_NOT_REPEATABLE: Final = "not repeatable"
# The outcomes of a test whose leak the file of known leaks lists, or is that of a library.
_SPARED: Final = ("known", "third-party")
_KNOWN, _THIRD_PARTY = _SPARED
_ORDER: Final = (
    *WORST_FIRST[: WORST_FIRST.index("inconclusive")],
    *_SPARED,
    _NOT_REPEATABLE,
    *WORST_FIRST[3:],
)
# Why a test that no mark and no option selects has no verdict.
_NO_MARK: Final = ("without a mark", "opted out")
# Why a test has no verdict, if nothing else is known.
_BY_ITSELF: Final = "fail or skip by themselves"
# GitHub shows this many annotations of a step.
_MOST_ANNOTATIONS: Final = 10
# GitHub rejects a summary of more than 1 MiB.
_MOST_BYTES: Final = 900 * 1024


class Tally:
    """What the section says of all tests together, without their findings.

    Attributes:
        worst: The worst outcome of each judged test, over all its loops and blocks, or
            `_NOT_REPEATABLE`.
        causes: The fingerprints of the findings that are not green, by outcome.
        red: Whether a finding is red.
        not_judged: Why each other test is not judged, in a few words; empty if it failed or was
            skipped by itself.
        out_of_time: How many tests are not judged on all resources, because their time was over.
        rising: Those of them in which such a resource rose.
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self.worst: dict[str, str] = {}
        self.causes: dict[str, set[str]] = {}
        self.red = False
        self.not_judged: dict[str, str] = {}
        self.out_of_time = 0
        self.rising: list[str] = []
        self.seconds = 0.0
        # Of all tests, how many calls can raise, and how many were made to.
        self.failing: list[int] = []
        self.unavailable: dict[str, str] = {}
        # Why the processes of isolated tests were started, and not forked.
        self.not_forked: Counter[str] = Counter()
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        outcome: str = _KNOWN if finding.known else finding.verdict.outcome
        if finding.third_party and finding.colour != "red":
            outcome = _THIRD_PARTY
        if outcome == "inconclusive" and finding.recording.stopped == "failed":
            outcome = _NOT_REPEATABLE
        if finding.failing is not None:
            found, judged = self.failing or (0, 0)
            self.failing = [found + finding.failing.found, judged + finding.failing.judged]
        self.red |= finding.colour == "red"
        if finding.fault is not None and finding.colour != "red" and outcome not in _SPARED:
            # The outcome of a test is that of its ordinary run.
            self.seconds += finding.recording.seconds
            return
        # The report of an earlier phase had no finding.
        self.not_judged.pop(finding.test, None)
        # One text for all tests: the outcome of a finding that was decoded has a text of its own.
        self.worst[finding.test] = sys.intern(
            min(outcome, self.worst.get(finding.test, "ok"), key=_ORDER.index)
        )
        if finding.colour != "green":
            self.causes.setdefault(outcome, set()).add(finding.known or finding.fingerprint)
        self.out_of_time += bool(finding.out_of_time)
        if any(one.resource in finding.out_of_time for one in finding.seen):
            self.rising.append(finding.test)
        self.seconds += finding.recording.seconds
        self.unavailable |= finding.recording.unavailable
        self.not_forked.update(
            text for name, text in finding.recording.environment.items() if name == "not forked"
        )

    def add_run(self, test: str, reason: str) -> None:
        """Add a test that has run, and why it is not judged, or empty; `add` adds its findings."""
        if test not in self.worst:
            self.not_judged[test] = reason

    def not_judged_for(self, reason: str) -> list[str]:
        """Return the tests that are not judged for a reason."""
        return [test for test, why in self.not_judged.items() if why == reason]

    @property
    def tests(self) -> int:
        return len(self.worst) + len(self.not_judged)

    def headline(self, seconds: float) -> str:
        """Return the line on all tests of a session that took `seconds`; empty if none has run."""
        if not self.tests:
            return ""
        counts = Counter(self.worst.values())
        parts = []
        for outcome in (one for one in ("ok", *_ORDER[:-1]) if counts[one]):
            count, causes = counts[outcome], len(self.causes.get(outcome, ()))
            of = f" ({format_count(causes, 'cause')})" if 0 < causes < count else ""
            parts.append(f"{count:,} {outcome.replace('_', ' ')}{of}")
        if self.not_judged:
            counted = Counter(reason or _BY_ITSELF for reason in self.not_judged.values())
            # By number, then by name: xdist workers report in any order.
            reasons = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
            parts.append(
                f"{len(self.not_judged):,} not judged ({', '.join(f'{count:,} {reason}' for reason, count in reasons)})"
            )
        if self.worst:
            # With xdist workers the sum covers all of them and can exceed the wall time.
            parts.append(
                f"repeating took {self.seconds:.1f} s{'' if self.seconds <= seconds else ' in all workers'}"
            )
        return f"{format_count(self.tests, 'test')}: " + " · ".join(parts)

    @property
    def nothing_judged(self) -> str:
        """A line if no test was judged, with what to do; empty if one was, or if none has run."""
        if self.worst or not self.tests:
            return ""
        if any(reason not in _NO_MARK for reason in self.not_judged.values()):
            return "leakcheck: nothing was judged"
        what = f"0 of {self.tests:,} tests carry a budget, nothing was judged"
        return f"leakcheck: {what}: mark tests, or use --leakcheck-scope=all"

    @property
    def memory_not_judged(self) -> str:
        """In which tests the time did not suffice to judge memory; empty if it did in all."""
        if not self.out_of_time:
            return ""
        line = f"memory not judged in {self.out_of_time:,} of {len(self.worst):,} tests, for lack of time: --leakcheck-max-time"
        return f"{line}; it rose in {format_tests(self.rising)}" if self.rising else line

    @property
    def failing_paths(self) -> list[str]:
        """A line on the calls that were made to raise; none if none was to be."""
        if not self.failing:
            return []
        found, judged = self.failing
        why = "beyond 20 of a test or its max_time, or because it leaks or fails anyway"
        left = f"; {found - judged:,} left out, {why}" if judged < found else ""
        return [f"failing paths: {judged:,} of {format_count(found, 'call')} made to raise{left}"]

    @property
    def not_read(self) -> list[str]:
        """A line for each resource that cannot be read here."""
        return [f"not read here: {name} ({reason})" for name, reason in self.unavailable.items()]

    @property
    def started(self) -> list[str]:
        """A line for each reason for which processes of isolated tests were started."""
        counted = self.not_forked.most_common()
        return [
            f"started, not forked: {format_count(count, 'isolated test')} ({reason})"
            for reason, count in counted
        ]

    @property
    def how_to_fix(self) -> list[str]:
        """A line on what to do, if a test is red."""
        return [f"how to fix: {GUIDE}"] if self.red else []


def summary_lines(
    findings: Sequence[Finding], tally: Tally, wanted: str
) -> Iterator[tuple[str, str]]:
    """Yield the lines of the section as (color, text); findings with one fingerprint share a line.

    Findings come in order of arrival; green ones may be missing if they are not `wanted`:
    ``failed`` leaves out green ones, ``sensitivity`` adds, per resource, the smallest leak that all
    of the green findings exclude, ``all`` lists each green finding, and ``none`` yields nothing.
    """
    if wanted == "none":
        return
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.colour != "green":
            groups.setdefault(finding.known or finding.fingerprint, []).append(finding)
    for group in groups.values():
        yield from _group_lines(group)
    for line in fold(tally.memory_not_judged):
        yield "yellow", line
    green = [finding for finding in findings if finding.colour == "green" and finding.fault is None]
    for line in _sensitivity_lines(green) if wanted == "sensitivity" else ():
        yield from _wrap_dim(line)
    for finding in green if wanted == "all" else ():
        yield "green", shorten(f"ok  {finding.test}", WIDTH)
        for line in green_lines(finding):
            yield from _wrap_dim(line)
    for line in (*tally.failing_paths, *tally.not_read, *tally.started, *tally.how_to_fix):
        yield from _wrap_dim(line)


def _sensitivity_lines(green: Sequence[Finding]) -> Iterator[str]:
    if floors := floors_text(green):
        yield f"sensitivity (each ok test would have caught): {floors}"
    for (resource, reason), some in uncounted(green).items():
        yield f"{resource}: {reason} ({format_tests([finding.test for finding in some])})"


def _group_lines(group: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    first, tests = group[0], format_tests(list(dict.fromkeys(finding.test for finding in group)))
    if len(group) > 1 and tests == first.test:
        tests += f" ({len(group)} times)"
    label = f"{short_id(first.known or first.fingerprint)}  {'known: ' if first.known else ''}"
    line = headline(first, WIDTH - len(label))
    yield first.colour, label + line
    yield "dim", shorten(f"  {tests}{_format_rates(group)}", WIDTH)
    if first.colour == "yellow" and not first.known:
        # A red finding has a block of its own in the output; a yellow one is explained only here.
        reason = "" if line.endswith(first.verdict.reason) else first.verdict.reason
        yield from _wrap_dim("; ".join(filter(None, (reason, first.verdict.advice))))
        if first.culprit is not None and (cycle := cycle_text(first.culprit)):
            yield from _wrap_dim(f"cycle: {cycle}")
        if first.third_party:
            yield from _wrap_dim(f"third-party, {first.third_party}")


def _format_rates(group: Sequence[Finding]) -> str:
    """Return the lowest and highest rate of findings with one cause; empty if equal or no rates."""
    if any(
        finding.scaled is not None or finding.verdict.outcome not in ("leak", "unclosed")
        for finding in group
    ):
        return ""
    unit = find_resource(group[0].verdict.resource).unit
    rates = format_rates([one.verdict.slope for one in group], unit)
    return f" ({rates})" if " to " in rates else ""


def fold(line: str) -> list[str]:
    """Break a line that is longer than the report is wide; the next ones are indented.

    A number stays with what it counts.
    """
    whole = re.sub(r"(\d) ", "\\1\xa0", line)
    lines = textwrap.wrap(
        whole, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [one.replace("\xa0", " ") for one in lines]


def _wrap_dim(text: str) -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(text, WIDTH - 2, break_long_words=False, break_on_hyphens=False):
        yield "dim", f"  {line}"


def annotate(causes: Sequence[Cause], root: Path) -> Iterator[str]:
    """Yield a workflow command per red cause: at its line, or its first test if outside `root`."""
    red = [cause for cause in causes if cause.colour == "red"]
    for cause in red[:_MOST_ANNOTATIONS]:
        place = _place(cause, root)
        title = f"{cause.outcome.replace('_', ' ')} {short_id(cause.finding)}"
        yield f"::error {place},title={in_property(title)}::{in_message(_message(cause))}"
    if len(red) > _MOST_ANNOTATIONS:
        yield f"::notice title=leakcheck::{len(red) - _MOST_ANNOTATIONS} more in the summary of the job"


def summary_table(headline: str, causes: Sequence[Cause], root: Path) -> str:
    """Return a session's summary in Markdown: the line on all tests, and the causes."""
    lines = ["### leakcheck", "", in_markdown(headline), ""]
    if causes:
        lines += ["| | cause | growth | line | held by | tests |", "|---|---|---|---|---|---|"]
    size = sum(map(len, lines))
    for number, cause in enumerate(causes):
        word = f"known {cause.outcome}" if cause.known else cause.outcome.replace("_", " ")
        file = cause.site and (_relative(cause.site.file, root) or short_file(cause.site.file))
        line = f"{file}:{cause.site.line}" if cause.site else ""
        cells = (
            short_id(cause.finding),
            _growth(cause),
            line,
            _owner(cause),
            format_tests(cause.tests),
        )
        # In code, GitHub links no names of people, issues and mails.
        row = f"| {' | '.join((word, *(f'<code>{in_markdown(cell)}</code>' if cell else '' for cell in cells)))} |"
        size += len(row.encode()) + 1
        if size > _MOST_BYTES:
            lines += ["", f"{len(causes) - number:,} more causes are left out."]
            break
        lines.append(row)
    return "\n".join(lines) + "\n"


def _growth(cause: Cause) -> str:
    return f"{cause.resource} {cause.rates}".rstrip()


def _owner(cause: Cause) -> str:
    return cause.owner.name if cause.owner else ""


def _message(cause: Cause) -> str:
    made = (
        f"in {cause.site.function}, {short_file(cause.site.file)}:{cause.site.line}"
        if cause.site
        else ""
    )
    held = f"held by {_owner(cause)}" if cause.owner else ""
    return "; ".join(filter(None, (_growth(cause), made, held, format_tests(cause.tests))))


def _place(cause: Cause, root: Path) -> str:
    if cause.site is not None and (file := _relative(cause.site.file, root)):
        return f"file={in_property(file)},line={cause.site.line}"
    return f"file={in_property(cause.tests[0].partition('::')[0])}"


def _relative(file: str, root: Path) -> str:
    """Return a path within the repository; empty if elsewhere, or in an environment in it."""
    try:
        inside = PurePath(file).relative_to(root)
    except ValueError:
        return ""
    return "" if is_installed(str(inside)) else inside.as_posix()
