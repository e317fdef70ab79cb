"""Count how often the plugin reports clean code as a leak. Print a table; exit 1 for a red verdict or an error.

Each process is fresh, repeats one workload of `workloads` under ``pytest --leakcheck`` with default settings, and has
its own data and hash seed. All workloads are clean, so each red (failing) verdict is a false alarm until `longrun.py`
shows that the library retains something. Each rate has Clopper and Pearson's exact confidence interval at 95 %.

A process takes seconds, so thousands of processes take hours. With ``--json FILE`` the script appends each result to a
file, and a later call continues from there. Name another file after a change of the plugin.

Workloads whose packages are not installed are skipped and listed; ``pip install -e . --group census`` installs all
packages, with pip 25.1 or newer.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from venvs import inherited, run_command
from workloads import find_workloads

# Worst first. `unclosed` and `inconclusive` are yellow here (reported, but no failure), because no workload has a
# budget for a named resource that allows no growth.
VERDICTS: Final = ("error", "red", "unclosed", "inconclusive", "ok")
_TEST_FILE: Final = Path(__file__).with_name("one_workload.py")
_TIMEOUT_SECONDS: Final = 180.0
_HEADS: Final = ("workload", "processes", *reversed(VERDICTS), "false alarms", "iterations", "seconds")


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one process, whose data and hashes come from `seed`.

    `verdict` is the worst, of `VERDICTS`: ``error`` if the process hung, failed or gave no report. `resources` has the
    verdict on each. `remarks` has the reason of each one that was neither ``ok`` nor ``unavailable``, or the end of the
    output of an error.
    """

    workload: str
    seed: int
    verdict: str
    resources: Mapping[str, str]
    iterations: int
    seconds: float
    remarks: Sequence[str]


def main() -> int:
    """Run the census and print its table; return 1 for a red verdict or an error."""
    parser = argparse.ArgumentParser(description="False alarms on clean workloads, each process a fresh one.")
    parser.add_argument("--processes", type=int, default=3_000, metavar="N", help="in all (default: 3,000)")
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="side by side (default: 2)")
    parser.add_argument("--only", action="append", metavar="NAME", choices=find_workloads(), help="this workload")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows there, and go on from those in it")
    parser.add_argument("--resources", metavar="NAMES", help="passed on as --leakcheck-resources")
    wanted = parser.parse_args()
    # OpenMP threads wait for each other by spinning: with more threads than cores, a step takes ten times as long.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // wanted.jobs)))
    rows = read_rows(wanted.json)
    ahead = list(list_missing(choose(wanted.only or ()), rows, wanted.processes))
    with ThreadPoolExecutor(wanted.jobs) as pool:
        try:
            for row in pool.map(lambda one: run(one[0], one[1], wanted.resources), ahead):
                rows.append(row)
                for remark in row.remarks:
                    print(f"{row.verdict} {row.workload} seed {row.seed}: {remark}", flush=True)
                if wanted.json:
                    with wanted.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
        finally:
            pool.shutdown(cancel_futures=True)
    print(table(rows))
    return int(any(row.verdict in ("red", "error") for row in rows))


