"""Entries of a private folder all count; those of a shared one by who made them, as far as that is known."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from pytest_leakcheck.probes.audit_events import MadeElsewhere
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.folders import Folder, MadeBeside, used_by_others, used_here


@pytest.fixture
def private(tmp_path: Path) -> Folder:
    path = tmp_path / "leakcheck-12345678" / "t"
    path.mkdir(parents=True)
    folder = Folder("disk", str(path))
    folder.open()
    assert folder.private
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder("shm", str(tmp_path))
    folder.open()
    assert not folder.private
    yield folder
    folder.close()


def put(folder: Folder, *names: str) -> None:
    for name in names:
        Path(folder.path, name).touch()


def from_elsewhere(folder: Folder, *names: str) -> None:
    """By another process, as far as anybody knows: no event is raised in this one."""
    for name in names:
        os.mkfifo(Path(folder.path, name))


def read(folder: Folder, row: int) -> int:
    folder.relist(row)
    return folder.count


def test_what_was_there_before_does_not_count_and_what_comes_and_goes_does(shared: Folder) -> None:
    put(shared, "before")
    shared.restart()
    assert read(shared, 0) == 0
    put(shared, "a", "b")
    assert read(shared, 1) == 2
    Path(shared.path, "a").unlink()
    assert read(shared, 2) == 1
    Path(shared.path, "before").unlink()
    assert read(shared, 3) == 1
    shared.restart()
    assert read(shared, 0) == 0


def test_a_private_folder_is_counted_through_all_levels_with_what_others_make(private: Folder) -> None:
    inner = Path(private.path, "one", "two")
    inner.mkdir(parents=True)
    from_elsewhere(private, "one/two/pipe", "one/two/other")
    assert read(private, 1) == private.read() == 4
    assert not private.unknown
    assert private.is_due()
    (inner / "pipe").unlink()
    assert read(private, 2) == private.read() == 3
    assert sorted(private.kinds()) == ["$TMPDIR/one", "$TMPDIR/one/*", "$TMPDIR/one/*"]
    shutil.rmtree(private.path)
    assert read(private, 3) == private.read() == 0


def test_what_is_made_elsewhere_counts_if_a_budget_names_the_resource(tmp_path: Path) -> None:
    temporary = tmp_path / "leakcheck-12345678" / "t"
    temporary.mkdir(parents=True)
    folder = Folder("disk", str(temporary), MadeElsewhere(str(temporary), whole=True))
    folder.open()
    try:
        for name in ("run-0a1b", "run-2c3d"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "log").touch()
        assert folder.is_due()
        assert read(folder, 1) == folder.read() == 4
        assert folder.uncounted == ""
        assert set(folder.kinds()) == {f"{tmp_path}/run-#", f"{tmp_path}/run-#/*"}
        folder.named = False
        assert read(folder, 2) == 0
        assert folder.uncounted.startswith("4 new files are outside the temporary folder")
        for name in ("run-0a1b", "run-2c3d"):
            shutil.rmtree(tmp_path / name)
        assert read(folder, 3) == 0
        assert (folder.uncounted, folder.has_elsewhere) == ("", False)
    finally:
        folder.close()


def test_a_link_out_of_a_private_folder_is_not_followed(private: Folder) -> None:
    Path(private.path, "link").symlink_to(Path(__file__).parent)
    assert read(private, 1) == 1


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the collector tracks all dictionaries from Python 3.14 on")
def test_what_is_remembered_of_a_folder_is_no_work_for_the_collector(shared: Folder) -> None:
    """It runs in every iteration, and a temporary folder may hold 30,000 entries."""
    put(shared, "a")
    from_elsewhere(shared, "b")
    shared.restart()
    from_elsewhere(shared, "c")
    assert read(shared, 1) == 1
    assert not gc.is_tracked(shared._start)
    assert not gc.is_tracked(shared._unknown)


def test_a_folder_is_listed_again_only_after_a_change(shared: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes(at: int) -> bool:
        """Whether it may have changed, by a clock that shows so many seconds after the last change."""
        last = Path(shared.path).stat().st_ctime_ns
        monkeypatch.setattr("pytest_leakcheck.probes.clock.wall_time_ns", lambda: last + at * 1_000_000_000)
        return shared.is_due()

    # Within a tick of the clock, a second change leaves the same time.
    assert [changes(0), changes(0), changes(1), changes(2)] == [True, True, True, False]
    put(shared, "a")
    assert [changes(1), changes(2)] == [True, False]


def test_without_a_descriptor_the_last_count_stays(shared: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    put(shared, "a")
    assert read(shared, 1) == 1
    put(shared, "b")

    def refuse(_path: str) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("pytest_leakcheck.probes.folders.scandir", refuse)
    assert read(shared, 2) == 1
    monkeypatch.undo()
    assert read(shared, 3) == 2


def take_off(folder: Folder, column: array[int], *, set_aside: bool) -> None:
    """Correct ten rows."""
    for rows in folder.leave_out(10, set_aside=set_aside):
        for row in rows:
            column[row] -= 1


def test_entries_of_unknown_origin_are_set_aside_on_all_rows(shared: Folder) -> None:
    column = array("q", bytes(8 * 20))
    for row in range(1, 11):
        put(shared, f"mine-{row}")
        from_elsewhere(shared, f"other-{row}")
        if row > 2:
            Path(shared.path, f"other-{row - 2}").unlink()
        column[row] = read(shared, row)
    assert shared.unknown
    assert column[10] == 12
    take_off(shared, column, set_aside=False)
    # Those that are gone did not stay, so they count for no process.
    assert column.tolist()[:11] == [*range(9), 10, 12]
    assert shared.unknown
    take_off(shared, column, set_aside=True)
    assert column.tolist()[:11] == list(range(11))
    assert (shared.count, shared.aside, shared.unknown) == (10, 2, False)
    assert shared.kinds() == [f"{shared.path}/mine-#"] * 10
    assert read(shared, 11) == shared.read() == 10
    Path(shared.path, "other-9").unlink()
    assert shared.aside == 1


def test_a_folder_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be watched here"):
        Folder("shm", str(tmp_path / "none")).open()


def test_what_belongs_to_another_user_does_not_count(shared: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from_elsewhere(shared, "ours")
    assert read(shared, 1) == 1
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    from_elsewhere(shared, "theirs")
    assert read(shared, 2) == 1


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# Started by a shell that ends at once, so that it is not below this process.
STRANGER = """
import os, sys, time
folder, how = sys.argv[1:]
if how == "open":
    file = open(os.path.join(folder, "theirs"), "w")
