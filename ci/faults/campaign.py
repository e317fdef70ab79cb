"""Try faults within tests and from outside against the plugin. Print a table; exit 1 if it did not survive one.

Each fault within a test stands between a leaky and a clean test before it and a leaky and a clean test after it, and
runs in place and isolated. The four tests must be judged as if the fault were not there, the session must go on, and
nothing must be left behind. What plain pytest does not survive either, such as `os._exit`, counts as survived. The
faults from outside are signals at random moments, given by a seed, and reports that cannot be written.

Each run has its own folder, TMPDIR and process session below one scratch folder.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import Final

from around import AS_PLAIN, GOOD, SURVIVED, Fault, Row, describe, judge
from inside import catalogue
from outside import EVENTS, run_seed
from sandbox import Ran, Sandbox

# Each event from outside three times, at other moments.
_SEEDS: Final = range(3 * len(EVENTS))
# A fault is the same at an iteration time of 2 s: no test here is slow.
_OPTIONS: Final = ("-rA", "--leakcheck", "--leakcheck-min-time=0", "--leakcheck-max-time=2")


def run_fault(fault: Fault, mode: str, folder: Path) -> Row:
    """Run one fault in one mode, and compare with plain pytest if that is needed."""
    sandbox = Sandbox(folder)
    sandbox.write(fault.file, fault.source(isolated=mode == "isolated"))
    settings = {"environment": fault.environment, "plugins": fault.plugins, "small_tmp": fault.small_tmp}
    options = (*_OPTIONS, f"--leakcheck-json={sandbox.report}", *fault.options)
    ran = sandbox.run(options, limit=fault.seconds, **settings)

    @cache
    def run_plain() -> Ran:
        plain = Sandbox(Path(f"{folder}-plain"))
        plain.write(fault.file, fault.source(isolated=False))
        options = ("-rA", *(one for one in fault.options if not one.startswith("--leakcheck")))
        environment = {**fault.environment, "FAULT_AT": "1"}
        return plain.run(options, limit=min(fault.seconds, 20), **{**settings, "environment": environment})

    result, detail = judge(fault, ran, run_plain)
    expected = f"leak ok [{fault.expected}] leak ok"
    return Row(fault.name, fault.category, mode, expected, describe(ran), result, detail)


def main() -> int:
    """Run the campaign and print its table; return 1 if a run did not survive."""
    parser = argparse.ArgumentParser(description="Faults within tests and from outside, against the plugin.")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="the faults with such names")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="side by side (default: 2)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="keep the folders of what did not survive there")
    parser.add_argument("--list", action="store_true", help="print the names of the faults, run nothing")
    wanted = parser.parse_args()
    runs: list[tuple[str, Callable[[Path], Row]]] = [
        (f"{one.name!a} {mode}", partial(run_fault, one, mode))
        for one in catalogue()
        if fnmatch(one.name, wanted.only) and (not one.small_tmp or os.geteuid() == 0)
        for mode in one.modes
    ]
    seeds = {f"seed {seed}: {EVENTS[seed % len(EVENTS)].name}": partial(run_seed, seed) for seed in _SEEDS}
    runs += [(name, run) for name, run in seeds.items() if fnmatch(name, wanted.only)]
    if wanted.list:
        print(*(name for name, _run in runs), sep="\n")
        return 0
    # A crash must leave no core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # In any order: an interrupted campaign has tried some of each category.
    random.Random(0).shuffle(runs)  # noqa: S311 - no cryptography
    scratch = wanted.scratch or Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        rows = _work([run for _name, run in runs], scratch.resolve(), wanted.jobs)
    finally:
        if not wanted.scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    print(format_table(rows))
    return int(any(row.result not in GOOD for row in rows))


def _work(runs: Sequence[Callable[[Path], Row]], scratch: Path, jobs: int) -> list[Row]:
    def one(run: Callable[[Path], Row]) -> Row:
        folder = Path(tempfile.mkdtemp(dir=scratch))
        row = run(folder / "run")
        if row.result in GOOD:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"{row.name!a} {row.mode}: {row.result}: {row.detail!a}", file=sys.stderr, flush=True)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, runs))


def format_table(rows: Sequence[Row]) -> str:
    """Return the counts by category, then a line for each run that did not survive."""
    lines: list[tuple[str, ...]] = [("category", "faults", "runs", SURVIVED, AS_PLAIN, "not"), ("---", *["---:"] * 5)]
    for category in (*sorted({row.category for row in rows}), "**all**"):
        group = [row for row in rows if category in (row.category, "**all**")]
        survived, as_plain = (sum(row.result == good for row in group) for good in GOOD)
        counts = (len({row.name for row in group}), len(group), survived, as_plain, len(group) - survived - as_plain)
        lines.append((category, *(f"{count:,}" for count in counts)))
    if bad := [row for row in rows if row.result not in GOOD]:
        lines += [("",), ("fault", "mode", "what", "expected", "seen", "detail"), ("---",) * 6]
        lines += [(row.name, row.mode, row.result, row.expected, row.seen, row.detail[:160]) for row in bad]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" if line[0] else "" for line in lines)


def _escape(cell: str) -> str:
    """Return text that neither breaks the table nor reaches the terminal as a control sequence."""
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in cell)
    return shown.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
