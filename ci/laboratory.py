"""Run the laboratory: the tests marked `laboratory`, then the scripts that measure. Write all results to one JSON file.

    ./ci/measure                        all parts
    ./ci/measure --only tests           the parts with this text in their names
    ./ci/measure --list                 what each part answers

The parts run one after the other, so that nothing disturbs them. The file is written after each part. A row has the
command, its exit status, the seconds that it took, and what it printed: the figures in the docs are from such output.
The row of the tests lists each one with its outcome and its seconds. Exit status 1 if a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_TESTS: Final = "tests"


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement: what it answers, and the command."""

    question: str
    command: tuple[str, ...]


PARTS: Final[Mapping[str, Part]] = {
    _TESTS: Part(
        "which tests marked `laboratory` fail?", ("-m", "pytest", "-m", "laboratory", "--durations=20", "tests")
    ),
    "verdicts": Part(
        "which recorded verdicts have changed?", ("ci/golden.py", "--section", "cases", "--section", "forms")
    ),
    "names": Part("how many lines and owners are named right?", ("ci/bench/attribution.py",)),
    "screen": Part("how many leaks does a screen miss?", ("ci/bench/screen.py",)),
    "floors": Part("how many leaks of the printed floor are found?", ("ci/bench/floors.py", "--trials", "20")),
    "bounds": Part("is a cache red while it fills?", ("ci/bench/bounds.py", "--step", "97")),
    "laws": Part("how many scaling laws are identified?", ("ci/bench/laws.py", "--trials", "3")),
    "census": Part("how often is clean code red?", ("ci/bench/census.py", "--processes", "46")),
    "faults": Part("which faults does a session not survive?", ("ci/faults/campaign.py", "--only", "*in body")),
    "session": Part("does a session of many tests become slower?", ("ci/faults/many_tests.py", "--tests", "1000")),
    "plain": Part("what does the plugin cost without --leakcheck?", ("ci/bench/inert.py",)),
    "loop": Part("what does an iteration cost?", ("ci/bench/loop.py",)),
    "failing": Part("what does a failing path cost?", ("ci/bench/failing.py",)),
    "tracing": Part("how much slower is a traced iteration?", ("ci/bench/tracing.py",)),
    "holders": Part("how long does the search for an owner take?", ("ci/bench/holders.py",)),
    "watch": Part("what does a watch cost?", ("ci/bench/watch.py", "--seconds", "30")),
}


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the parts with this text in their names")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "measured.json", metavar="FILE", help="default: measured.json"
    )
    parser.add_argument("--list", action="store_true", help="print what each part answers, run nothing")
    options = parser.parse_args()
    chosen = {name: part for name, part in PARTS.items() if options.only in name}
    if not chosen:
        parser.error(f"--only {options.only}: no part has this in its name. Valid are {', '.join(PARTS)}")
    if options.list:
        print(*(f"{name:10} {part.question}" for name, part in chosen.items()), sep="\n")
        return 0
    result: dict[str, Any] = {**describe_machine(), "parts": {}}
    for name, part in chosen.items():
        print(f"--- {name}: {part.question}", flush=True)
        result["parts"][name] = run(name, part)
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, row in result["parts"].items() if row["status"] != 0]
    passed = len(chosen) - len(failed)
    print(f"--- wrote {options.out}; {passed} passed, {len(failed)} failed: {', '.join(failed) or '-'}")
    return int(bool(failed))


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on, and when they were made."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0],
    }


def run(name: str, part: Part) -> dict[str, Any]:
    """Run a part, show what it prints, and return its row."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "tests.xml")
        command = [*part.command, *([f"--junitxml={report}"] if name == _TESTS else ())]
        began, used = time.monotonic(), _children_cpu()
        lines = []
        with subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
        row = {
            "question": part.question,
            "command": shlex.join(["python", *part.command]),
            "status": process.returncode,
            "seconds": round(time.monotonic() - began, 1),
            "cpu seconds": round(_children_cpu() - used, 1),
            "output": lines,
        }
        return {**row, "tests": outcomes(report)} if report.exists() else row


def outcomes(report: Path) -> dict[str, list[Any]]:
    """Return the outcome and the seconds of each test in a JUnit file."""
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        kinds = {child.tag for child in case}
        outcome = next((kind for kind in ("error", "failure", "skipped") if kind in kinds), "passed")
        found[f"{case.get('classname')}::{case.get('name')}"] = [outcome, float(case.get("time", 0))]
    return found


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main())
