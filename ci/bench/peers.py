"""Run every leak checker over every case, and print a table: the leaks it found, the causes it named, and its cost.

Each checker is installed into a separate environment under .venv/peers, and runs over each case in a fresh process.
Without --corpus, the cases are the project's own. For accurate times the machine must otherwise be idle; the verdicts
do not depend on that.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkers import CHECKERS, MODES, VERDICT
from rows import Row, matrix, table
from runs import Contestant, run
from subjects import Subject, read_cases, read_corpus
from venvs import ROOT, Missing, debug_interpreter, environment, version


def main() -> int:
    """Run the checkers and print the tables; return 2 if plain pytest cannot be run, or there is no such case."""
    options = _create_parser().parse_args()
    if options.table:
        _print_tables(json.loads(options.table.read_text(encoding="utf-8")), matrix_too=options.matrix)
        return 0
    modes = MODES if options.mode == "both" else (options.mode,)
    contestants, absent = _find_contestants(options, modes)
    if not contestants or contestants[0].checker is not CHECKERS[0]:
        print(f"plain pytest cannot be run, and all else is compared with it: {absent[CHECKERS[0].name]}")
        return 2
    known = read_corpus(options.corpus) if options.corpus else read_cases(contestants[0].python)
    subjects = [subject for subject in known if not options.case or subject.name in options.case]
    if not subjects:
        print(f"no such case; there are {', '.join(subject.name for subject in known)}")
        return 2
    # Exit on SIGTERM by an exception, so that the rows so far are written. `timeout` sends SIGTERM; a user sends it to
    # a background process, which ignores Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows: list[Row] = []
    try:
        for row in _run_all(contestants, subjects, options.jobs, options.timeout):
            rows.append(row)
            print(
                f"{row.subject:24} {row.checker:20} {row.mode:8} {row.outcome:9} {row.seconds:6.2f} s", file=sys.stderr
            )
    finally:
        # The rows are written after an interruption too, because a whole run takes minutes.
        found = {"absent": absent, "rows": [asdict(row) for row in rows]}
        if options.json:
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    _print_tables(found, matrix_too=options.matrix)
    return 0


def _find_contestants(options: argparse.Namespace, modes: Sequence[str]) -> tuple[list[Contestant], dict[str, str]]:
    """Return the checkers that can run here, and the reason why each other checker cannot, by its name."""
    contestants: list[Contestant] = []
    absent: dict[str, str] = {}
    for number, checker in enumerate(CHECKERS):
        # All times are divided by those of plain pytest, so plain pytest always runs.
        if number and options.only and checker.name not in options.only:
            continue
        try:
            interpreter = debug_interpreter() if checker.debug else options.python
            python = environment(options.dir.resolve(), interpreter, checker.requires)
        except (Missing, OSError, subprocess.SubprocessError) as error:
            absent[checker.name] = str(error)
            continue
        wanted = tuple(mode for mode in modes if mode in checker.settings) if number else ("default",)
        contestants.append(Contestant(checker, python, version(python, checker.requires), wanted))
    return contestants, absent


def _run_all(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], jobs: int, timeout: float
) -> Iterator[Row]:
    pool = ThreadPoolExecutor(jobs)
    # Ordered by subject, so that a change in the load of the machine affects all checkers alike.
    runs = [
        pool.submit(run, contestant, mode, subject, timeout)
        for subject in subjects
        for contestant in contestants
        for mode in contestant.modes
    ]
    try:
        for one in runs:
            yield one.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _print_tables(found: dict[str, Any], *, matrix_too: bool) -> None:
    rows = [Row(**row) for row in found["rows"]]
    print(table(rows))
    for name, reason in found["absent"].items():
        print(f"\n{name}: not run: {reason}")
    versions = {row.checker: row.version for row in rows}
    print("\nVersions: " + "; ".join(f"{name}: {installed}" for name, installed in versions.items()) + ".")
    if matrix_too:
        print(f"\n{matrix(rows)}")


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What each leak checker finds, names and costs.")
    peers = [checker.name for checker in CHECKERS[1:]]
    only = f"this checker and plain pytest; may be repeated; one of {', '.join(peers)}"
    parser.add_argument("--only", action="append", choices=peers, metavar="CHECKER", help=only)
    parser.add_argument("--case", action="append", metavar="NAME", help="this case; may be repeated")
    parser.add_argument(
        "--mode", choices=(*MODES, "both", VERDICT), default="default", help="which settings (default: default)"
    )
    parser.add_argument("--corpus", type=Path, help="a folder of cases, a module each (default: tests/cases)")
    parser.add_argument("--dir", type=Path, default=ROOT / ".venv" / "peers", help="where the environments are")
    parser.add_argument("--python", default=sys.executable, help="what they are made with (default: this one)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; times are true with 1 (the default)")
    parser.add_argument("--timeout", type=float, default=120, metavar="S", help="for one run (default: 120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.add_argument("--table", type=Path, metavar="FILE", help="run nothing: print the table of such a file")
    parser.add_argument("--matrix", action="store_true", help="a second table: what became of each case")
    return parser


if __name__ == "__main__":
    sys.exit(main())