def read_rows(path: Path | None) -> list[Row]:
    """Return the results of earlier runs."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path and path.exists() else ():
        # A run that was killed while it wrote leaves an incomplete line.
        with suppress(json.JSONDecodeError):
            rows.append(Row(**json.loads(line)))
    return rows


def choose(names: Sequence[str]) -> list[str]:
    """Return these workloads (without names: all), except those whose packages are missing."""
    known = find_workloads()
    chosen = [known[name] for name in names or known]
    for one in chosen:
        if one.missing:
            print(f"{one.name} is left out: {', '.join(one.missing)} not importable here", flush=True)
    return [one.name for one in chosen if not one.missing]


def list_missing(names: Sequence[str], rows: Sequence[Row], processes: int) -> Iterator[tuple[str, int]]:
    """Yield the workload and seed of each missing result, seed by seed, so that all workloads advance evenly."""
    done = {(row.workload, row.seed) for row in rows}
    every = ((names[at % len(names)], at // len(names)) for at in range(processes if names else 0))
    return (one for one in every if one not in done)


def run(workload: str, seed: int, resources: str | None = None) -> Row:
    """Judge a workload once in a fresh process, with the default settings of the plugin, or on these resources."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="census-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        # Temporary files go to a separate folder, because other programs and the other processes of the census write
        # to /tmp.
        (folder / "tmp").mkdir()
        own = {"CENSUS_WORKLOAD": workload, "CENSUS_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32)}
        command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider"]
        command += ["--leakcheck", "--leakcheck-json=report.json", str(_TEST_FILE)]
        command += [f"--leakcheck-resources={resources}"] if resources else []
        # In CI, some yellow verdicts would be red.
        variables = inherited() | own | {"TMPDIR": str(folder / "tmp")}
        output, ended = run_command(command, folder, variables, _TIMEOUT_SECONDS)
        seconds = round(time.perf_counter() - began, 3)
        try:
            report = (folder / "report.json").read_text("utf-8") if ended in (0, 1) else ""
            _first, finding, _last = map(json.loads, report.splitlines())
        except (FileNotFoundError, ValueError):
            return Row(workload, seed, "error", {}, 0, seconds, [f"exit {ended}\n{output[-2000:]}"])
    return create_row(workload, seed, seconds, finding)


def create_row(workload: str, seed: int, seconds: float, finding: Mapping[str, Any]) -> Row:
    """Return the result of a process that reports this finding, in JSON; remarks also say what remains."""
    verdicts: list[Mapping[str, Any]] = finding["verdicts"]
    held: Mapping[str, Sequence[Mapping[str, Any]]] = finding["held"]
    outcomes = {one["resource"]: one["verdict"] for one in verdicts}
    verdict = next((word for word in ("unclosed", "inconclusive") if word in outcomes.values()), "ok")
    remarks = []
    for one in verdicts:
        if one["verdict"] not in ("ok", "unavailable"):
            kept = (f"{some['count']} {some['what']}" for some in held.get(one["resource"], ()))
            remarks.append("; ".join([f"{one['resource']} {one['verdict']}: {one['reason']}", *kept]))
    red = finding["colour"] == "red"
    most = max(one["iterations"] for one in verdicts)
    return Row(workload, seed, "red" if red else verdict, outcomes, most, seconds, remarks)


def table(rows: Sequence[Row]) -> str:
    """Return the results as Markdown: per workload and in total, then per resource, and why growth is tolerated."""
    names = sorted({row.workload for row in rows})
    lines = [_HEADS, ("---", *["---:"] * (len(_HEADS) - 1))]
    lines += [_count(name, [row for row in rows if row.workload == name]) for name in names]
    lines += [
        _count("**all**", rows),
        ("",),
        ("resource", "verdicts", "ok", "others", "in red processes"),
        ("---",) * 5,
    ]
    for resource in dict.fromkeys(name for row in rows for name in row.resources):
        outcomes = Counter(row.resources[resource] for row in rows if resource in row.resources)
        others = {word: count for word, count in sorted(outcomes.items()) if word != "ok"}
        red = sum(row.verdict == "red" and row.resources.get(resource, "ok") != "ok" for row in rows)
        shown = ", ".join(f"{count} {word}" for word, count in others.items())
        lines.append((resource, f"{outcomes.total():,}", f"{outcomes['ok']:,}", shown, str(red)))
    text = [f"| {' | '.join(line)} |" if line[0] else "" for line in lines]
    text += ["", "False alarms: red of all that gave a verdict, and the exact interval at 95 %."]
    tolerated = find_workloads()
    return "\n".join([*text, *(f"{name}: {tolerated[name].reason}" for name in names if tolerated[name].heap)])


def _count(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    counts = Counter(row.verdict for row in rows)
    judged = [row for row in rows if row.verdict != "error"]
    low, high = interval(counts["red"], len(judged))
    rate = f"{counts['red'] / len(judged):.2%} ({low:.2%} to {high:.2%})" if judged else "unknown"
    words = (str(counts[word]) for word in reversed(VERDICTS))
    iterations, seconds = ([getattr(row, what) for row in judged or rows] for what in ("iterations", "seconds"))
    return (name, f"{len(rows):,}", *words, rate, f"{median(iterations):.0f}", f"{median(seconds):.1f}")


def interval(hits: int, trials: int) -> tuple[float, float]:
    """Return the exact confidence interval of a probability at 95 % (Clopper and Pearson)."""
    low = _find_crossing(lambda p: 1 - _at_most(hits - 1, trials, p) >= 0.025) if hits else 0.0
    high = _find_crossing(lambda p: _at_most(hits, trials, p) <= 0.025) if hits < trials else 1.0
    return low, high


def _at_most(hits: int, trials: int, p: float) -> float:
    """Return the probability of at most `hits` hits in `trials` trials, each with probability `p`, 0 < `p` < 1."""

    def log_of(k: int) -> float:
        # From logarithms, because a binomial coefficient of thousands exceeds the range of a float.
        coefficient = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return coefficient + k * math.log(p) + (trials - k) * math.log1p(-p)

    return math.fsum(math.exp(log_of(k)) for k in range(hits + 1))


def _find_crossing(above: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    # Bisection: the limits are exact to 2 ** -60.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return high


if __name__ == "__main__":
    sys.exit(main())
