"""Measure the page of a large session: 500 tests, 60 of which leak for 40 causes.

Prints the time from the findings to the text of the page, in a fresh process without and with its imports, and the size.
A leaky and a clean test are judged for real; the others are copies under other names, with a line and an owner of each
cause, and green ones without readings, as in a report.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_leakcheck import measure
from pytest_leakcheck.model.culprit import Culprit, Owner, Site, Step, Where
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.report.json_file import Report, Session

_FILES: Final[list[int]] = []


def main() -> None:
    """Make the page and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--causes", type=int, default=40)
    given = parser.parse_args()
    findings = tuple(_findings(given.tests, given.causes))
    summary = f"{given.tests} tests: 440 ok · 60 leak (40 causes)"
    session = Session(summary, (), "pytest --leakcheck-scope=all", "runner-7", "0a1b2c3d4e5f", 512.0, {"pytest": "9.0"})
    report = Report(findings, {}, session)
    began = time.perf_counter()
    from pytest_leakcheck.report.html.findings_page import page_of_report
    from pytest_leakcheck.report.html.page import render

    imported = time.perf_counter()
    text = render(page_of_report(report, "Leaks in shop"))
    ended = time.perf_counter()
    cards = text.count('id="cause-')
    print(f"python {sys.version.split()[0]}; {len(findings)} tests, {cards} causes")
    print(f"imports {imported - began:.3f} s, page {ended - imported:.3f} s, {len(text.encode()) / 1e6:.3f} MB")


def _findings(tests: int, causes: int) -> Iterator[Finding]:
    leaky = measure(lambda: _FILES.append(os.open(__file__, os.O_RDONLY)), fd=0).finding
    clean = measure(lambda: Path("/dev/null").read_bytes(), fd=0).finding
    green = replace(clean, recording=replace(clean.recording, series=()))
    for number in range(tests):
        name = f"tests/integration/test_orders_{number % 25}.py::TestOrders::test_receive_and_forward[{number}-eur]"
        if number < causes * 3 // 2:
            yield replace(leaky, test=name, culprit=_culprit(name, number % causes))
        else:
            yield replace(green, test=name)


def _culprit(test: str, cause: int) -> Culprit:
    """Return a line of this file and an owner."""
    path = (
        Site(test.partition("::")[0], 40, "TestOrders.test_receive_and_forward", "receive()"),
        Site(__file__, cause + 30, f"Shop{cause}.receive", "Registry.add()"),
        Site(__file__, cause + 10, f"Registry{cause}.add", "io.open()"),
    )
    steps = (Step("module shop.orders", f"REGISTRY_{cause}"), Step("Registry", ".history", suspect=True))
    owner = Owner(f"shop.orders.REGISTRY_{cause}.history", "module shop.orders", steps, "17 × Order, 3,057 B each", 1.0)
    return Culprit("fd", Where(path, path[-1], "call"), owner=owner, iterations=7)


if __name__ == "__main__":
    main()
