"""A shared folder: entries that arrived while the test ran count, unless other processes make such entries too."""

from __future__ import annotations

import gc
import os
import random
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.folders import Folder, SetAside, watched_folders


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    watched = Folder("disk", str(tmp_path))
    watched.open()
    return watched


def put(folder: Folder, *names: str) -> None:
    for name in names:
        Path(folder.path, name).touch()


def take(folder: Folder, *names: str) -> None:
    for name in names:
        Path(folder.path, name).unlink()


def read(folder: Folder, row: int) -> int:
    folder.relist(row)
    return folder.count


def test_what_was_there_before_does_not_count_and_what_comes_and_goes_does(tmp_path: Path) -> None:
    (tmp_path / "before").touch()
    folder = Folder("disk", str(tmp_path))
    folder.open()
    assert read(folder, 0) == 0
    put(folder, "a", "b")
    assert read(folder, 1) == 2
    take(folder, "a")
    assert read(folder, 2) == 1
    take(folder, "before")
    assert read(folder, 3) == 1
    put(folder, "before")
    assert read(folder, 4) == 2


def test_what_is_remembered_of_a_folder_is_no_work_for_the_collector(folder: Folder) -> None:
    """It runs in every iteration, and a temporary folder may hold 30,000 entries."""
    put(folder, "a")
    assert read(folder, 1) == 1
    assert not gc.is_tracked(folder._known)
    assert not gc.is_tracked(folder._arrived)


def test_a_listing_that_takes_long_is_paid_for_before_the_next(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**10, 20_000_000))
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic_ns", lambda: next(clock))
    folder.relist(1)
    assert not folder.is_due(whole=True)
    folder.changed = True
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic_ns", lambda: 30_000_000)
    assert not folder.is_due(whole=False)
    assert folder.is_due(whole=True)
    monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic_ns", lambda: 50_000_000)
    assert folder.is_due(whole=False)


def test_what_others_make_is_taken_off_all_rows_by_its_kind_of_name(folder: Folder) -> None:
    column = array("q", bytes(8 * 20))
    for row in range(1, 11):
        put(folder, f"mine-{row}", f"theirs-77-{row}")
        column[row] = read(folder, row)
    assert column[10] == 20
    put(folder, *(f"theirs-77-{number}" for number in range(100, 110)))
    assert folder.rested(11, seconds=1.0, worked=1.0)
    folder.recount(column, 10)
    assert column.tolist()[:11] == list(range(11))
    assert set(folder.others) == {"theirs-#-#", "theirs-77-*"}
    put(folder, "mine-11", "theirs-77-111")
    assert read(folder, 11) == 11
    assert folder.kinds() == [f"{folder.path}/mine-#"] * 11


def test_names_that_are_made_up_at_random_are_of_one_kind(folder: Folder) -> None:
    put(folder, "tmpx3k_9a2b", "tmpzzzzzzzz")
    assert read(folder, 1) == 2
    put(folder, "tmpabcdefgh", "tmp01234567")
    assert folder.rested(2, seconds=1.0, worked=1.0)
    assert folder.count == 0
    assert "tmp*" in folder.others


def test_one_that_comes_late_does_not_make_the_kind_that_of_others(folder: Folder) -> None:
    put(folder, *(f"part-{number}" for number in range(17)))
    assert read(folder, 17) == 17
    put(folder, "part-17")
    assert not folder.rested(18, seconds=0.5, worked=1.0)
    assert folder.count == 17
    assert not folder.others


def test_a_kind_that_comes_faster_while_the_test_runs_still_counts(folder: Folder) -> None:
    """The test and another process both let ``tempfile`` make up the names."""
    made_up = random.Random(1)
    names = ["tmp" + "".join(made_up.choices("ghijklmnopqrstuvwxyz", k=8)) for _ in range(150)]
    put(folder, *names[:120])
    read(folder, 1)
    put(folder, *names[120:])
    assert not folder.rested(61, seconds=1.0, worked=2.0)
    assert folder.count == 120


@pytest.mark.laboratory
def test_kinds_are_counted_over_rests_without_overflow(folder: Folder) -> None:
    put(folder, *(f"noise-{number}" for number in range(2000)))
    read(folder, 1)
    put(folder, *(f"noise-{number}" for number in range(2000, 4000)))
    assert folder.rested(2, seconds=1.0, worked=1.0)
    assert folder.count == 0


def test_a_restart_forgets_what_has_arrived(folder: Folder) -> None:
    put(folder, "a")
    assert read(folder, 3) == 1
    folder.restart()
    assert read(folder, 0) == 0


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be watched here"):
        Folder("shm", str(tmp_path / "none")).open()


def test_shared_memory_and_the_temporary_folder_are_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert [(one.resource, one.path) for one in watched_folders()] == [("shm", "/dev/shm"), ("disk", str(tmp_path))]


@pytest.fixture
def followed(folder: Folder) -> Iterator[Folder]:
    folder.follow_makers()
    # Only what Python reports, as where the kernel may not be asked.
    folder.provenance.makers = None
    yield folder
    folder.close()


def from_elsewhere(folder: Folder, *names: str) -> None:
    """By an earlier process, as far as anybody knows: no event is raised in this one."""
    for name in names:
        os.mkfifo(Path(folder.path, name))


def test_what_is_made_here_counts_whatever_arrives_at_rest(followed: Folder) -> None:
    column = array("q", bytes(8 * 20))
    for row in range(1, 11):
        put(followed, f"tmp-{row}")
        from_elsewhere(followed, f"tmp-{100 + row}")
        column[row] = read(followed, row)
    from_elsewhere(followed, *(f"tmp-{number}" for number in range(200, 210)))
    assert followed.rested(11, seconds=1.0, worked=1.0)
    followed.recount(column, 10)
    assert column.tolist()[:11] == list(range(11))
    assert (followed.count, followed.own) == (10, 10)
    put(followed, "tmp-11")
    from_elsewhere(followed, "tmp-111")
    assert read(followed, 11) == 11
    assert followed.set_aside == SetAside(11, 10, ("tmp-#", "tmp-*"))


def test_what_a_thread_of_the_test_makes_while_it_rests_counts_too(followed: Folder) -> None:
    thread = threading.Thread(target=put, args=(followed, "tmp-1", "tmp-2", "tmp-3"))
    thread.start()
    thread.join()
    assert not followed.rested(1, seconds=1.0, worked=1.0)
    assert followed.count == 3


def test_what_is_set_aside_is_forgotten_as_it_goes(folder: Folder) -> None:
    put(folder, "tmp-1", "tmp-2")
    read(folder, 1)
    put(folder, "tmp-3", "tmp-4", "tmp-5")
    assert folder.rested(2, seconds=1.0, worked=1.0)
    assert (folder.set_aside.working, folder.set_aside.resting) == (2, 3)
    take(folder, "tmp-1", "tmp-3")
    read(folder, 2)
    assert (folder.set_aside.working, folder.set_aside.resting) == (1, 2)
    folder.restart()
    assert folder.set_aside.working == 0


def test_what_belongs_to_another_user_does_not_count(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder, "ours")
    assert read(folder, 1) == 1
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    put(folder, "theirs")
    assert read(folder, 2) == 1
