"""Both ways to follow folders say the same: whether anything came or went in them since one last asked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.probes import folder_changes
from pytest_leakcheck.probes.folder_changes import Changes, Notices, Stamps, follow
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.runner.sampler import Sampler


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return str(tmp_path / "a"), str(tmp_path / "b")


@pytest.fixture(params=[Notices, Stamps])
def followed(request: pytest.FixtureRequest, paths: tuple[str, str]) -> Iterator[Changes]:
    following: Changes = request.param(paths)
    yield following
    following.close()


@pytest.fixture
def notices(paths: tuple[str, str]) -> Iterator[Notices]:
    following = Notices(paths)
    yield following
    following.close()


def test_what_comes_and_what_goes_is_seen_in_its_folder(followed: Changes, paths: tuple[str, str]) -> None:
    for path in paths:
        os.utime(path, ns=(1, 1))
    followed.take()
    assert not followed.take()
    for path in paths:
        # A change within one tick of the kernel's clock may leave the folder's time as it was.
        for number in range(200):
            Path(path, f"part-{number}").touch()
            assert path in followed.take()
        for number in range(200):
            Path(path, f"part-{number}").unlink()
            assert path in followed.take()


def test_what_is_moved_in_or_out_is_seen(notices: Notices, paths: tuple[str, str]) -> None:
    first, second = paths
    Path(first, "x").touch()
    assert notices.take() == {first}
    Path(first, "x").rename(Path(second, "x"))
    assert notices.take() == {first, second}
    assert not notices.take()


def test_what_is_only_written_or_lies_deeper_is_no_change(notices: Notices, paths: tuple[str, str]) -> None:
    folder = Path(paths[0])
    (folder / "inner").mkdir()
    assert notices.take() == {paths[0]}
    (folder / "inner" / "file").touch()
    assert not notices.take()


def test_when_too_much_happened_at_once_anything_may_have_changed(
    notices: Notices, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says so in an event of no watch, -1 (man 7 inotify, IN_Q_OVERFLOW)."""
    Path(paths[0], "x").touch()
    events = iter([folder_changes._EVENT_HEADER.pack(-1, 0x4000, 0, 0)])

    def read(_descriptor: int, _most: int) -> bytes:
        try:
            return next(events)
        except StopIteration:
            raise BlockingIOError from None

    monkeypatch.setattr(os, "read", read)
    assert notices.take() == set(paths)


def test_what_the_program_closes_is_opened_anew(notices: Notices, paths: tuple[str, str]) -> None:
    os.close(notices._queue.number)
    assert set(notices.take()) == set(paths)
    assert not notices.take()
    Path(paths[1], "x").touch()
    assert notices.take() == {paths[1]}


def test_one_folder_under_two_names_is_one(tmp_path: Path) -> None:
    following = Notices([str(tmp_path), str(tmp_path)])
    (tmp_path / "x").touch()
    assert following.take() == {str(tmp_path)}
    following.close()


def test_what_is_opened_is_closed(paths: tuple[str, str], tmp_path: Path) -> None:
    for way, opened in ((Notices, 0), (Stamps, 2)):
        Notices(paths).close()
        before = open_targets()
        following: Changes = way(paths)
        assert len(open_targets()) == len(before) + opened
        assert max(open_targets()) > 900, "under low numbers a program that closes one twice would hit them"
        following.close()
        with pytest.raises(OSError, match="none"):
            way([*paths, str(tmp_path / "none")])
        assert open_targets().items() <= before.items()


def test_a_queue_is_kept_and_follows_other_folders(paths: tuple[str, str]) -> None:
    first, second = paths
    following = Notices([first])
    queue = following._queue.number
    Path(first, "x").touch()
    following.close()
    following = Notices([second])
    assert following._queue.number == queue
    Path(first, "y").touch()
    assert not following.take()
    Path(second, "y").touch()
    assert following.take() == {second}
    beside = Notices([first])
    assert beside._queue.number != queue
    following.close()
    beside.close()
    assert list(open_targets().values()).count("anon_inode:inotify") == 1


def test_a_kept_queue_is_not_another_process_own(paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    parents = Notices(paths)
    parents.close()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        child = Notices(paths)
    assert child._queue != parents._queue
    child.close()


def test_a_forked_child_that_closes_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    """In a separate process, since this one may have threads, and should not be forked then."""
    script = f"""
import os
from pytest_leakcheck.probes.folder_changes import Notices
following = Notices([{str(tmp_path)!r}])
child = os.fork()
if not child:
    following.close()
    os._exit(0)
os.waitpid(child, 0)
open({str(tmp_path / "x")!r}, "w").close()
print(following.take() == {{{str(tmp_path)!r}}})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_number_that_the_program_has_closed_and_used_is_left_alone(paths: tuple[str, str], tmp_path: Path) -> None:
    following = Notices(paths)
    number = following._queue.number
    following.close()
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    os.dup2(descriptor, number)
    os.close(descriptor)
    again = Notices(paths)
    again.close()
    # After a second close, too.
    following.close()
    assert open_targets()[number] == str(tmp_path / "file")
    os.close(number)


def test_without_inotify_the_times_of_the_folders_are_compared(
    paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def used_up(_result: int, _path: str | None = None) -> int:
        raise OSError(errno.EMFILE, "instances used up")

    following = follow(paths)
    assert isinstance(following, Notices)
    following.close()
    monkeypatch.setattr(folder_changes, "_checked", used_up)
    following = follow(paths)
    assert isinstance(following, Stamps)
    following.close()


def test_a_change_in_a_shared_folder_is_not_taken_for_the_harness_own_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set of changed folders is an object during the reading of a row; none may be counted as the harness's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sampler = Sampler(("disk", "object"), {}, 100)
    file = tmp_path / "file"
    try:
        sampler.start()
        for _ in range(40):
            file.touch()
            file.unlink()
            sampler.read()
            sampler.subtract_own_work()
        readings = sampler.samples.series("object").readings
    finally:
        sampler.close()
    assert readings[-1] == readings[5]
