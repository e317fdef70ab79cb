from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.attribution import handles
from pytest_leakcheck.attribution.handles import (
    ChangedFiles,
    Identities,
    describe_fd,
    describe_target,
    group,
    group_files,
    live_children,
    open_files,
    stand_for,
    survivors,
    take_identities,
)
from pytest_leakcheck.model.culprit import Remainder
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.processes import process_tree


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("socket:[12345]", "socket"),
        ("pipe:[7]", "pipe"),
        ("anon_inode:[eventpoll]", "eventpoll"),
        ("anon_inode:inotify", "inotify"),
        ("/memfd:frames", "memfd frames"),
        ("/data/video_0001.mp4", "/data/video_0001.mp4"),
        ("/tmp/socket:[1]", "/tmp/socket:[1]"),
    ],
)
def test_numbers_that_differ_from_one_to_the_next_are_left_out(target: str, text: str) -> None:
    assert describe_target(target) == text


def test_equal_ones_are_counted_most_frequent_first() -> None:
    assert group(["a", "b", "b", "c", "b", "c"]) == (Remainder("b", 3), Remainder("c", 2), Remainder("a", 1))
    assert group([]) == ()


def test_files_whose_names_differ_by_a_pattern_are_one_kind() -> None:
    parts = [f"/data/part-{number}.bin" for number in range(5)]
    assert group_files([*parts, "/data/log", "socket"]) == (
        Remainder("/data/part-*.bin", 5),
        Remainder("/data/log", 1),
        Remainder("socket", 1),
    )
    seeds = [f"/data/rgb-224x224-seed{number}.mp4" for number in range(3)]
    assert group_files(seeds) == (Remainder("/data/rgb-224x224-seed*.mp4", 3),)
    assert group_files(["/tmp/tmpa1b2c3d4", "/tmp/tmpk_9xyzzy"]) == (Remainder("/tmp/tmp*", 2),)
    # One name is no pattern, and the folder tells files apart.
    assert group_files(["/a/part-1.bin"] * 3) == (Remainder("/a/part-1.bin", 3),)
    assert {one.count for one in group_files(["/a/part-1.bin", "/b/part-1.bin"])} == {1}


# No process has such a number.
_GONE = 1 << 30


def test_survivors_are_what_is_new() -> None:
    before = Identities({3: "/dev/null", 4: "socket:[1]"}, {1: "MainThread"}, {_GONE: "old"}, {(_GONE, 3): "/a"})
    after = Identities(
        {3: "/dev/null", 4: "socket:[2]", 5: "socket:[3]"},
        {1: "MainThread", 2: "Thread-7 (work)", 3: "Thread-8 (work)"},
        {_GONE: "old", _GONE + 1: "sleep 60"},
        {(_GONE, 3): "/a", (_GONE, 4): "/clip.mp4", (_GONE, 5): "/clip.mp4", (_GONE + 1, 3): "/of a new child"},
    )
    nothing = {name: () for name, one in RESOURCES.items() if one.of_cluster}
    assert survivors(before, after) == nothing | {
        # Descriptor 4 was closed and its number used again.
        "fd": (Remainder("socket", 2), Remainder("/clip.mp4", 2, "in child old")),
        "thread": (Remainder("Thread-N (work)", 2),),
        "process": (Remainder("sleep 60", 1),),
        "task": (),
        "mmap": (),
    }
    assert survivors(after, after) == nothing | dict.fromkeys(("fd", "thread", "process", "task", "mmap"), ())


def test_peers_of_one_host_are_one_kind_and_its_server_another() -> None:
    peers = [f"socket to 127.0.0.1:{port}" for port in (44622, 44630, 44640)]
    server, other = "socket to 127.0.0.1:33301", "socket to 10.0.0.1:80"
    assert group_files([*peers, server, server, other]) == (
        Remainder("socket to 127.0.0.1:*", 3),
        Remainder(server, 2),
        Remainder(other, 1),
    )


