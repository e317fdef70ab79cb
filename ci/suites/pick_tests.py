"""A pytest plugin that `ci/suites.py` loads: list what is collected, or run a sample of it and measure its CPU time.

The environment variable `SUITES_PICK` names a JSON file. If it lists no tests, the collected node ids are written to the
file `collected` beside it. Otherwise only the listed tests run; `measured` then receives the CPU time, with child processes,
of the test loop and of its first pass, and the duration of each test. With `SUITES_FIRST_ONLY`, the session ends there.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

_PICK: Final = Path(os.environ["SUITES_PICK"])
_DURATIONS: dict[str, float] = {}
_MEASURED: dict[str, float] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Write the node ids of all tests, or deselect the tests that are not in the sample."""
    chosen = set(json.loads(_PICK.read_text(encoding="utf-8")))
    if not chosen:
        _PICK.with_name("collected").write_text(json.dumps([item.nodeid for item in items]), encoding="utf-8")
        return
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Measure the tests without the collection, which costs the same whether the tests are judged or not.

    The innermost wrapper ends with the first pass: the plugin judges in a wrapper around it.
    """
    used = _cpu_seconds()
    result = yield
    _MEASURED.update(began=used, first_pass=_cpu_seconds() - used)
    if "SUITES_FIRST_ONLY" in os.environ:
        raise session.Interrupted("only the first pass is measured")
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Write what was measured."""
    if _MEASURED:
        used = _cpu_seconds() - _MEASURED.pop("began")
        measured = {**_MEASURED, "cpu": used, "durations": _DURATIONS}
        _PICK.with_name("measured").write_text(json.dumps(measured), encoding="utf-8")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the phases of a test."""
    _DURATIONS[report.nodeid] = _DURATIONS.get(report.nodeid, 0.0) + report.duration


def _cpu_seconds() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
