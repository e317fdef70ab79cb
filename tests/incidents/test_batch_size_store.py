"""The store of factors: nothing that was acknowledged is lost, whatever happens to its writers, its disk or its files."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from leakcheck_incidents.batch_size import durable, fixed
from leakcheck_incidents.batch_size.records import IN_A_ROW, KEPT, Entry, Record, from_json, to_json
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store, StoreError, dump, load
from projects import ROOT
from store_writers import BEFORE, DEVICE, KEY, STEPS, entry

WRITERS = 50


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "factors.json", patience=0.05)


@pytest.fixture
def filled(store: Store) -> Store:
    for number in range(BEFORE):
        store.add(KEY, DEVICE, entry(f"before-{number}", number))
    return store


def ids(store: Store, key: str = KEY) -> set[str]:
    return {one.run_id for one in store.record(key, DEVICE).entries}


def written_by(mode: str, store: Store, *more: str) -> tuple[set[str], int]:
    """What was acknowledged, and the number that is said at the end."""
    command = [sys.executable, "-B", "tests/support/store_writers.py", mode, str(store.path), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    *names, last = done.stdout.split("\n")[:-1]
    return set(names), int(last.removeprefix("= "))


def test_fifty_writers_at_once_lose_nothing(store: Store) -> None:
    acknowledged, failed = written_by("many", store, f"{WRITERS}")
    assert failed == 0
    assert len(acknowledged) == 2 * WRITERS
    records = store.read()
    assert len(records) == 1 + WRITERS
    assert {one.run_id for record in records.values() for one in record.entries} == acknowledged


def test_a_kill_at_any_call_of_a_write_loses_nothing_that_was_acknowledged(store: Store) -> None:
    acknowledged, died = written_by("killed", store)
    # Every call of a write was the last one once, and after those there were writes that came through.
    assert 10 <= died < STEPS
    assert len(acknowledged) == BEFORE + STEPS - died
    assert acknowledged <= ids(store)
    # A run that was not acknowledged may have been written all the same: the kill came between.
    assert ids(store) - acknowledged <= {f"at-{step}" for step in range(died)}
    assert sorted(path.name for path in store.path.parent.iterdir()) == [
        "factors.json",
        "factors.json.copy",
        "factors.json.lock",
    ]


def test_a_full_disk_keeps_what_was_there_and_says_so(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(descriptor: int, content: Any) -> int:
        if len(content) > 100:
            # As the system does it: what still fits is written, and the next call fails.
            return real(descriptor, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(StoreError) as failed:
            filled.add(KEY, DEVICE, entry("lost", 9))
    assert str(failed.value) == (
        f"{filled.path} cannot be written: No space left on device. This is the store of batch-size factors; its previous "
        "content is kept: free some space, or use another path"
    )
    assert ids(filled) == {f"before-{number}" for number in range(BEFORE)}
    assert not filled.path.with_name("factors.json.new").exists()
    filled.add(KEY, DEVICE, entry("later", 10))
    assert "later" in ids(filled)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its copy too, and for a process that reads it without the lock."""
    path = tmp_path / "file"
    durable.replace_file(path, b"before")

    def write(*_: Any) -> int:
        assert path.read_bytes() == b"before"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        durable.replace_file(path, b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("left", [0, 1, 200])
@pytest.mark.parametrize("which", ["factors.json", "factors.json.copy"])
def test_a_file_that_was_truncated_is_put_aside_and_made_up_for(
    filled: Store, caplog: pytest.LogCaptureFixture, which: str, left: int
) -> None:
    path = filled.path.with_name(which)
    os.truncate(path, left)
    assert ids(filled) == {f"before-{number}" for number in range(BEFORE)}
    filled.add(KEY, DEVICE, entry("later", 10))
    assert len(ids(filled)) == BEFORE + 1
    if which == "factors.json":
        (aside,) = path.parent.glob("factors.json.broken-*")
        assert aside.stat().st_size == left
        assert f"factors.json: not JSON, {left:,} bytes" in caplog.text
        assert aside.name in caplog.text
        assert "its copy has all acknowledged records" in caplog.text
    assert load(path.read_bytes())[KEY, DEVICE] == filled.record(KEY, DEVICE)


def test_a_file_that_was_deleted_is_made_up_for(filled: Store) -> None:
    filled.path.unlink()
    assert len(ids(filled)) == BEFORE


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"set_01": {"safety_factor": 0.6, "runs": []}}', "not a store of batch-size factors"),
        ("[1, 2, 3]", "not a store of batch-size factors"),
        ("batch: 12", "not JSON, 9 bytes"),
        (
            '{"format": "batch-size factors", "version": 1, "records": [{"key": "a"}]}',
            "a record is invalid",
        ),
        ('{"format": "batch-size factors", "version": 1}', "a record is invalid"),
    ],
)
def test_a_foreign_file_is_put_aside_whole_and_told(
    store: Store, caplog: pytest.LogCaptureFixture, content: str, why: str
) -> None:
    store.path.write_text(content)
    store.add(KEY, DEVICE, entry("first", 1))
    assert ids(store) == {"first"}
    (aside,) = store.path.parent.glob("factors.json.broken-*")
    assert aside.read_text() == content
    assert why in caplog.text


