"""Real processes, read from outside: what they hold, who comes and goes, where they end, what is new."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import IO

import psutil
import pytest

from pytest_leakcheck.watch import process_tree as tree_module
from pytest_leakcheck.watch.events import Came, Note, Reading, Sample
from pytest_leakcheck.watch.follower import Following
from pytest_leakcheck.watch.new_descriptors import REST, Newcomers
from pytest_leakcheck.watch.process_limits import fd_limit
from pytest_leakcheck.watch.process_tree import Tree, WatchError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched through /proc")

# Does what each line says, and answers.
PUPPET = """
import os, subprocess, sys, threading
kept, children = [], []
for line in sys.stdin:
    word, _, much = line.strip().partition(" ")
    if word == "open":
        kept += [os.open(os.devnull, os.O_RDONLY) for _ in range(int(much))]
    elif word == "close":
        while kept: os.close(kept.pop())
    elif word == "take":
        kept_bytes = bytearray(b"x") * int(much)
    elif word == "start":
        children += [subprocess.Popen(["sleep", "60"]) for _ in range(int(much))]
        print(*[child.pid for child in children], flush=True)
        continue
    elif word == "end":
        for child in children: child.kill(); child.wait()
    elif word == "leave":
        children[0].kill()
    elif word == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    print("done", flush=True)
"""


class Puppet:
    """A process that does as it is told."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PUPPET], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        self.tell("ready")

    def tell(self, line: str) -> str:
        ears: IO[str] | None = self.process.stdin
        mouth: IO[str] | None = self.process.stdout
        assert ears is not None
        assert mouth is not None
        ears.write(line + "\n")
        ears.flush()
        return mouth.readline().strip()

    def end(self) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                child.kill()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def puppet() -> Iterator[Puppet]:
    made = Puppet()
    yield made
    made.end()


@pytest.fixture
def tree(puppet: Puppet) -> Tree:
    return Tree(puppet.pid)


def until(read: Callable[[], Sample], right: Callable[[Sample], bool]) -> Sample:
    """Sample until it is so: a new process is found with the next search."""
    deadline = time.monotonic() + 60
    while not right(sample := read()):
        assert time.monotonic() < deadline, sample
    return sample


def test_counts_are_those_of_the_process(puppet: Puppet, tree: Tree) -> None:
    before = tree.sample()
    puppet.tell("open 7")
    puppet.tell("thread")
    puppet.tell(f"take {32 << 20}")
    after = tree.sample()
    assert after.totals["fd"] - before.totals["fd"] == 7
    assert after.totals["thread"] - before.totals["thread"] == 1
    assert (32 << 20) - (1 << 20) <= after.totals["rss"] - before.totals["rss"] <= 34 << 20
    assert after.processes[puppet.pid].fds == psutil.Process(puppet.pid).num_fds()
    puppet.tell("close")
    assert tree.sample().totals["fd"] == before.totals["fd"]


def test_children_come_and_go(puppet: Puppet, tree: Tree) -> None:
    pids = set(map(int, puppet.tell("start 5").split()))
    seen = until(tree.sample, lambda sample: sample.totals["process"] == 5)
    assert set(seen.processes) == {puppet.pid, *pids}
    (came,) = [event for event in tree.events() if isinstance(event, Came)]
    assert dict(came.names) == dict.fromkeys(pids, "sleep")
    # A zombie, which its parent has not waited for, counts as gone.
    puppet.tell("leave")
    gone = until(tree.sample, lambda sample: bool(sample.gone))
    assert (len(gone.gone), gone.totals["process"]) == (1, 4)
    puppet.tell("end")
    assert tree.sample().totals["process"] == 0
    assert not tree.ended


