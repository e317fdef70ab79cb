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
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.attribution.handles import live_children
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.processes import (
    LinuxTree,
    PortableTree,
    Tree,
    count_tasks,
    descendants,
    mask_secrets,
    own_tree,
    process_tree,
    thread_ids,
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
        # The parent counts once this process has begun.
        os.write(answers[1], b"1")
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
        os.read(answers[0], 1)
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
    """It reads the same rises; a thread that waits in ``accept`` has taken a number that only the size counts."""
    sized, listed = LinuxTree(), LinuxTree()
    with reading(sized), reading(listed):
        listed._sized = False
        before = [(tree.read(), tree.own()) for tree in (sized, listed)]
        with child_with_grandchild():
            kept = os.open(os.devnull, os.O_RDONLY)
            after = [(tree.read(), tree.own()) for tree in (sized, listed)]
            os.close(kept)
    (rises, own), listed_rises = [tuple(map(rise, old, new)) for old, new in zip(before, after, strict=True)]
    assert (rises, own) == listed_rises
    assert own == (1, 0)
    assert rises[0] > 1


def test_numbers_that_do_not_move_are_replaced_by_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may imitate /proc, with a constant size and constant links of its directories."""
    true = os.fstat

    def fstat(descriptor: int) -> SimpleNamespace:
        """A folder of always seven entries."""
        found = true(descriptor)
        return SimpleNamespace(st_size=7, st_nlink=9, st_dev=found.st_dev, st_ino=found.st_ino)

    listing = LinuxTree()
    with reading(listing):
        listing._sized = listing._linked = False
        expected = listing.own()
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


def test_without_proc_a_thread_that_is_being_started_has_no_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(path: str) -> list[str]:
        raise FileNotFoundError(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", hidden)
        patch.setattr(threading, "enumerate", lambda: [threading.main_thread(), threading.Thread()])
        assert thread_ids() == {str(threading.main_thread().native_id)}


def test_the_tree_has_children_that_were_not_waited_for() -> None:
    before = {*own_tree()}
    assert os.getpid() in before
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert {*own_tree()} == before | {child.pid}
        child.kill()
        _wait_until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert {*own_tree()} == before | {child.pid}
        # It keeps one number of a task.
        assert count_tasks(child.pid) == 1
    assert {*own_tree()} == before
    assert count_tasks(child.pid) == 0


def test_threads_of_a_process_are_its_tasks() -> None:
    before = count_tasks(os.getpid())
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert count_tasks(os.getpid()) == before + 1
    end.set()
    thread.join()


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


_SECRET = "S3cret"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("run --password=S3cret -v", "run --password=… -v"),
        ("run --db-Password S3cret -v", "run --db-Password … -v"),
        ("run --password= S3cret", "run --password=… …"),
        ("run -token S3cret", "run -t… …"),
        ("mysql -pS3cret -u me:S3cret", "mysql -p… -u …"),
        ("env HF_TOKEN=S3cret S3cret==", "env …"),
        ("curl -H Authorization:S3cret -u me:S3cret", "curl -H … -u …"),
        ("git clone https://S3cret@host/r.git", "git … https://host/…"),
        ("psql postgres://u:S@S3cret@h:80/d?passwd=S3cret", "psql postgres://h:80/…"),
        ("psql postgres://u:1234/S3cret@h/d", "psql …"),
        ("psql postgres://u:S3cret", "psql …"),
        ("curl https://h?sig=S3cret https://h/#S3cret https://h/ http://[::1]:80", "curl https://h/… https://h/… https://h/ http://[::1]:80"),
        ("curl data:S3cret,x://S3cret gone.py::S3cret", "curl …"),
        ("run --pass S3cret --pwd=S3cret --jwt S3cret --cookie session=S3cret", "run --pass … --pwd=… --jwt … --cookie …"),
        ("run --S3~cret=1 ---S3cret", "run --… --…"),
        ("python -c print('S3cret') S3cret", "python -c …"),
        ("python -m http.server S3cret", "python -m http.server …"),
        ("python3.12 -X S3cret train.py S3cret", "python3.12 -X … train.py …"),
        ("pytest -o token=S3cret --deselect=S3cret -x", "pytest -o … --deselect=… -x"),
        ("pytest-leakcheck watch -- run -k S3cret", "pytest-leakcheck … -- … -k …"),
        ("git commit -m S3cret -k S3cret", "git … -m … -k …"),
        ("python train.py -m pytest -k S3cret", "python train.py -m … -k …"),
    ],
)  # fmt: skip
def test_what_may_be_secret_is_left_out(words: str, shown: str) -> None:
    assert " ".join(mask_secrets(words.split(" "))) == shown
    assert _SECRET not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-m", "pytest", "-k", "fast and not slow", f"{__file__}::test_a[x y]"],
        ["/usr/bin/python3", "-u", "train.py", "--verbose", "--use-token"],
        [sys.executable, "-B", "/opt/bin/train.py", "--", "-v"],
        [
            "pytest",
            "-xvs",
            "-n4",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "--leakcheck-json=report.json",
            "-q",
            "tests",
        ],
        ["pytest", "--maxfail", "3", "-m", "not gpu", "tests/unit"],
        [],
    ],
)
def test_the_rest_stays(words: list[str]) -> None:
    root = str(Path(__file__).parents[3])
    assert mask_secrets(words, root) == words


_TOKENS = st.text("abcXYZ019_.~+/=:@?#%&-", min_size=6, max_size=12).map(lambda text: f"s3{text}")
_OPTIONS = st.sampled_from(["--token", "-H", "-u", "--db-url", "-D", "-e", "--header", "-c", "-k", "-m", "-n", "--tb"])
_PROGRAMS = st.sampled_from(
    [["run"], ["python", "train.py"], ["bash", "-c"], ["java", "-jar", "a.jar"], [sys.executable, "-c"]]
)


@settings(max_examples=1_000, deadline=None)
@given(_PROGRAMS, st.lists(st.tuples(_OPTIONS, _TOKENS, st.integers(0, 5)), min_size=1, max_size=4))
def test_no_value_of_another_program_is_shown(program: list[str], secrets: list[tuple[str, str, int]]) -> None:
    ways = ("{0} {1}", "{0}={1}", "{1}", "NAME={1}", "https://{1}@host/x?a={1}", "{0} https://u:{1}@host/{1}#{1}")
    words = [*program, *(word for option, token, at in secrets for word in ways[at].format(option, token).split())]
    shown = " ".join(mask_secrets(words))
    for _option, token, _at in secrets:
        assert token not in shown, words


def test_the_code_of_multiprocessing_is_named_without_its_arguments() -> None:
    code = "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle='S3cret')"
    shown = mask_secrets(["python", "-c", code, "--multiprocessing-fork"])
    assert shown[2:] == ["from multiprocessing.spawn import spawn_main…", "--multiprocessing-fork"]


def test_a_title_in_place_of_the_program_is_shown_up_to_its_first_word() -> None:
    assert mask_secrets(["worker: --password=S3cret"]) == ["worker…"]


@pytest.mark.parametrize("long", ["a." * 50_000, "-" * 150_000, "://a:" * 30_000, "--a" * 70_000, "a@" * 30_000])
def test_a_long_word_takes_no_long_time(long: str) -> None:
    assert sum(map(len, mask_secrets(["run", long]))) < 200


@pytest.fixture
def child() -> Iterator[int]:
    """A process with secrets in its command line."""
    words = ["--password=hunter2", "x" * 90, f"https://me:{'hunter2' * 30}@/host"]
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_both_readers_leave_secrets_out(child: int) -> None:
    assert "hunter2" in Path(f"/proc/{child}/cmdline").read_text()
    for text in (live_children()[child], command_of(child)):
        assert text == f"{sys.executable} -c … --password=… …"
