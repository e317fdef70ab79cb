"""The kernel names the process that made an entry: this one, a child or a stranger; if uncertain, none is named."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from pytest_leakcheck.probes import fanotify
from pytest_leakcheck.probes.fanotify import Children, Makers, is_here, is_stranger
from pytest_leakcheck.probes.folders import Folder


def is_allowed() -> bool:
    try:
        Makers(tempfile.gettempdir())
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not is_allowed(), reason="fanotify may not be used here")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder("disk", str(tmp_path))
    folder.open()
    folder.follow_makers()
    yield folder
    folder.close()


@pytest.fixture
def nobody_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' tests may have left one, such as the tracker of shared memory."""

    def no_child(*_args: object) -> None:
        raise ChildProcessError

    monkeypatch.setattr("os.waitid", no_child)


def test_what_this_process_made_without_an_event_is_known(folder: Folder) -> None:
    os.mkfifo(Path(folder.path, "pipe"))
    folder.relist(1)
    assert (folder.count, folder.own, folder.made_here) == (1, 0, 1)


def test_what_a_child_made_counts(folder: Folder) -> None:
    subprocess.run(["touch", f"{folder.path}/one"], check=True)
    folder.relist(1)
    assert (folder.count, folder.made_here) == (1, 0)


@pytest.mark.parametrize("process", [0, 2**22 + 1])
@pytest.mark.usefixtures("nobody_alive")
def test_what_a_stranger_made_does_not_count_where_there_was_no_child(
    folder: Folder, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without privileges it has no number; and it may have ended."""
    makers = folder.provenance.makers
    assert makers
    real = makers.take
    monkeypatch.setattr(makers, "take", lambda: dict.fromkeys(real(), process))
    os.mkfifo(Path(folder.path, "theirs"))
    folder.relist(1)
    assert folder.count == 0
    assert not is_stranger(os.getpid(), folder.provenance.children)


@pytest.mark.usefixtures("nobody_alive")
def test_a_child_that_has_ended_is_remembered() -> None:
    children = Children()
    assert not children.any()
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert children.any()
    assert not is_stranger(0, children)
    assert not Children().any()


def test_the_tracker_of_shared_memory_makes_nothing() -> None:
    segment = SharedMemory(create=True, size=1)
    segment.close()
    segment.unlink()
    children = Children()
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    assert not children.any()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert children.any()
        child.kill()
    assert children.any()


def test_a_live_process_elsewhere_is_a_stranger_beside_children_too() -> None:
    children = Children()
    with subprocess.Popen(["sleep", "60"]) as child:
        assert children.any()
        assert is_stranger(1, children)
        assert not is_stranger(child.pid, children)
        assert is_here(child.pid)
        assert is_here(os.getpid())
        assert not is_stranger(0, children)
        assert not is_here(0)
        assert not is_here(1)
        child.kill()


def test_a_queue_is_kept_and_one_that_the_program_closed_is_not_read(tmp_path: Path) -> None:
    makers = Makers(str(tmp_path))
    key = os.getpid(), str(tmp_path)
    queue = fanotify._open_queues[key]
    (tmp_path / "before").touch()
    makers = Makers(str(tmp_path))
    assert fanotify._open_queues[key] == queue
    assert makers.take() == {}
    (tmp_path / "one").touch()
    assert makers.take() == {"one": os.getpid()}
    os.close(queue)
    other = os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, queue)
    (tmp_path / "two").touch()
    assert makers.take() == {}
    again = Makers(str(tmp_path))
    (tmp_path / "three").touch()
    assert again.take() == {"three": os.getpid()}
    # The number was another file's by then.
    os.fstat(queue)
    os.close(queue)
    os.close(other)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_the_queue_to_its_parent(tmp_path: Path) -> None:
    makers = Makers(str(tmp_path))
    (tmp_path / "one").touch()
    if (child := os.fork()) == 0:
        os._exit(len(makers.take()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert makers.take() == {"one": os.getpid()}


def test_it_costs_little_where_nothing_happens(tmp_path: Path) -> None:
    makers = Makers(str(tmp_path))
    began = time.perf_counter()
    for _ in range(1000):
        makers.take()
    assert time.perf_counter() - began < 1
