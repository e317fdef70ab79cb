"""The store of factors: what was added is on disk, and a store that cannot be used says so."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from leakcheck_incidents.batch_size import store as module
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import KEPT, Store, StoreError

KEY, DEVICE = "set_01_gat_student", "simulated"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "factors.json")


def test_writers_at_once_lose_nothing(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.add(KEY, DEVICE, Run(0.5, number / 100)), range(1, 33)))
    assert sorted(run.peak or 0 for run in store.record(KEY, DEVICE).runs) == [number / 100 for number in range(1, 33)]


def test_the_newest_runs_are_kept_for_each_type_of_device(store: Store) -> None:
    for number in range(KEPT + 3):
        record = store.add(KEY, DEVICE, Run(0.5, 0.1 + number / 100))
    assert record.runs == tuple(Run(0.5, 0.1 + number / 100) for number in range(3, KEPT + 3))
    store.add(KEY, "small", Run(0.65, None))
    assert store.record(KEY, "small").proposal.factor < 0.65
    assert store.record(KEY, "other").proposal.factor == 0.65
    assert store.record(KEY, DEVICE) == record


def test_a_full_disk_keeps_what_was_there_and_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = store.add(KEY, DEVICE, Run(0.5, 0.8))

    def fsync(_descriptor: int) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match=r"cannot be written: No space left on device\..*free some space"):
        store.add(KEY, DEVICE, Run(0.5, 0.9))
    assert store.record(KEY, DEVICE) == before
    assert sorted(path.name for path in store.path.parent.iterdir()) == ["factors.json", "factors.json.lock"]


@pytest.mark.parametrize("content", ["batch: 12", "[1, 2]", '{"runs": 3}', '[{"key": "a", "device": "b"}]'])
def test_a_foreign_file_is_left_alone_and_told(store: Store, content: str) -> None:
    store.path.write_text(content)
    with pytest.raises(StoreError, match=r"factors\.json cannot be read: .*delete it, or use another path"):
        store.add(KEY, DEVICE, Run(0.5, 0.8))
    assert store.path.read_text() == content


def test_a_lock_that_cannot_be_had_is_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    with FileLock(f"{store.path}.lock"), pytest.raises(StoreError, match=r"is locked for 0\.05 s"):
        store.read()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be locked: .*make its folder writable"):
        Store(tmp_path / "file" / "factors.json").read()