def test_tasks_are_grouped_by_where_they_wait() -> None:
    loop = asyncio.new_event_loop()
    before = take_identities()
    door = loop.create_future()

    async def enter() -> None:
        await door

    async def visit() -> None:
        await enter()

    async def pass_by() -> None:
        pass

    tasks = [loop.create_task(visit()) for _ in range(3)] + [loop.create_task(pass_by())]
    loop.call_soon(loop.stop)
    loop.run_forever()
    line = (enter.__code__.co_firstlineno or 0) + 1
    inside = "test_tasks_are_grouped_by_where_they_wait.<locals>"
    found = survivors(before, take_identities())["task"]
    door.set_result(None)
    loop.run_until_complete(asyncio.gather(*tasks))
    loop.close()
    assert [(one.what, one.count) for one in found] == [
        (f"task of {inside}.visit()", 3),
        (f"task of {inside}.pass_by()", 1),
    ]
    assert [one.note for one in found] == [f"waiting in {inside}.enter(), test_handles.py:{line}", "ended"]


def test_mappings_are_told_by_file_with_what_they_have_gained() -> None:
    earlier = b"""\
1000000-1100000 rw-p 0 00:00 0 [heap]
5000000-5010000 rw-p 0 00:00 0
7000000-7001000 r--p 0 08:01 1 /a
"""
    now = b"""\
1000000-1300000 rw-p 0 00:00 0 [heap]
5000000-5010000 rw-p 0 00:00 0
7000000-7100000 r--p 0 08:01 2 /b
8000000-8001000 r--p 0 08:01 3 /c
"""
    before, after = Identities({}, {}, {}, {}, maps=earlier), Identities({}, {}, {}, {}, maps=now)
    assert survivors(before, after)["mmap"] == (
        Remainder("[heap]", 1, "2.0 MiB in all"),
        Remainder("/b", 1, "1.0 MiB in all"),
    )


@pytest.mark.parametrize(("pages", "is_told"), [(9, False), (11, True)])
def test_a_mapping_is_told_from_a_tenth_of_what_was_gained(pages: int, *, is_told: bool) -> None:
    now = f"1000000-{0x1000000 + (100 - pages) * 4096:x} rw-p 0 00:00 0 [heap]\n7000000-{0x7000000 + pages * 4096:x} r--p 0 08:01 1 /a"
    before, after = Identities({}, {}, {}, {}), Identities({}, {}, {}, {}, maps=now.encode())
    assert [one.what for one in survivors(before, after)["mmap"]] == ["[heap]", "/a"][: 1 + is_told]


