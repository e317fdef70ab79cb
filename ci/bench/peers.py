"""Run every leak checker over every case, and print a table: the leaks it found, the causes it named, and its cost.

Each checker is installed into a separate environment under .venv/peers, and runs over each case in a fresh process.
Without --corpus, the cases are the project's own. For accurate times the machine must otherwise be idle; the verdicts
do not depend on that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from checkers import CHECKERS, Checker
from runs import Row, run
from subjects import read_cases, read_corpus
from venvs import ROOT, Missing, debug_interpreter, environment, version


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
