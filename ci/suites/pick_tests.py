"""A pytest plugin that `ci/suites.py` loads: list what is collected, or run a sample of it and measure its CPU time.

The environment variable `SUITES_PICK` names a JSON file. If it lists no tests, the collected node ids are written to the
file `collected` beside it. Otherwise only the listed tests run; `measured` then receives the CPU time of the test loop and
of its child processes, and in a run that is not judged also the duration of each test.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

_PICK: Final = Path(os.environ["SUITES_PICK"])
_DURATIONS: dict[str, float] = {}
_NOT_JUDGED: dict[str, str] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write the node ids of all tests, or deselect the tests that are not in the sample."""
    wanted: list[str] = json.loads(_PICK.read_text(encoding="utf-8"))
    if not wanted:
        _PICK.with_name("collected").write_text(json.dumps([item.nodeid for item in items]), encoding="utf-8")
        return
    chosen = set(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Measure the tests without the collection, which costs the same whether the tests are judged or not."""
    began, used = time.monotonic(), _cpu_seconds()
    try:
        return (yield)
    finally:
        measured = {
            "tests": len(session.items),
            "cpu": _cpu_seconds() - used,
            "wall": time.monotonic() - began,
            "durations": _DURATIONS,
            "not_judged": _NOT_JUDGED,
        }
        _PICK.with_name("measured").write_text(json.dumps(measured), encoding="utf-8")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> Generator[None, Any, Any]:
    """Note the duration of a test, or why it is not judged."""
    result = yield
    if os.environ.get("SUITES_JUDGED") != "1":
        # All phases: a judged test repeats its set-up and its tear-down too.
        _DURATIONS[report.nodeid] = _DURATIONS.get(report.nodeid, 0.0) + report.duration
    elif reason := getattr(report, "leakcheck_unmeasured", "") or getattr(report, "leakcheck_not_asked", ""):
        _NOT_JUDGED[report.nodeid] = reason
    return result


def _cpu_seconds() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
