"""Run every leak checker over every case, and print a table: the leaks it found, the causes it named, and its cost.

Each checker is installed into a separate environment under .venv/peers, and runs over each case in a fresh process.
Without --corpus, the cases are the project's own. For accurate times the machine must otherwise be idle; the verdicts
do not depend on that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

from checkers import CHECKERS, FORM, Checker
from subjects import Subject, read_cases, read_corpus
from venvs import ROOT, Missing, debug_interpreter, environment, inherited, run_command, version

_BENCH_FOLDER: Final = Path(__file__).resolve().parent
# Characters of the output that are stored before and after the match that reports a leak. After an error or a timeout,
# the last _CHARS_AFTER characters are stored.
_CHARS_BEFORE, _CHARS_AFTER = 200, 2000


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one checker over one subject.

    `outcome` is "found" (only if the process ended by itself), "quiet", "undecided", "error" or "timeout". `line`, `thing`
    and `owner` state whether the report names these, and are None if the subject has none. `calls` is None if the process
    did not end normally. `message` is the report of a leak, or the end of the output after an error or a timeout.
    """

    checker: str
    subject: str
    leaky: bool
    outcome: str
    line: bool | None
    thing: bool | None
    owner: bool | None
    calls: int | None
    seconds: float
    message: str


def run(checker: Checker, python: Path, subject: Subject, timeout: float) -> Row:
    """Run a checker over a subject, with the interpreter of its environment."""
    with tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        folder = Path(temporary)
        calls = folder / "calls"
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / f"{FORM}.py").write_text(checker.form)
        variables = {
            # Without CI, which changes the verdicts of some checkers.
            **inherited(),
            # Set here and not in code, because some checkers report changes to sys.path.
            "PYTHONPATH": os.pathsep.join((str(_BENCH_FOLDER), *subject.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": temporary,
            "BENCH_RUN": json.dumps({**asdict(subject), "calls": str(calls)}),
            **checker.environment,
        }
        began = time.perf_counter()
        output, code = run_command([str(python), *checker.command], folder, variables, timeout)
        seconds = time.perf_counter() - began
        count = int(calls.read_text()) if calls.exists() else None
    outcome = outcome_of(checker, output, code)
    # Names count only in a report of a leak.
    line, thing, owner = named(subject, output if outcome == "found" else "")
    message = _message_of(checker, output, outcome)
    return Row(
        checker.name, subject.name, subject.leaky, outcome, line, thing, owner, count, round(seconds, 3), message
    )


def main() -> int:
    """Run the checkers and print the table; return 2 if there is no such case."""
    peers = [checker.name for checker in CHECKERS[1:]]
    parser = argparse.ArgumentParser(description="What each leak checker finds, names and costs.")
    only = f"this checker and plain pytest; may be repeated; one of {', '.join(peers)}"
    parser.add_argument("--only", action="append", choices=peers, metavar="CHECKER", help=only)
    parser.add_argument("--case", action="append", metavar="NAME", help="this case; may be repeated")
    parser.add_argument("--corpus", type=Path, help="a folder of cases, a module each (default: tests/cases)")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="for one run (default: 120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    options = parser.parse_args()
    pythons = _find_pythons(options.only or peers)
    known = read_corpus(options.corpus) if options.corpus else read_cases(pythons[0][1])
    subjects = [subject for subject in known if not options.case or subject.name in options.case]
    if not subjects:
        print(f"no such case; there are {', '.join(subject.name for subject in known)}")
        return 2
    rows: list[Row] = []
    # Ordered by subject, so that a change in the load of the machine affects all checkers alike.
    for subject in subjects:
        for checker, python in pythons:
            rows.append(run(checker, python, subject, options.timeout))
            print(
                f"{subject.name:24} {checker.name:20} {rows[-1].outcome:9} {rows[-1].seconds:6.2f} s", file=sys.stderr
            )
            if options.json:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    print(table(rows))
    print("\nVersions:", "; ".join(version(python, checker.requires[-1]) for checker, python in pythons))
    return 0


def _find_pythons(wanted: Sequence[str]) -> list[tuple[Checker, Path]]:
    """Return the interpreter of each checker that can run here; print the reason why one cannot."""
    pythons = []
    for checker in CHECKERS:
        # All times are divided by those of plain pytest, so plain pytest always runs.
        if checker is not CHECKERS[0] and checker.name not in wanted:
            continue
        try:
            interpreter = debug_interpreter() if checker.debug else sys.executable
            pythons.append((checker, environment(ROOT / ".venv" / "peers", interpreter, checker.requires)))
        except (Missing, OSError, subprocess.SubprocessError) as error:
            print(f"{checker.name}: not run: {error}")
    return pythons


def outcome_of(checker: Checker, output: str, code: int | None) -> str:
    """Return the outcome of a run from its output and its exit status, which is None if it was killed."""
    if code is None:
        return "timeout"
    if code < 0:
        # A process that died of a signal is not trusted, whatever it printed.
        return "error"
    if checker.leak and re.search(checker.leak, output, re.MULTILINE):
        return "found"
    if checker.undecided and re.search(checker.undecided, output, re.MULTILINE):
        return "undecided"
    return "error" if code else "quiet"


def _message_of(checker: Checker, output: str, outcome: str) -> str:
    if outcome in ("quiet", "undecided"):
        return ""
    found = re.search(checker.leak, output, re.MULTILINE) if outcome == "found" else None
    return (
        output[max(0, found.start() - _CHARS_BEFORE) : found.end() + _CHARS_AFTER] if found else output[-_CHARS_AFTER:]
    )


def named(subject: Subject, report: str) -> tuple[bool | None, bool | None, bool | None]:
    """Return whether a report names a leaking line, the leaked object and its owner; None if the subject has none."""
    # Two kinds of text do not count, so they are replaced. A place in the subject's file contains the file's name,
    # which may describe the leak (leaky_mmap.py). A frame in the owner's code does not state what the owner keeps
    # alive.
    places = rf"\S*\b{re.escape(subject.file)}\S*(?: line \d+, in \S+)?"
    prose = re.sub(places, "PLACE", report).replace(subject.name, "SUBJECT")
    numbers = "|".join(map(str, subject.lines))
    line = rf"\b{re.escape(subject.file)}(?::|\"?,? line )(?:{numbers})\b"
    return (
        re.search(line, report) is not None if subject.lines else None,
        re.search(subject.thing, prose) is not None if subject.thing else None,
        re.search(subject.owner, prose) is not None if subject.owner else None,
    )


def table(rows: Sequence[Row]) -> str:
    """Return a table with a line per checker."""
    plain = {row.subject: row.seconds for row in rows if row.checker == CHECKERS[0].name}
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.checker, []).append(row)
    heads = ("checker", "found", "false alarms", "line", "object", "owner", "?", "errors", "calls", "time")
    lines = [heads, ("---", *["---:"] * 9), *(_summarize(group, plain) for group in groups.values())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _summarize(group: Sequence[Row], plain: dict[str, float]) -> tuple[str, ...]:
    leaky = [row for row in group if row.leaky]
    ratios = [row.seconds / plain[row.subject] for row in group if row.subject in plain]
    calls = [row.calls for row in group if row.calls is not None]
    return (
        group[0].checker,
        _share(row.outcome == "found" for row in leaky),
        _share(row.outcome == "found" for row in group if not row.leaky),
        _share(row.line for row in leaky),
        _share(row.thing for row in leaky),
        _share(row.owner for row in leaky),
        str(sum(row.outcome == "undecided" for row in group)),
        str(sum(row.outcome in ("error", "timeout") for row in group)),
        f"{median(calls):.0f}" if calls else "",
        f"{median(ratios):.1f}" if ratios else "",
    )


def _share(answers: Iterable[bool | None]) -> str:
    """Return the count of True and the count without None, such as ``3/5``; empty if all are None."""
    known = [one for one in answers if one is not None]
    return f"{sum(known)}/{len(known)}" if known else ""


if __name__ == "__main__":
    sys.exit(main())