def test_a_pid_that_is_given_to_another_process_is_not_followed(
    puppet: Puppet, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(tree.sample().processes) == {puppet.pid}
    monkeypatch.setattr(psutil.Process, "is_running", lambda process: process.pid != puppet.pid)
    assert tree.sample().gone == (puppet.pid,)
    assert tree.ended


def test_the_end_of_the_root_ends_it(puppet: Puppet, tree: Tree) -> None:
    puppet.end()
    sample = tree.sample()
    assert sample.gone == (puppet.pid,)
    assert tree.ended
    assert tree.sample().processes == {}


def test_no_descriptor_is_kept(puppet: Puppet) -> None:
    before = psutil.Process().num_fds()
    tree = Tree(puppet.pid)
    tree.sample()
    assert psutil.Process().num_fds() == before


def test_a_process_that_is_not_there() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    before = psutil.Process().num_fds()
    with pytest.raises(WatchError, match=f"there is no process {gone.pid}"):
        Tree(gone.pid)
    assert psutil.Process().num_fds() == before


def test_descriptors_that_may_not_be_read_are_told(puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of another user's process: its memory and threads are open to all."""
    monkeypatch.setattr(os, "access", lambda path, _mode: not path.endswith("/fd"))
    tree = Tree(puppet.pid)
    (note,) = [event for event in tree.events() if isinstance(event, Note)]
    assert "no permission to read its descriptors" in note.text
    sample = tree.sample()
    assert sample.processes[puppet.pid].fds == -1
    assert sample.totals["fd"] == 0
    assert sample.totals["rss"] > 0


def test_without_proc_it_is_said_what_is_not_read(puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where psutil alone is asked."""
    right = Tree(puppet.pid).sample()
    monkeypatch.setattr(tree_module, "_LINUX", False)
    monkeypatch.setattr(tree_module, "_FD_COUNT_IS_SIZE", False)
    (child,) = map(int, puppet.tell("start 1").split())
    tree = Tree(puppet.pid)
    note, _came = tree.events()
    assert isinstance(note, Note)
    assert "memory includes pages of files" in note.text
    sample = tree.sample()
    assert set(sample.processes) == {puppet.pid, child}
    assert sample.processes[puppet.pid].fds == right.processes[puppet.pid].fds
    monkeypatch.setattr(psutil.Process, "num_fds", refuse)
    assert tree.sample().processes[puppet.pid].fds == -1


def refuse(process: psutil.Process) -> int:
    raise psutil.AccessDenied(process.pid)


WATCHES_ITSELF = """
import os, subprocess, time
import psutil
from pytest_leakcheck.watch.process_tree import Tree

before = psutil.Process().num_fds()
tree = Tree(os.getpid())
first = tree.sample().processes[os.getpid()].fds
child = subprocess.Popen(["sleep", "60"])
until = time.monotonic() + 30
while tree.sample().totals["process"] < 1:
    assert time.monotonic() < until
    time.sleep(0.02)
found = {tree.sample().processes[os.getpid()].fds for _ in range(9)}
child.kill()
child.wait()
assert found == {first}, (found, first)
# The listing itself takes one, which the size of the folder does not count.
assert before - 1 <= first <= before, (before, first)
"""


def test_a_process_that_watches_itself_does_not_count_the_watch() -> None:
    """In a separate process: the threads of this one may open and close files meanwhile."""
    subprocess.run([sys.executable, "-c", WATCHES_ITSELF], check=True, timeout=120)


def test_new_descriptors_are_grouped_by_target(puppet: Puppet) -> None:
    newcomers = Newcomers()
    tree = Tree(puppet.pid)
    newcomers.meet(tree.sample().processes)
    assert newcomers.look(tree.sample().processes) == {}
    puppet.tell("open 4")
    assert newcomers.look(tree.sample().processes) == {puppet.pid: {"/dev/null": 4}}
    puppet.tell("close")
    assert newcomers.look(tree.sample().processes) == {puppet.pid: {}}


def test_of_ever_new_names_the_rest_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_leakcheck.watch import new_descriptors as module

    told = {number: f"/tmp/{number}" for number in range(50)}
    monkeypatch.setattr(module, "open_targets", lambda _pid: {})
    one = Newcomers()
    one.meet({1: Reading(0, 1, 0)})
    monkeypatch.setattr(module, "open_targets", lambda _pid: told)
    (found,) = one.look({1: Reading(50, 1, 0)}).values()
    assert len(found) == 21
    assert found[REST] == 30


def test_one_whole_watch(puppet: Puppet) -> None:
    following = Following(puppet.pid, None, 0.01)
    following.sample()
    for _ in range(40):
        puppet.tell("open 2")
        following.sample()
    history = following.history
    following.end("the test is over")
    following.end("again")
    assert history.ended == "the test is over"
    assert history.limits[puppet.pid] == fd_limit(puppet.pid)
    assert history.new_targets() == {"/dev/null": 80}
    assert history.room["rss"] > 0


def test_the_limit_of_another_process(puppet: Puppet) -> None:
    assert fd_limit(puppet.pid) == psutil.Process(puppet.pid).rlimit(psutil.RLIMIT_NOFILE)[0]
    puppet.end()
    assert fd_limit(puppet.pid) is None
