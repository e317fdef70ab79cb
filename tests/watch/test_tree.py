"""Real processes, read from outside: what they hold, who comes and goes, where they end, what is new."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from pytest_leakcheck.watch import follower as tree_module
from pytest_leakcheck.watch.follower import Following, Tree
from pytest_leakcheck.watch.history import read_histories

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


def test_counts_are_those_of_the_process(puppet: Puppet, tree: Tree) -> None:
    before = tree.read()
    puppet.tell("open 7")
    puppet.tell("thread")
    puppet.tell(f"take {32 << 20}")
    after = tree.read()
    assert after["fd"] - before["fd"] == 7
    assert after["thread"] - before["thread"] == 1
    assert (32 << 20) - (1 << 20) <= after["rss"] - before["rss"] <= 34 << 20
    (counted,) = (count for name, count in after.items() if name.startswith("fd of "))
    assert counted == psutil.Process(puppet.pid).num_fds()
    puppet.tell("close")
    assert tree.read()["fd"] == before["fd"]


def test_children_come_and_go(puppet: Puppet, tree: Tree) -> None:
    pids = set(map(int, puppet.tell("start 5").split()))
    tree.find()
    seen = tree.read()
    assert seen["process"] == 5
    assert set(tree.followed) == {puppet.pid, *pids}
    assert {f"fd of sleep {pid}" for pid in pids} < set(seen)
    # A zombie, which its parent has not waited for, counts as gone.
    puppet.tell("leave")
    until = time.monotonic() + 60
    while tree.read()["process"] == 5:
        assert time.monotonic() < until
    assert tree.read()["process"] == 4
    puppet.tell("end")
    assert tree.read()["process"] == 0
    assert not tree.ended


def test_a_pid_that_is_given_to_another_process_is_not_followed(
    puppet: Puppet, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.read()
    assert not tree.ended
    monkeypatch.setattr(psutil.Process, "is_running", lambda process: process.pid != puppet.pid)
    tree.read()
    assert tree.ended


def test_descriptors_that_may_not_be_read_are_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of another user's process: its memory and threads are open to all."""
    monkeypatch.setattr(os, "access", lambda path, _mode: not path.endswith("/fd"))
    values = tree.read()
    (note,) = tree.notes
    assert "no permission to read its descriptors" in note
    assert values["fd"] == 0
    assert values["rss"] > 0


def test_without_proc_it_is_said_what_is_not_read(puppet: Puppet, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where psutil alone is asked."""
    right = Tree(puppet.pid).read()
    monkeypatch.setattr(tree_module, "_LINUX", False)
    monkeypatch.setattr(tree_module, "_FD_COUNT_IS_SIZE", False)
    (child,) = map(int, puppet.tell("start 1").split())
    tree = Tree(puppet.pid)
    tree.find()
    values = tree.read()
    (note,) = tree.notes
    assert "memory includes pages of files" in note
    assert set(tree.followed) == {puppet.pid, child}
    assert all(values[name] == count for name, count in right.items() if name.startswith("fd of "))
    assert list(tree.fd_limits()) == []
    monkeypatch.setattr(psutil.Process, "num_fds", refuse)
    assert tree.read()["fd"] == 0


def refuse(process: psutil.Process) -> int:
    raise psutil.AccessDenied(process.pid)


WATCHES_ITSELF = """
import os, subprocess
import psutil
from pytest_leakcheck.watch.follower import Tree

before = psutil.Process().num_fds()
tree = Tree(os.getpid())
mine = f"fd of {psutil.Process().name()} {os.getpid()}"
first = tree.read()[mine]
child = subprocess.Popen(["sleep", "60"])
tree.find()
assert tree.read()["process"] == 1
found = {tree.read()[mine] for _ in range(9)}
child.kill()
child.wait()
assert found == {first}, (found, first)
# The listing itself takes one, which the size of the folder does not count.
assert before - 1 <= first <= before, (before, first)
"""


def test_a_process_that_watches_itself_does_not_count_the_watch() -> None:
    """In a separate process: the threads of this one may open and close files meanwhile."""
    subprocess.run([sys.executable, "-c", WATCHES_ITSELF], check=True, timeout=120)


def test_one_whole_watch(puppet: Puppet, tmp_path: Path) -> None:
    following = Following(puppet.pid, tmp_path / "a", 0.01)
    following.sample()
    for _ in range(40):
        puppet.tell("open 2")
        following.sample()
    following.end("the test is over")
    history = following.history
    assert history.ended == "the test is over"
    ((name, new),) = history.new.items()
    assert new == {"/dev/null": 80}
    soft = psutil.Process(puppet.pid).rlimit(psutil.RLIMIT_NOFILE)[0]
    assert history.limits[name] == (soft, f"ulimit -n {soft:,}")
    assert history.limits["rss"][0] > history.values["rss"]
    (read,) = read_histories(tmp_path / "a")
    assert (read.ended, read.samples, read.new, read.limits) == (history.ended, 42, history.new, history.limits)
    assert read.tracks["fd"].values == history.tracks["fd"].values
