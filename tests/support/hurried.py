"""A pytest plugin for the sessions that tests run: they wait a fraction of the time for what is held for good."""

from __future__ import annotations

import sys


def pytest_collection_finish() -> None:
    # Not imported: a session that does not measure does without it.
    settling = sys.modules.get("pytest_leakcheck.runner.settling")
    if settling is not None:
        settling.Settling.seconds = min(settling.Settling.seconds, 0.3)
        settling.Settling.seconds_alone = min(settling.Settling.seconds_alone, 0.05)
        settling.Settling.seconds_held = min(settling.Settling.seconds_held, 1.0)
