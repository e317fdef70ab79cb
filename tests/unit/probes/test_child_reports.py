"""What the collectors of children release: from which children it is known, and what is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.probes import child_reports
from pytest_leakcheck.probes.audit_events import MadeHere
from pytest_leakcheck.probes.child_reports import read_reports, unwatch_children, watch_children

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    unwatch_children()
    assert watch_children()
    yield
    unwatch_children()


class Cycle:
    """It has two descriptors, or a thread that waits to end with it."""

    def __init__(self, *, with_thread: bool = False) -> None:
        self.itself = self
        self.pipe = os.pipe()
        self.thread = threading.Thread(target=os.read, args=(self.pipe[0], 1)) if with_thread else None
        if self.thread is not None:
            self.thread.start()

    def __del__(self) -> None:
        if self.thread is not None:
            os.write(self.pipe[1], b"x")
            self.thread.join()
        for number in self.pipe:
            os.close(number)


def collect_in_child(*, with_thread: bool = False, held: bool = False) -> None:
    pid = os.fork()
    if pid == 0:
        kept = Cycle(with_thread=with_thread)
        if not held:
            del kept
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)


def test_what_the_collector_of_a_forked_child_releases_is_known_once() -> None:
    collect_in_child(held=True)
    assert read_reports() == (0, 0)
    collect_in_child()
    collect_in_child(with_thread=True)
    assert read_reports() == (4, 1)
    assert read_reports() == (0, 0)


def test_a_report_is_read_once_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reading cuts off may end like the letter of a release."""
    created = b"/tmp/cut_off"
    Path(child_reports._FILE[0][0]).write_bytes(created + b"\0")
    with MadeHere() as made:
        monkeypatch.setattr(child_reports, "_MOST_READ", len(created) - 1)
        assert read_reports() == (0, 0)
        assert "cut_of" not in made
        monkeypatch.undo()
        assert read_reports() == (0, 0)
        assert "cut_off" in made


def test_a_process_that_is_measured_itself_reports_nothing_but_its_children_do() -> None:
    pid = os.fork()
    if pid == 0:
        # As the harness does when it begins to measure.
        watch_children()
        Cycle()
        gc.collect()
        collect_in_child()
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_reports() == (2, 0)


def test_the_file_is_removed_by_the_process_that_has_made_it() -> None:
    file = Path(child_reports._FILE[0][0])
    pid = os.fork()
    if pid == 0:
        unwatch_children()
        os._exit(0)
    os.waitpid(pid, 0)
    assert file.exists()
    unwatch_children()
    assert not file.exists()
    # What runs on reports nothing any more, and fails at nothing.
    collect_in_child()
    assert read_reports() == (0, 0)


def test_without_a_descriptor_that_is_left_children_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    unwatch_children()

    def fail(**_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", fail)
        assert not watch_children()
    assert watch_children()


def create(path: str) -> None:
    Path(path).touch()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_child_that_is_not_forked_creates_in_a_shared_folder_is_known(method: str) -> None:
    made = MadeHere()
    made.start()
    # It ends like the report of a descriptor.
    name = f"leakcheck-{os.getpid()}-{method}-f"
    try:
        context: Any = multiprocessing.get_context(method)
        child = context.Process(target=create, args=(f"/dev/shm/{name}",))
        child.start()
        child.join()
        assert Path("/dev/shm", name).exists()
        assert name not in made
        assert read_reports() == (0, 0)
        assert name in made
    finally:
        made.stop()
        Path("/dev/shm", name).unlink(missing_ok=True)