def test_a_socket_says_whom_it_talks_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert describe_fd(client.fileno(), "socket:[1]") == f"socket to 127.0.0.1:{port}"
        assert describe_fd(server.fileno(), "socket:[1]") == "socket listening on 127.0.0.1"
    left, right = socket.socketpair()
    with left, right, socket.socket() as unused:
        assert describe_fd(left.fileno(), "socket:[1]") == "socket"
        assert describe_fd(unused.fileno(), "socket:[1]") == "socket"
        assert describe_fd(left.fileno(), "/dev/null") == "/dev/null"
    assert describe_fd(-1, "socket:[1]") == "socket"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_fork_of_this_process_is_told_by_its_name_and_not_by_a_command_that_is_this_process_s_own() -> None:
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        Path("/proc/self/comm").write_text("worker-7")
        os.write(ready[1], b".")
        os.read(go_on[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        assert live_children()[child] == "worker-7 (forked)"
    finally:
        os.write(go_on[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *go_on):
            os.close(descriptor)


def test_a_file_stays_the_same_when_it_is_moved_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "part"
    with path.open("w") as file:
        before = open_files()[file.fileno()]
        path.rename(tmp_path / "whole")
        assert open_files()[file.fileno()] == before
        (tmp_path / "whole").unlink()
        assert open_files()[file.fileno()] == before
        assert open_targets()[file.fileno()] == str(tmp_path / "whole")
        number = file.fileno()
        # A number that is used again is another file.
        with path.open("w") as other:
            os.dup2(other.fileno(), number)
            assert open_files()[number] != before


def test_without_proc_the_handles_are_those_that_python_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""

    def absent(path: str) -> list[str]:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "listdir", absent)
    found = take_identities()
    assert (found.fds, found.children) == ({}, {})
    assert found.threads[threading.get_native_id()] == threading.current_thread().name


def test_a_descriptor_that_is_known_is_not_read_again() -> None:
    with open(os.devnull, "rb") as file:  # noqa: PTH123
        known = {file.fileno(): "known", 10_000: "closed"}
        listed = open_files("self", known)
        assert listed[file.fileno()] == "known"
        assert listed.keys() == open_files().keys()


def test_the_folder_that_is_listed_has_no_number_of_a_file_that_was_closed() -> None:
    # All lower numbers are in use, so the listing takes this one.
    number = min({*range(1000)} - {*open_files()})
    assert number not in open_files("self", {number: "closed"})


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gains an entry whenever all descriptors are listed."""
    found: list[int] = []

    def listing(*given: Any) -> dict[int, str]:
        found.append(0)
        return open_files(*given)

    monkeypatch.setattr(handles, "open_files", listing)
    return found


@pytest.mark.parametrize(("place", "lists_all"), [(31, False), (32, True)])
def test_a_new_descriptor_is_looked_for_among_the_32_lowest_free_numbers(
    place: int, *, lists_all: bool, listings: list[int]
) -> None:
    with closing(process_tree()) as tree, open(os.devnull, "rb") as file, ExitStack() as stack:  # noqa: PTH123
        tree.open()
        changed, known = ChangedFiles(tree.own_fds), open_files()
        listings.clear()
        number = sorted({*range(1000)} - {*known})[place]
        stack.callback(os.close, fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, number))
        assert number in changed(known)
        assert bool(listings) is lists_all


def test_what_has_changed_is_found_without_listing_all(listings: list[int]) -> None:
    with closing(process_tree()) as tree, ExitStack() as stack:
        tree.open()
        changed = ChangedFiles(tree.own_fds)
        known: Mapping[int, str] = open_files()

        def check(reads_all: bool) -> None:
            nonlocal known
            listings.clear()
            known = dict(changed(known)) if reads_all else changed(known)
            assert (known, bool(listings)) == (open_files(), reads_all)

        first, second = (stack.enter_context(open(os.devnull, "rb")) for _ in range(2))  # noqa: PTH123
        check(reads_all=False)
        first.close()
        check(reads_all=False)
        # In its place, and one more.
        stack.enter_context(socket.socket())
        stack.enter_context(open(__file__, "rb"))  # noqa: PTH123
        check(reads_all=False)
        # Of those that were there before, and at a number of the program's choice.
        known = dict(known)
        second.close()
        check(reads_all=True)
        number = fcntl.fcntl(0, fcntl.F_DUPFD, 900)
        check(reads_all=True)
        os.close(number)
        check(reads_all=True)


def test_an_object_of_c_stands_for_no_number_that_python_has_got() -> None:
    numbers = range(1_000, 1_003)
    with ExitStack() as stack:
        hidden = [(stack.enter_context(closing(sqlite3.connect(":memory:"))),) for _ in numbers]
        assert stand_for(hidden, numbers)
        assert not stand_for(hidden, numbers, are_numbers=True)
    assert stand_for([(number,) for number in numbers], numbers, are_numbers=True)


def numbered(count: int, stands: Callable[[int], bool]) -> tuple[list[tuple[object, ...]], range]:
    """Entries of which some have the number of a handle, and the numbers of all handles."""
    return [(1000 + at if stands(at) else "",) for at in range(count)], range(1000, 1000 + count)


@pytest.mark.parametrize(("known", "are_enough"), [(7, False), (8, True)])
def test_entries_stand_for_handles_if_eight_of_ten_do(known: int, *, are_enough: bool) -> None:
    assert stand_for(*numbered(10, lambda at: at < known)) is are_enough


@pytest.mark.parametrize(("count", "is_sampled"), [(47, False), (72, True)])
def test_of_many_entries_every_so_manyth_is_inspected_so_that_24_are(count: int, *, is_sampled: bool) -> None:
    """One in three stands for a handle: with 72 entries, these are the sample."""
    assert stand_for(*numbered(count, lambda at: at % 3 == 0)) is is_sampled


@pytest.mark.parametrize(("levels", "counts"), [(2, True), (3, False)])
def test_an_object_of_c_counts_in_an_attribute_of_the_entry_and_no_deeper(levels: int, *, counts: bool) -> None:
    with closing(sqlite3.connect(":memory:")) as hidden:
        part: object = hidden
        for _ in range(levels):
            part = [part]
        assert stand_for([(part,)], [1000]) is counts


def test_a_child_that_ends_while_children_are_listed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def end(_pid: int) -> list[tuple[int, int]]:
        ended.append(_GONE)
        return []

    monkeypatch.setattr(handles, "family", end)
    monkeypatch.setattr(handles, "zombies", lambda: list(ended))
    assert set(handles.live_children()) == {_GONE}
