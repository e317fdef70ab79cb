"""What Python makes in this process is known by its name; what it does not report is not."""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import repeat
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from pytest_leakcheck.probes import audit_events
from pytest_leakcheck.probes.audit_events import MadeElsewhere, MadeHere


@pytest.fixture
def made() -> Iterator[MadeHere]:
    one = MadeHere()
    one.start()
    yield one
    one.stop()


def bind(path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="s-") as folder, socket.socket(socket.AF_UNIX) as one:
        # Through a link, since the path of a socket must be short.
        link = Path(folder, "link")
        link.symlink_to(path.parent)
        one.bind(str(link / path.name))


def move(path: Path) -> None:
    tmp_file(path).replace(path)


def tmp_file(path: Path) -> Path:
    other = path.with_name("before")
    other.touch()
    return other


def open_below(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    os.close(os.open(path.name, os.O_CREAT, dir_fd=folder))
    os.close(folder)


WAYS: dict[str, Callable[[Path], object]] = {
    "open": lambda path: path.open("w").close(),
    "bytes": lambda path: os.close(os.open(os.fsencode(path), os.O_CREAT)),
    "below a descriptor": open_below,
    "mkdir": lambda path: path.mkdir(),
    "rename": move,
    "link": lambda path: os.link(tmp_file(path), path),
    "symlink": lambda path: path.symlink_to(__file__),
    "database": lambda path: sqlite3.connect(path).close(),
    "socket": bind,
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_made_here_is_known_however_it_is_made(made: MadeHere, tmp_path: Path, way: str) -> None:
    WAYS[way](tmp_path / "one")
    assert (tmp_path / "one").is_symlink() or (tmp_path / "one").exists()
    assert "one" in made
    assert "other" not in made


def test_a_segment_is_known_when_it_is_given_its_size(made: MadeHere) -> None:
    segment = SharedMemory(create=True, size=1)
    segment.close()
    assert segment.name.lstrip("/") in made
    segment.unlink()


def test_what_is_only_read_or_made_by_no_reported_call_is_not_known(made: MadeHere, tmp_path: Path) -> None:
    with Path(__file__).open():
        pass
    os.mkfifo(tmp_path / "pipe")
    assert Path(__file__).name not in made
    assert "pipe" not in made


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[MadeElsewhere]:
    """What is made outside the folder `inside`."""
    (tmp_path / "inside").mkdir()
    one = MadeElsewhere(str(tmp_path / "inside"), whole=True)
    one.start()
    yield one
    one.stop()


@pytest.mark.parametrize("way", [name for name in WAYS if name not in ("below a descriptor", "socket")])
def test_what_is_made_elsewhere_is_known_by_its_path_until_it_is_removed(
    elsewhere: MadeElsewhere, tmp_path: Path, way: str
) -> None:
    path = tmp_path / "one"
    WAYS[way](path)
    elsewhere.forget_removed()
    assert str(path) in elsewhere.names()
    assert str(path.with_name("before")) not in elsewhere.names() or way == "link"
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    path.with_name("before").unlink(missing_ok=True)
    elsewhere.forget_removed()
    assert not elsewhere.any


def test_what_is_not_new_or_not_elsewhere_is_left_out(
    elsewhere: MadeElsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "again").touch()
    elsewhere.restart()
    (tmp_path / "again").write_text("once more")
    (tmp_path / "inside" / "one").touch()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "module.pyc").touch()
    assert not elsewhere.any
    monkeypatch.chdir(tmp_path)
    Path("relative").touch()
    assert list(elsewhere.names()) == [str(tmp_path / "relative")]


def test_below_the_top_level_of_a_listed_folder_a_path_is_known_unless_it_is_listed_whole(tmp_path: Path) -> None:
    top, whole = MadeElsewhere(str(tmp_path), whole=False), MadeElsewhere(str(tmp_path), whole=True)
    for one in (top, whole):
        one.start()
    try:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").touch()
        assert list(top.names()) == [str(tmp_path / "folder" / "file")]
        assert not whole.any
    finally:
        for one in (top, whole):
            one.stop()


def test_more_paths_than_can_be_noted_are_known_to_be_lost(
    elsewhere: MadeElsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_events, "_TEXT_SIZE", len(str(tmp_path)) + 30)
    (tmp_path / "one").touch()
    assert not elsewhere.has_lost
    (tmp_path / "other").touch()
    assert elsewhere.has_lost
    assert list(elsewhere.names()) == [str(tmp_path / "one")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_a_forked_child_makes_is_known(made: MadeHere, tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        (tmp_path / "one").touch()
        os._exit(0)
    os.waitpid(child, 0)
    assert "one" in made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_what_a_forked_child_makes_elsewhere_is_known(elsewhere: MadeElsewhere, tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        (tmp_path / "one").touch()
        os._exit(0)
    os.waitpid(child, 0)
    assert list(elsewhere.names()) == [str(tmp_path / "one")]


@pytest.mark.usefixtures("made")
def test_noting_retains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one"

    def blocks_after(turns: int) -> int:
        for _ in range(turns):
            path.touch()
            path.unlink()
        return sys.getallocatedblocks()

    before = blocks_after(300)
    assert blocks_after(3000) - before < 100


@pytest.fixture
def short_turns() -> Iterator[None]:
    """Let threads take turns so often that a loop of a million calls spans many turns on any machine."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 50)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="only CPython 3.11 refuses sys.settrace in two threads at once"
)
@pytest.mark.usefixtures("short_turns")
def test_no_other_thread_runs_while_the_hook_passes_over_an_event(made: MadeHere) -> None:
    """A thread that starts under coverage would fail in that moment, and a pool that waits for it hang."""
    assert made in audit_events._watching
    hook, pauses, end = audit_events._make_hook(), [0.0], threading.Event()

    def run() -> None:
        last = time.perf_counter()
        while not end.is_set():
            now = time.perf_counter()
            pauses[0], last = max(pauses[0], now - last), now

    other = threading.Thread(target=run)
    other.start()
    began = time.perf_counter()
    # A loop in C: only the hook could let the other thread run.
    deque(map(hook, repeat("sys.settrace", 1_000_000), repeat(())), maxlen=0)
    took = time.perf_counter() - began
    end.set()
    other.join()
    # It may run before and after the loop. Within it, it would run after each switch interval.
    assert pauses[0] > 0.5 * took > 4 * sys.getswitchinterval()
