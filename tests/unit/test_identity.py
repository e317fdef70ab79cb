from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.identity import (
    Held,
    Identities,
    describe_target,
    group,
    survivors,
    take_identities,
)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("socket:[12345]", "socket"),
        ("pipe:[7]", "pipe"),
        ("anon_inode:[eventpoll]", "eventpoll"),
        ("anon_inode:inotify", "inotify"),
        ("/memfd:frames (deleted)", "memfd frames"),
        ("/memfd:frames", "memfd frames"),
        ("/data/video_0001.mp4", "/data/video_0001.mp4"),
        ("/tmp/socket:[1]", "/tmp/socket:[1]"),
    ],
)
def test_numbers_that_differ_from_one_to_the_next_are_left_out(target: str, text: str) -> None:
    assert describe_target(target) == text


def test_equal_ones_are_counted_most_frequent_first() -> None:
    assert group(["a", "b", "b", "c", "b", "c"]) == (Held("b", 3), Held("c", 2), Held("a", 1))
    assert group([]) == ()


def test_survivors_are_what_is_new() -> None:
    before = Identities({3: "/dev/null", 4: "socket:[1]"}, {1: "MainThread"}, {10: "old"})
    after = Identities(
        {3: "/dev/null", 4: "socket:[2]", 5: "socket:[3]"},
        {1: "MainThread", 2: "Thread-7 (work)", 3: "Thread-8 (work)"},
        {11: "sleep 60"},
    )
    assert survivors(before, after) == {
        # Descriptor 4 was closed and its number used again.
        "fd": (Held("socket", 2),),
        "thread": (Held("Thread-N (work)", 2),),
        "process": (Held("sleep 60", 1),),
    }
    assert survivors(after, after) == {"fd": (), "thread": (), "process": ()}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_what_is_kept_survives_and_what_is_given_back_does_not() -> None:
    before = take_identities()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="reader-3")
    thread.start()
    child = subprocess.Popen(["sleep", "60"])
    # A program that is being started has no command line for a moment.
    while not Path(f"/proc/{child.pid}/cmdline").read_bytes():
        end.wait(0.001)
    held = survivors(before, take_identities())
    child.kill()
    child.wait()
    end.set()
    thread.join()
    os.close(descriptor)
    assert held["fd"] == (Held("/dev/null", 1),)
    assert held["thread"] == (Held("reader-N", 1),)
    assert held["process"] == (Held("sleep 60", 1),)
    assert survivors(before, take_identities()) == {"fd": (), "thread": (), "process": ()}
