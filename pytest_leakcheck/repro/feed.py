"""A pytest plugin that tells another process what this one is at: ``-p pytest_leakcheck.repro.feed``.

A JSON object per line, appended to the file that the variable `FEED` names: a test begins, is so far, has ended.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from pytest_leakcheck.progress import Progress, follow
from pytest_leakcheck.repro import FEED


class _Feed:
    """Opened before anything is measured, and never closed: its descriptor is part of every start."""

    def __init__(self, path: str, *, is_child: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._is_child = is_child
        self._test = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = _without_file(nodeid)
        if not self._is_child:
            self._write({"event": "begin", "test": self._test})

    def progress(self, progress: Progress) -> None:
        self._write({"event": "progress", "test": self._test, **progress.to_json()})

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # The end of a process that was started for one test, or for one size of it, is not the end of the test.
        if self._is_child or (report.when != "call" and report.passed):
            return
        verdicts = [one for finding in getattr(report, "leakcheck", ()) for one in finding["verdicts"]]
        told = {
            "event": "end",
            "test": _without_file(report.nodeid),
            "outcome": report.outcome,
            "iteration": max((one["iterations"] for one in verdicts), default=0),
            "verdicts": {one["resource"]: one["outcome"] for one in verdicts},
        }
        self._write(told)

    def _write(self, told: dict[str, Any]) -> None:
        # In one go, so that no line is ever read in halves.
        os.write(self._file, (json.dumps(told) + "\n").encode())


def _without_file(nodeid: str) -> str:
    """The same in the session and in a process that it has started for one test, which sees the file from elsewhere."""
    return nodeid.partition("::")[2] or nodeid


def pytest_configure(config: pytest.Config) -> None:
    path = os.environ.get(FEED)
    if path is None:
        raise pytest.UsageError(f"pytest_leakcheck.repro.feed: {FEED} names no file to write to")
    feed = _Feed(path, is_child=config.pluginmanager.hasplugin("leakcheck-child"))
    config.pluginmanager.register(feed, "leakcheck-feed")
    follow(feed.progress)
