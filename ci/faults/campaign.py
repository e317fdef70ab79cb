"""Try faults within tests and from outside against the plugin. Print a table; exit 1 if it did not survive one.

Each fault within a test stands between a leaky and a clean test before it and a leaky and a clean test after it, and
runs in place and isolated. The four tests must be judged as if the fault were not there, the session must go on, and
nothing must be left behind. What plain pytest does not survive either, such as `os._exit`, counts as survived. The
faults from outside are signals at random moments, given by a seed, and reports that cannot be written.

Each run has its own folder, TMPDIR and process session below one scratch folder. All runs take about an hour on
2 cores. With ``--json FILE`` the script appends each row to a file, and a later call continues from there.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Final

from around import GOOD, Fault, Row, describe, judge
from inside import catalogue
from outside import run_seed
from sandbox import Ran, Sandbox
from table import format_table

_SEEDS: Final = 69
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
    return Row(fault.name, fault.category, mode, expected, describe(ran), result, detail, ran.seconds)


class Rows:
    """The rows so far, in memory and, if wanted, in a file with one JSON object per line."""

    def __init__(self, path: Path | None) -> None:
        """Read the rows of an earlier call, if there are any."""
        self.all: list[Row] = []
        self._path = path
        self._lock = threading.Lock()
        for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else ():
            self.all.append(Row(**json.loads(line)))

    def add(self, row: Row) -> None:
        with self._lock:
            self.all.append(row)
            if self._path:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row.to_json()) + "\n")
            if row.result not in GOOD:
                print(
                    f"{row.name!a} {row.mode}: {row.result}: {ascii(row.detail)[:200]}",
                    file=sys.stderr,
                    flush=True,
                )


def main() -> int:
    """Run the campaign and print its table; return 1 if a run did not survive."""
    parser = argparse.ArgumentParser(description="Faults within tests and from outside, against the plugin.")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="faults of this name or pattern; may be given again"
    )
    parser.add_argument("--inside", action="store_true", help="only the faults within tests")
    parser.add_argument("--outside", action="store_true", help="only the faults from outside")
    parser.add_argument("--seeds", type=int, default=_SEEDS, metavar="N", help=f"from outside (default: {_SEEDS})")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="side by side (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows there, and go on from those in it")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="keep the folders of runs that did not survive there"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the faults, run nothing")
    wanted = parser.parse_args()
    faults = [one for one in catalogue() if _is_wanted(one, wanted.only)]
    if wanted.list:
        print(*(f"{one.category}: {one.name!a} ({', '.join(one.modes)})" for one in faults), sep="\n")
        return 0
    # A crash must leave no core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    rows = Rows(wanted.json)
    done = {(row.name.partition(":")[0] if row.mode == "outside" else row.name, row.mode) for row in rows.all}
    runs: list[Callable[[Path], Row]] = []
    if not wanted.outside:
        runs += [
            partial(run_fault, one, mode)
            for one in faults
            for mode in one.modes
            if (one.name, mode) not in done and (not one.small_tmp or os.geteuid() == 0)
        ]
    if not wanted.inside and not wanted.only:
        runs += [partial(run_seed, seed) for seed in range(wanted.seeds) if (f"seed {seed}", "outside") not in done]
    # In any order: an interrupted campaign has tried some of each category.
    random.Random(0).shuffle(runs)  # noqa: S311 - no cryptography
    scratch = wanted.scratch or Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        _work(runs, rows, scratch.resolve(), wanted.jobs)
    finally:
        if not wanted.scratch:
            shutil.rmtree(scratch, ignore_errors=True)
    print(format_table(rows.all))
    return int(any(row.result not in GOOD for row in rows.all))


def _is_wanted(fault: Fault, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fault.name == one or fnmatch.fnmatch(fault.name, one) for one in patterns)


def _work(runs: Sequence[Callable[[Path], Row]], rows: Rows, scratch: Path, jobs: int) -> None:
    def one(number: int, run: Callable[[Path], Row]) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f"{number:04}-", dir=scratch))
        row = run(folder / "run")
        rows.add(row)
        if row.result in GOOD:
            shutil.rmtree(folder, ignore_errors=True)

    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(one, number, run) for number, run in enumerate(runs)]:
            future.result()


if __name__ == "__main__":
    sys.exit(main())
