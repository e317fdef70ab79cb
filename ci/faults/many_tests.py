"""Run thousands of trivial judged tests in one session; print what the plugin adds per test, and whether it grows.

The limits: the CPU time of the last hundred tests is at most 1.1 times that of the first hundred, resident memory grows
by at most 1 KiB per test more than in a session of plain pytest, and a green finding takes at most 2,000 bytes of the
JSON report (5,000 tests: 10 MB). Exit status 1 if a limit is exceeded. 5,000 tests take five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Final

_MAX_CPU_RATIO: Final = 1.1
_MAX_RSS_BYTES: Final = 1024
_MAX_JSON_BYTES: Final = 2000
_HUNDRED: Final = 100
# The first tests import what the plugin loads when it is first needed.
_WARM_UP: Final = 20

_TESTS: Final = """
import pytest

@pytest.mark.fd_budget(0)
@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    pass
"""
_CONFTEST: Final = """
import os
import time

_LOG = open(os.environ["MANY_TESTS_LOG"], "w", buffering=1)
_PAGE = os.sysconf("SC_PAGE_SIZE")

def pytest_runtest_logfinish():
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * _PAGE
    _LOG.write(f"{time.process_time_ns()} {resident}\\n")
"""


def run(folder: Path, count: int, *options: str) -> list[tuple[int, int]]:
    """Run pytest; return CPU nanoseconds and resident bytes after each test."""
    (folder / "test_it.py").write_text(_TESTS.format(count=count), encoding="utf-8")
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
    log = folder / "log"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py"]
    environment = os.environ | {"MANY_TESTS_LOG": str(log), "PYTEST_ADDOPTS": ""}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return [(int(cpu), int(resident)) for cpu, resident in map(str.split, log.read_text(encoding="ascii").splitlines())]


def hundreds(rows: list[tuple[int, int]]) -> tuple[float, float]:
    """Return the CPU milliseconds per test of the first and the last hundred tests."""
    each = [(after[0] - before[0]) / 1e6 for before, after in pairwise(rows)]
    return mean(each[_WARM_UP : _WARM_UP + _HUNDRED]), mean(each[-_HUNDRED:])


def rss_growth(rows: list[tuple[int, int]]) -> float:
    """Return the bytes of resident memory per test, between the medians of the first and the last fifth."""
    fifth = len(rows) // 5
    first, last = (median(resident for _cpu, resident in part) for part in (rows[:fifth], rows[-fifth:]))
    return (last - first) / (len(rows) - fifth)


def main() -> int:
    """Run both sessions and print the figures."""
    parser = argparse.ArgumentParser(description="Thousands of trivial judged tests in one session.")
    parser.add_argument("--tests", type=int, default=5_000, metavar="N", help="number of tests (default: 5,000)")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-tests-") as name:
        folder = Path(name)
        plain = rss_growth(run(folder, wanted.tests))
        report = folder / "findings.json"
        rows = run(folder, wanted.tests, "--leakcheck", f"--leakcheck-json={report}")
        text = report.read_text(encoding="utf-8")
        _first, *findings, _last = map(json.loads, text.strip().split("\n"))
    first, last = hundreds(rows)
    growth, size = rss_growth(rows) - plain, len(text.encode()) / len(findings)
    right = len(findings) == wanted.tests and all(one["verdicts"][0]["verdict"] == "ok" for one in findings)
    print(f"tests judged ok       {'all' if right else 'NOT ALL'} of {wanted.tests:,}")
    print(f"CPU per test          {first:.2f} ms (first hundred), {last:.2f} ms (last hundred): x {last / first:.3f}")
    print(f"RSS growth per test   {growth:,.0f} bytes, beside {plain:,.0f} of plain pytest")
    print(f"JSON per green test   {size:,.0f} bytes")
    good = last <= _MAX_CPU_RATIO * first and growth <= _MAX_RSS_BYTES and size <= _MAX_JSON_BYTES
    return int(not (right and good))


if __name__ == "__main__":
    sys.exit(main())
