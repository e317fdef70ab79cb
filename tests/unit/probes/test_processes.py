"""Each instrument reads exactly what was made, and reads it gone again."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_leakcheck.attribution.handles import live_children
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.processes import (
    LinuxTree,
    PortableTree,
    Tree,
    descendants,
    mask_secrets,
    process_tree,
)
from pytest_leakcheck.runner.readings import Instruments
from pytest_leakcheck.watch.follower import command_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@contextmanager
def reading(tree: Tree) -> Iterator[Tree]:
    tree.open()
    try:
        yield tree
    finally:
        tree.close()


@pytest.fixture(params=[LinuxTree, PortableTree])
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    with reading(request.param()) as opened:
        yield opened


@contextmanager
def child_with_grandchild() -> Iterator[int]:
    """A shell that waits for a sleeping child of its own. Yields the grandchild's pid.

    The shell has three pipes. Its child inherits two of them, and reads /dev/null, as each job in the background does.
    """
    pipe = subprocess.PIPE
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdin=pipe, stdout=pipe, stderr=pipe)
    assert shell.stdin
    assert shell.stdout
    assert shell.stderr
    grandchild = int(shell.stdout.readline())
    for end in (shell.stdin, shell.stdout, shell.stderr):
        end.close()
    try:
        # A program that is being started opens its libraries.
        _wait_until(lambda: _asleep(shell.pid) and _asleep(grandchild) and _command(grandchild).startswith("sleep"))
        yield grandchild
    finally:
        os.kill(grandchild, signal.SIGKILL)
        shell.wait()


def rise(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(new - old for old, new in zip(before, after, strict=True))


def test_a_child_that_was_not_waited_for_is_a_process_and_holds_nothing(tree: Tree) -> None:
    before = tree.read()
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert rise(before, tree.read()) == (0, 0, 1)
    assert live_children()[child.pid] == "zombie of true, never waited for"
    # It was left for its parent to wait for.
    assert child.wait() == 0
    assert tree.read() == before


def test_linux_and_portable_agree() -> None:
    with reading(LinuxTree()) as linux, reading(PortableTree()) as portable:
        before, own = (linux.read(), portable.read()), (linux.own(), portable.own())
        # On Linux psutil opens a descriptor to list the others, and lists it too; the rest is the same.
        assert before[0][1:] == before[1][1:]
        kept = os.open("/dev/null", os.O_RDONLY)
        with child_with_grandchild():
            # What the grandchild has inherited is known only on Linux.
            assert (rise(before[0], linux.read()), rise(before[1], portable.read())) == ((5, 2, 2), (7, 2, 2))
            assert rise(own[0], linux.own()) == rise(own[1], portable.own()) == (1, 0)
        os.close(kept)
        assert (linux.read(), portable.read()) == before


@contextmanager
def obedient_child(inherited: Iterable[int] = ()) -> Iterator[Callable[[bytes], None]]:
    """A forked child that opens a file at the command "o", and at "c" closes its last one, or one of the inherited."""
    commands, answers, opened = os.pipe(), os.pipe(), [*inherited]
    pid = os.fork()
    if not pid:
        while command := os.read(commands[0], 1):
            if command == b"o":
                opened.append(os.open("/dev/null", os.O_RDONLY))
            else:
                os.close(opened.pop())
            os.write(answers[1], b"1")
        os._exit(0)

    def obey(command: bytes) -> None:
        os.write(commands[1], command)
        os.read(answers[0], 1)

    try:
        yield obey
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for end in commands + answers:
            os.close(end)


def test_an_inherited_descriptor_counts_once() -> None:
    with reading(LinuxTree()) as tree:
        before = tree.read()
        kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
        with obedient_child() as obey:
            # Four ends of pipes too, which both have.
            assert rise(before, tree.read())[0] == 7
            # What the child opens counts, although its parent has the same file open.
            for command, opened in ((b"o", 1), (b"o", 2), (b"c", 1), (b"o", 2)):
                obey(command)
                assert rise(before, tree.read())[0] == 7 + opened
            # The child keeps its copies, but it did not open them.
            for descriptor in kept:
                os.close(descriptor)
            assert rise(before, tree.read())[0] == 4 + 2
        assert rise(before, tree.read())[0] == 0


def test_an_old_kernel_is_read_by_listing() -> None:
    tree = LinuxTree()
    with reading(tree), child_with_grandchild():
        expected = tree.read(), tree.own()
        tree._sized = False
        assert (tree.read(), tree.own()) == expected


def test_numbers_that_do_not_move_are_replaced_by_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may imitate /proc, with a constant size and constant links of its directories."""
    true = os.fstat

    def fstat(descriptor: int) -> SimpleNamespace:
        """A folder of always seven entries."""
        found = true(descriptor)
        return SimpleNamespace(st_size=7, st_nlink=9, st_dev=found.st_dev, st_ino=found.st_ino)

    with reading(LinuxTree()) as honest:
        expected = honest.own()
    monkeypatch.setattr(os, "fstat", fstat)
    with reading(LinuxTree()) as tree:
        assert tree.own() == expected
        more = os.open(os.devnull, os.O_RDONLY)
        assert rise((*expected, 0), (*tree.own(), 0))[0] == 1
        os.close(more)