elif how == "below":
    os.mkdir(os.path.join(folder, "theirs"))
    file = open(os.path.join(folder, "theirs", "inner"), "w")
else:
    os.mkdir(os.path.join(folder, "theirs"))
    os.chdir(os.path.join(folder, "theirs"))
print(os.getpid(), flush=True)
os.close(1)
time.sleep(60)
"""


@contextmanager
def stranger(folder: Path, how: str) -> Iterator[None]:
    command = ["sh", "-c", '"$@" &', "sh", sys.executable, "-c", STRANGER, str(folder), how]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 600
        while Path(f"/proc/{pid}/fd").exists() and time.monotonic() < deadline:
            time.sleep(0.001)


@pytest.mark.parametrize("how", ["open", "below", "works there"])
def test_what_a_stranger_uses_is_told_from_what_is_ours(tmp_path: Path, how: str) -> None:
    with (tmp_path / "ours").open("w"), stranger(tmp_path, how):
        assert used_by_others(str(tmp_path), ["ours", "theirs", "there"]) == {"theirs"}
        assert used_by_others(str(tmp_path), ["ours"]) == set()
    assert used_by_others(str(tmp_path), ["ours", "theirs"]) == set()


def test_what_is_open_or_mapped_here_or_below_is_ours(tmp_path: Path) -> None:
    for name in ("open", "mapped", "closed"):
        (tmp_path / name).write_bytes(b"1")
    with (tmp_path / "open").open(), (tmp_path / "mapped").open() as file:
        kept = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        file.close()
        assert used_here(str(tmp_path), ["open", "mapped", "closed"]) == {"open", "mapped"}
        kept.close()
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(tmp_path), "open"], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert used_here(str(tmp_path), ["theirs", "closed"]) == {"theirs"}
        child.kill()


def test_a_semaphore_is_found_by_its_inode() -> None:
    """It is mapped before it is given its name."""
    kept = multiprocessing.get_context("spawn").Semaphore(1)
    name = "sem." + kept._semlock.name.lstrip("/")  # type: ignore[attr-defined]
    assert used_here("/dev/shm", [name]) == {name}
    assert used_by_others("/dev/shm", [name]) == set()


def test_what_pytest_makes_in_a_private_folder_does_not_count(private: Folder) -> None:
    for name in ("pytest", "pytest-of-me", "pytest-x", "other"):
        path = Path(private.path, name, "below")
        path.mkdir(parents=True)
    assert sorted(private.names()) == ["other", "other/below", "pytest-x", "pytest-x/below"]


def test_the_logs_of_ray_do_not_count_once_it_is_loaded(private: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(private.path, "ray", "session_1").mkdir(parents=True)
    assert sorted(private.names()) == ["ray", "ray/session_1"]
    monkeypatch.setitem(sys.modules, "ray._private.worker", ModuleType("worker"))
    assert list(private.names()) == []


def test_folders_that_this_process_makes_beside_a_private_one_count_as_well(tmp_path: Path) -> None:
    for name in ("earlier", "leakcheck-12345678/t"):
        (tmp_path / name).mkdir(parents=True)
    beside = MadeBeside(str(tmp_path))
    path = str(tmp_path / "leakcheck-12345678" / "t")
    folder = Folder("disk", path, MadeElsewhere(path, whole=True))
    try:
        folder.open()
        for name in ("made", "made/below", "pytest-of-me", "leakcheck-abcdefgh"):
            (tmp_path / name).mkdir()
        (tmp_path / "linked").symlink_to(tmp_path / "earlier")
        # By another process.
        subprocess.run(["mkdir", tmp_path / "theirs", tmp_path / "found"], check=True)
        (tmp_path / "made" / "below" / "theirs").mkdir()
        (tmp_path / "found").mkdir(exist_ok=True)
        folder.restart()
        assert (folder.is_due(), read(folder, 0)) == (True, 0)
        for name in ("made/below", "linked", "pytest-of-me", "leakcheck-abcdefgh", "theirs", "found"):
            os.mkfifo(tmp_path / name / "pipe")
        (tmp_path / "made" / "file").touch()
        assert (folder.is_due(), read(folder, 1), folder.read()) == (True, 2, 2)
        assert {folder.path_of(name) for name in folder.names()} == {
            str(tmp_path / "made" / "file"),
            str(tmp_path / "made" / "below" / "pipe"),
        }
        assert sorted(folder.kinds()) == [str(tmp_path / "made" / "*"), str(tmp_path / "made" / "below" / "*")]
    finally:
        folder.close()
        beside.close()
    folder.restart()
    assert read(folder, 2) == 0