def test_a_store_of_a_newer_version_is_left_alone(filled: Store) -> None:
    newer = filled.path.read_text().replace('"version": 1', '"version": 2')
    filled.path.write_text(newer)
    for act in (filled.read, lambda: filled.add(KEY, DEVICE, entry("more", 9))):
        with pytest.raises(
            StoreError, match=r"of version 2, this program supports up to 1\..*use another path, or a newer"
        ):
            act()
    assert filled.path.read_text() == newer


def test_a_lock_that_is_held_is_waited_for_and_then_told(filled: Store) -> None:
    with (
        FileLock(f"{filled.path}.lock"),
        pytest.raises(StoreError, match=r"has been locked by another process for 0\.05 s"),
    ):
        filled.add(KEY, DEVICE, entry("late", 9))
    filled.add(KEY, DEVICE, entry("on time", 9))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(tmp_path / "no" / "factors.json")
    shutil.rmtree(tmp_path / "no", ignore_errors=True)
    (tmp_path / "no").write_text("a file")
    with pytest.raises(StoreError, match=r"cannot be locked: .*its folder must exist and be writable"):
        store.read()
    choice = fixed.batch_size(store, KEY, DEVICE, 100)
    assert (choice.batch_size, choice.why) == (65, "small data set")
    assert "starts with the factor 0.650" in caplog.text


def test_of_a_configuration_fifty_runs_are_kept_and_its_files_stop_growing(store: Store) -> None:
    assert KEPT == 50
    sizes = []
    for number in range(KEPT + 30):
        record = store.add(KEY, DEVICE, entry(f"run-{number:03}", 1000 + number))
        sizes.append(store.path.stat().st_size)
    assert [one.run_id for one in record.entries] == [f"run-{number:03}" for number in range(30, KEPT + 30)]
    assert sizes[KEPT] > sizes[KEPT - 10]
    assert len(set(sizes[KEPT - 1 :])) == 1
    assert len(list(store.path.parent.iterdir())) == 3


def test_ranks_of_one_training_are_one_run(store: Store) -> None:
    for peak in (0.7, 0.9, 0.8):
        store.add(KEY, DEVICE, Entry("same", 1, Run(0.5, peak), 64))
    record = store.record(KEY, DEVICE)
    assert [one.run for one in record.entries] == [Run(0.5, 0.9)]
    store.add(KEY, DEVICE, Entry("same", 2, Run(0.5, None, oom=True), 64, "rank 3"))
    (merged,) = store.record(KEY, DEVICE).entries
    assert (merged.run, merged.notes, merged.timestamp) == (Run(0.5, None, oom=True), "rank 3", 2)


