"""Count how often the plugin reports clean code as a leak. Print a table; exit 1 for a red verdict or an error.

Each process is fresh, repeats one workload of `workloads` under ``pytest --leakcheck`` with default settings, and has
its own data and hash seed. All workloads are clean, so each red (failing) verdict is a false alarm until `longrun.py`
shows that the library retains something. Each rate has Clopper and Pearson's exact confidence interval at 95 %.

A process takes seconds, so thousands of processes take hours. With ``--json FILE`` the script appends each result to a
file, and a later call continues from there. A file contains the results of one state of the plugin only.

Workloads whose packages are not installed are skipped and listed; ``pip install -e '.[census]'`` installs all packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest_leakcheck
from binomial import interval
from fresh import VERDICTS, Row, run
from workloads import Workload, find_workloads

_REPORT_INTERVAL = 50


class Rows:
    """The results so far, in memory and, if wanted, in a file with one JSON object per line."""

    def __init__(self, path: Path | None, engine: str) -> None:
        """Read the results of earlier runs.

        Args:
            path: The file; it need not exist. None: no file.
            engine: State of the plugin's code that new results come from; empty if none will be added.

        Raises:
            SystemExit: The file contains results of another state of the plugin.
        """
        self.all: list[Row] = []
        self.engine = engine
        self._path = path
        self._lock = threading.Lock()
        for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else ():
            try:
                data = json.loads(line)
            except json.JSONDecodeError:
                # A run that was killed while it wrote leaves an incomplete last line.
                continue
            self.engine = self.engine or data["engine"]
            if data["engine"] != self.engine:
                raise SystemExit(f"{path} holds rows of plugin {data['engine']}, this is {self.engine}: name another")
            self.all.append(Row.from_json(data))

    def add(self, row: Row) -> None:
        with self._lock:
            self.all.append(row)
            if self._path:
                with self._path.open("ab") as file:
                    if file.tell() and not self._path.read_bytes().endswith(b"\n"):
                        file.write(b"\n")
                    file.write(json.dumps({**row.to_json(), "engine": self.engine}).encode() + b"\n")
            if row.verdict != "ok":
                _print_remarks(row)
            if len(self.all) % _REPORT_INTERVAL == 0:
                counts = Counter(one.verdict for one in self.all)
                print(f"{len(self.all):,} processes: {', '.join(f'{counts[v]} {v}' for v in VERDICTS)}", flush=True)


@dataclass(slots=True)
class Effort:
    """When to stop: at a time of `time.monotonic`, or when the event is set."""

    end: float
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def over(self) -> bool:
        return self.stopped.is_set() or time.monotonic() > self.end


def main() -> int:
    """Run the census and print its table; return 1 for a red verdict or an error."""
    parser = argparse.ArgumentParser(description="False alarms on clean workloads, each process a fresh one.")
    parser.add_argument("--processes", type=int, default=3_000, metavar="N", help="in all (default: 3,000)")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="side by side (default: 2)")
    parser.add_argument("--minutes", type=float, default=math.inf, metavar="M", help="begin none after so many")
    parser.add_argument("--only", action="append", metavar="NAME", help="this workload; may be given again")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows there, and go on from those in it")
    parser.add_argument("--table", action="store_true", help="print the table of FILE, run nothing")
    wanted = parser.parse_args()
    if wanted.table:
        if wanted.json is None or not wanted.json.exists():
            parser.error("--table needs --json FILE, and the file")
        rows = Rows(wanted.json, "")
    else:
        chosen = choose(wanted.only or ())
        rows = Rows(wanted.json, state_of_plugin())
        # OpenMP threads wait for each other by spinning: with more threads than cores, a step takes ten times as long.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // wanted.jobs)))
        work(chosen, rows, wanted.processes, wanted.jobs, Effort(time.monotonic() + 60 * wanted.minutes))
    print(table(rows.all, rows.engine))
    return 1 if any(row.verdict in ("red", "error") for row in rows.all) else 0


def choose(names: Sequence[str]) -> list[Workload]:
    """Return the workloads with these names (without names: all), except those whose packages are missing."""
    known = find_workloads()
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no workload {unknown[0]!r}: there are {', '.join(known)}")
    chosen = [known[name] for name in names or known]
    for one in chosen:
        if one.missing:
            print(f"{one.name} is left out: {', '.join(one.missing)} not importable here", flush=True)
    return [one for one in chosen if not one.missing]


def state_of_plugin() -> str:
    """Return twelve hex digits that change with the plugin's code."""
    known = hashlib.sha256()
    folder = Path(pytest_leakcheck.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        known.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return known.hexdigest()[:12]


def work(chosen: Sequence[Workload], rows: Rows, processes: int, jobs: int, effort: Effort) -> None:
    """Run processes until there are `processes` results in all, evenly over the workloads."""
    ahead = _list_missing(chosen, rows.all, processes)
    taking = threading.Lock()

    def one_after_the_other() -> None:
        while not effort.over:
            with taking:
                name, seed = next(ahead, ("", 0))
            if not name:
                return
            rows.add(run(name, seed))

    with ThreadPoolExecutor(jobs) as pool:
        workers = [pool.submit(one_after_the_other) for _ in range(jobs)]
        try:
            for worker in workers:
                worker.result()
        except BaseException:
            # Start no further process. Those that still run end at their own timeout at the latest.
            effort.stopped.set()
            raise


def _list_missing(chosen: Sequence[Workload], rows: Sequence[Row], processes: int) -> Iterator[tuple[str, int]]:
    """Yield the workload and seed of each missing result, seed by seed, so that all workloads advance evenly."""
    done = {(row.workload, row.seed) for row in rows}
    names = [one.name for one in chosen]
    every = ((names[at % len(names)], at // len(names)) for at in range(processes if names else 0))
    return (one for one in every if one not in done)


def table(rows: Sequence[Row], engine: str) -> str:
    """Return the results as Markdown: per workload, in total and per resource, and why growth is tolerated."""
    lines = [
        "| workload | processes | ok | inconclusive | unclosed | red | error | false alarms | iterations | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    names = sorted({row.workload for row in rows})
    lines += [_format_row(name, [row for row in rows if row.workload == name]) for name in names]
    lines += [_format_row("**all**", rows), "", "| resource | verdicts | ok | other | red | false alarms |"]
    lines.append("| --- | ---: | ---: | --- | ---: | ---: |")
    for resource in dict.fromkeys(name for row in rows for name in row.resources):
        outcomes = Counter(row.resources[resource] for row in rows if resource in row.resources)
        red = sum(one["colour"] == "red" for row in rows for one in row.remarks if one.get("resource") == resource)
        others = ", ".join(f"{outcomes[word]} {word}" for word in sorted(outcomes) if word != "ok")
        whole = outcomes.total()
        lines.append(f"| {resource} | {whole:,} | {outcomes['ok']:,} | {others} | {red} | {_format_rate(red, whole)} |")
    lines += ["", f"Plugin {engine}. False alarms: red of all that gave a verdict, and the exact interval at 95 %."]
    tolerated = find_workloads()
    lines += [f"{name}: {tolerated[name].reason}" for name in names if name in tolerated and tolerated[name].heap]
    return "\n".join(lines)


def _format_row(name: str, rows: Sequence[Row]) -> str:
    counts = Counter(row.verdict for row in rows)
    judged = [row for row in rows if row.verdict != "error"]
    words = " | ".join(str(counts[word]) for word in reversed(VERDICTS[:-1]))
    middle = f"{median(row.iterations for row in judged):.0f} | {median(row.seconds for row in judged):.1f}"
    end = middle if judged else "|"
    rate = _format_rate(counts["red"], len(judged))
    return f"| {name} | {len(rows):,} | {counts['ok']} | {words} | {rate} | {end} |"


def _format_rate(hits: int, trials: int) -> str:
    low, high = interval(hits, trials)
    return f"{hits / trials:.2%} ({low:.2%} to {high:.2%})" if trials else "unknown"


def _print_remarks(row: Row) -> None:
    for one in row.remarks:
        what = f"{one['resource']}: " if "resource" in one else ""
        print(f"{row.verdict} {row.workload} seed {row.seed}: {what}{one['reason']}", flush=True)
        if row.verdict == "error":
            print(one["output"], flush=True)


if __name__ == "__main__":
    sys.exit(main())
