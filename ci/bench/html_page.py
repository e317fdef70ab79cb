"""Measure the page of a large session: 500 tests, 60 of which leak for 40 causes.

Usage: python ci/bench/html_page.py [--tests 500] [--causes 40] [--out PAGE.html]

Prints the time from the findings to the text of the page, in a fresh process without and with its imports, and the size.
The findings are as a run would make them: judged series of 20 to 400 readings, with a line of this file and an owner.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.judge.judge_series import Context, judge
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.culprit import Culprit, Held, Owner, Site, Step, Where
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording, Series
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.report.json_file import Report

_RED: Final = ("leak", "over_budget", "unclosed")
_OK: Final = ("process", "thread", "shm", "disk")


def main() -> None:
    """Make the page and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--causes", type=int, default=40)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    findings = list(_findings(given.tests, given.causes))
    session = Session(
        "500 tests: 440 ok · 60 leak (40 causes)",
        (),
        "pytest --leakcheck-scope=all",
        "runner-7",
        "0a1b2c3d4e5f",
        512.0,
        {"pytest": "9.0.1"},
    )
    report = Report(tuple(findings), {}, session)
    began = time.perf_counter()
    from pytest_leakcheck.report.html.findings_page import page_of_report
    from pytest_leakcheck.report.html.render import render

    imported = time.perf_counter()
    text = render(page_of_report(report, "Leaks in shop"))
    ended = time.perf_counter()
    cards = text.count('id="cause-')
    print(f"python {sys.version.split()[0]}; {len(findings)} tests, {cards} causes")
    print(f"imports {imported - began:.3f} s, page {ended - imported:.3f} s, {len(text.encode()) / 1e6:.3f} MB")
    if given.out is not None:
        given.out.write_text(text, encoding="utf-8")


def _findings(tests: int, causes: int) -> Iterator[Finding]:
    chance = random.Random(1)  # noqa: S311 - the same findings in each run
    for number in range(tests):
        name = f"tests/integration/test_orders_{number % 25}.py::TestOrders::test_receive_and_forward[{number}-eur]"
        if number < causes * 3 // 2:
            yield _leak(name, number % causes, chance)
        else:
            yield _green(name, chance)


def _leak(test: str, cause: int, chance: random.Random) -> Finding:
    """Return a test that leaks memory or descriptors in a line of this file."""
    heap = cause % 2 == 0
    count = chance.choice((250, 400)) if heap else 17
    start, step = (40_000_000, 3000 + cause) if heap else (20, 1 + cause % 3)
    noise = 200 if heap else 0
    rising = tuple(start + step * at + chance.randint(0, noise) for at in range(count + 1))
    resource = "heap" if heap else "fd"
    series = [Series(resource, rising, (0,) * count), *_level_series(count, chance)]
    line = 10 + cause
    path = (
        Site(test.partition("::")[0], 40, "TestOrders.test_receive_and_forward", "receive()"),
        Site(__file__, line + 20, f"Shop{cause}.receive", "Registry.add()"),
        Site(__file__, line, f"Registry{cause}.add", "io.open()"),
    )
    owner = Owner(
        f"shop.orders.REGISTRY_{cause}.history['orders']",
        "module shop.orders",
        (
            Step("module shop.orders", f"REGISTRY_{cause}"),
            Step("Registry", ".history", suspect=True),
            Step("dict", "[0]"),
        ),
        f"{count} × Order, 3,057 B each",
        1.0,
    )
    culprit = Culprit(resource, Where(path, path[-1], "call"), owner=owner, iterations=7)
    held = {resource: (Held("bytearray", 7, "3,057 B each, in 7 iterations"), Held("/srv/shop/orders/0001.json", 7))}
    return _judge(test, series, held, culprit)


def _green(test: str, chance: random.Random) -> Finding:
    found = _judge(test, [Series("fd", (20,) * 18, (0,) * 17), *_level_series(17, chance)], {}, None)
    # As in a report, which leaves their readings out.
    return replace(found, recording=replace(found.recording, series=()))


def _level_series(count: int, chance: random.Random) -> list[Series]:
    # No child processes: with them, no report states when the process reaches a limit.
    levels = {name: chance.randint(1, 9) if name != "process" else 0 for name in _OK}
    return [Series(name, (level,) * (count + 1), (0,) * count) for name, level in levels.items()]


def _judge(test: str, series: list[Series], held: Mapping[str, tuple[Held, ...]], culprit: Culprit | None) -> Finding:
    limits = {"fd": 1024, "heap": 32 * 2**30}
    environment = {"python": "3.11.7", "system": "Linux 6.8", "libc": "glibc 2.36"}
    recording = Recording(test, tuple(series), 3, 1.25, limits=limits, environment=environment)
    budgets = tuple(Budget(one.resource) for one in series)
    judged = (judge(one, budget, Context(final=True)) for one, budget in zip(series, budgets, strict=True))
    verdicts = tuple(verdict for verdict in judged if verdict is not None)
    return conclude(Result(Plan(test, budgets), recording, verdicts, held, culprit), Policy(_RED))


if __name__ == "__main__":
    main()