def test_each_type_of_device_has_a_factor_of_its_own(store: Store) -> None:
    store.add(KEY, "small", Entry("a", 1, Run(0.65, None, oom=True), 64))
    store.add(KEY, "large", Entry("b", 1, Run(0.65, 0.45), 64))
    small, large = store.record(KEY, "small").proposal, store.record(KEY, "large").proposal
    assert small.factor < 0.65 < large.factor
    assert store.record(KEY, "other").proposal.factor == 0.65
    assert store.reset(KEY) == 2
    assert store.read() == {}
    assert store.reset(KEY) == 0


def test_statistics() -> None:
    runs = [Run(0.6, None, oom=True), Run(0.3, 0.6), Run(0.4, 0.8)]
    record = Record(KEY, DEVICE).with_entries([Entry(f"{at}", at, run, 1) for at, run in enumerate(runs)])
    known = record.statistics
    assert (known.num_runs, known.successful_runs, known.max_peak, known.converged) == (3, 2, 0.8, False)
    assert known.average_peak == pytest.approx(0.7)
    assert known.variance == pytest.approx(0.01)
    assert record.initial.reason == "small data set"
    nothing = Record(KEY, DEVICE).statistics
    assert (nothing.average_peak, nothing.max_peak, nothing.variance, nothing.converged) == (None, None, None, False)


@pytest.mark.parametrize(
    ("last", "converged"),
    [
        ((0.9, 0.91, 0.89), True),
        ((0.9, 0.9), False),
        ((0.9, 0.93, 0.9), False),
        ((0.9, 0.9, 0.9, 0.5), False),
        ((0.5, 0.9, 0.9, 0.9), True),
        ((0.9, None, 0.9), False),
    ],
)
def test_converged_is_three_runs_in_a_row_within_2_percent(last: tuple[float | None, ...], converged: bool) -> None:
    assert IN_A_ROW == 3
    entries = [Entry(f"{at}", at, Run(0.5, peak, oom=peak is None), 1) for at, peak in enumerate(last)]
    assert Record(KEY, DEVICE).with_entries(entries).statistics.converged is converged


SHARES = st.floats(1e-6, 10)
ENTRIES = st.builds(
    Entry,
    st.text(max_size=8),
    st.floats(0, 2e9),
    st.one_of(st.builds(Run, SHARES, SHARES), st.builds(Run, SHARES, st.none(), st.booleans())),
    st.integers(1, 1 << 40),
    st.text(max_size=20),
)


@given(st.lists(ENTRIES, max_size=60))
@settings(deadline=None)
def test_what_is_written_is_read_back(entries: list[Entry]) -> None:
    record = Record(KEY, DEVICE).with_entries(entries)
    assert len(record.entries) <= KEPT
    assert from_json(json.loads(json.dumps(to_json(record)))) == record
    assert load(dump({(KEY, DEVICE): record})) == {(KEY, DEVICE): record}


@given(st.lists(ENTRIES, max_size=8), st.lists(ENTRIES, max_size=8))
@settings(deadline=None)
def test_the_order_in_which_runs_of_two_stores_come_together_does_not_matter(
    one: list[Entry], two: list[Entry]
) -> None:
    """For runs of different ids, as training runs have them."""
    known = {entry.run_id for entry in one}
    two = [entry for entry in two if entry.run_id not in known]
    empty = Record(KEY, DEVICE)
    assert empty.with_entries(one).with_entries(two) == empty.with_entries(two).with_entries(one)


def test_a_factor_that_was_edited_by_hand_has_no_effect(filled: Store) -> None:
    value = json.loads(filled.path.read_text())
    before = filled.record(KEY, DEVICE).proposal
    value["records"][0]["safety_factor"] = 0.99
    filled.path.write_text(json.dumps(value))
    assert filled.record(KEY, DEVICE).proposal == before


def test_reading_says_nothing_where_all_is_well(filled: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "leakcheck_incidents"):
        filled.read()
    assert caplog.text == ""
