from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.runner.repetition import measure_block
from pytest_leakcheck.runner.settling import Settling

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")


def test_a_thread_that_is_about_to_end_is_waited_for() -> None:
    with measure_block("t", (Budget("thread", 0),), {}) as finished:
        threading.Thread(target=time.sleep, args=(0.03,)).start()
    assert [one.outcome for one in finished().verdicts] == ["ok"]


def test_a_block_that_raises_gives_its_own_error_and_leaves_nothing_open() -> None:
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(ZeroDivisionError), measure_block("t", (Budget("fd", 0),), {}):
        raise ZeroDivisionError
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize(("make", "outcome"), [(Path.touch, "over_budget"), (os.mkfifo, "inconclusive")])
def test_an_entry_of_unknown_origin_leaves_a_block_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], outcome: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(Settling, "seconds_alone", 0.01)
    with measure_block("t", (Budget("disk", 0),), {}) as finished:
        make(tmp_path / "entry")
    (verdict,) = finished().verdicts
    assert verdict.outcome == outcome
    assert verdict.reason.startswith("+1 after" if outcome == "over_budget" else "1 entry of unknown origin in ")
