"""A pytest plugin for the sessions that tests run: what is held for good is waited for in vain, and 0.3 s say the same as 2 s."""

from __future__ import annotations

import sys


def pytest_collection_finish() -> None:
    # Not imported: a session that does not measure does without it.
    settling = sys.modules.get("pytest_leakcheck.runner.settling")
    if settling is not None:
        settling.Settling.seconds = min(settling.Settling.seconds, 0.3)