def test_a_count_that_shows_no_descriptor_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = LinuxTree()
    monkeypatch.setattr(LinuxTree, "own_fds", lambda _tree: 7)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(Unavailable, match="does not show a descriptor that was just opened"):
        tree.open()
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_name_with_a_parenthesis_and_a_z_is_no_zombie(tmp_path: Path) -> None:
    sleep = shutil.which("sleep")
    assert sleep
    odd = tmp_path / "x) Z (y"
    odd.symlink_to(sleep)
    child = subprocess.Popen([odd, "60"])
    try:
        assert child.pid in descendants(os.getpid())
    finally:
        child.kill()
        child.wait()
    assert child.pid not in descendants(os.getpid())


def test_this_platform_has_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(process_tree(), LinuxTree)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(process_tree(), PortableTree)


def _asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("waited for 2 s in vain")


def test_all_instruments_find_room_below_a_low_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        instruments = Instruments([name for name, one in RESOURCES.items() if one.default], {})
        missing = instruments.reasons()
        instruments.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not {"shm", "disk", "mmap", "rss"} & missing.keys()


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        (["run", "--password=hunter2", "-v"], ["run", "--password=***", "-v"]),
        (["run", "--password=hun ter2"], ["run", "--password=***"]),
        (["run", "--db-Password", "hunter2", "-v"], ["run", "--db-Password", "***", "-v"]),
        (["run", "-token", "hun ter2"], ["run", "-token", "***"]),
        (
            ["env", "HF_TOKEN=hunter2", "AWS_SECRET_ACCESS_KEY=hunter2"],
            ["env", "HF_TOKEN=***", "AWS_SECRET_ACCESS_KEY=***"],
        ),
        (["psql", "postgres://me:hunter2@host/db?passwd=hunter2"], ["psql", "postgres://me:***@host/db?passwd=***"]),
        (["bash", "-c", "run --password=hunter2 -v; sleep 3"], ["bash", "-c", "run --password=*** -v; sleep 3"]),
        (["bash", "-c", "run --api-key 'hun ter2' -v"], ["bash", "-c", "run --api-key *** -v"]),
        (["curl", "-H", "X-Api-Key: hunter2"], ["curl", "-H", "X-Api-Key: ***"]),
        (["curl", "-d", '{"credential": "hun ter2", "n": 1}'], ["curl", "-d", '{"credential": ***, "n": 1}']),
        (["python", "-c", 'f(secret=\\"hunter2\\")'], ["python", "-c", "f(secret=***)"]),
    ],
)
def test_a_secret_is_masked(words: list[str], masked: list[str]) -> None:
    assert mask_secrets(words) == masked


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-m", "pytest", "-k", "fast", "tests/test_tokens.py::test_a"],
        ["run", "--use-token", "--verbose", "--out=http://host:80/a@b"],
        ["run", "--epochs=3", "host:80", "me@host"],
        [],
    ],
)
def test_the_rest_stays(words: list[str]) -> None:
    assert mask_secrets(words) == words


@pytest.mark.parametrize("long", ["key" * 50_000, "a" * 150_000, "://a:" * 30_000, "--" * 70_000, "key= " * 30_000])
def test_a_long_word_takes_no_long_time(long: str) -> None:
    mask_secrets(["run", long])


@pytest.fixture
def child() -> Iterator[int]:
    """A process with secrets in its command line: one in the middle, one across the end of what is shown."""
    words = ["--password=hunter2", "x" * 90, f"https://me:{'hunter2' * 30}@host"]
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_both_readers_mask(child: int) -> None:
    assert "hunter2" in Path(f"/proc/{child}/cmdline").read_text()
    shown = [live_children()[child], command_of(child)]
    for text in shown:
        assert "--password=*** x" in text
        assert "hunter" not in text
