"""All that a test might notice of the process that it runs in. What differs between any two processes is left out."""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import tempfile
import threading
import weakref
from pathlib import Path

import pytest

random.seed(5)
FORKS: list[str] = []
NUMBERS: list[str] = []
os.register_at_fork(before=lambda: FORKS.append("before"), after_in_child=lambda: FORKS.append("child"))
FOLDER = tempfile.TemporaryDirectory(dir=os.path.dirname(__file__))
atexit.register(os.rmdir, os.path.join(FOLDER.name, "inner"))
os.mkdir(os.path.join(FOLDER.name, "inner"))
os.umask(0o27)
signal.signal(signal.SIGUSR1, lambda *_: None)
print("said on import")


@pytest.mark.fd_budget(0)
@pytest.mark.parametrize("test", "ab")
def test_it(test: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    NUMBERS.append(test)
    if len(NUMBERS) > 1:
        return
    print("random", random.random(), FORKS, os.path.isdir(os.path.join(FOLDER.name, "inner")))
    print("signals", [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)])
    print(
        "masks",
        signal.pthread_sigmask(signal.SIG_BLOCK, []),
        oct(os.umask(0o22)),
        os.getcwd() == str(request.config.rootpath),
    )
    print(
        "processes",
        os.getsid(0) == os.getpgrp() == os.getpid(),
        threading.active_count(),
        threading.main_thread().native_id == os.getpid(),
    )
    print(
        "files",
        sorted(os.readlink(f"/proc/self/fd/{one}").split(":")[0].split("/")[1] for one in (0, 1, 2)),
        len(os.listdir("/proc/self/fd")),
    )
    print(
        "paths",
        [one for one in sys.path if "leakcheck" not in one],
        sys.argv[1:],
        tmp_path.name,
        sorted(os.listdir(tmp_path.parent)),
    )
    print("environment", sorted(os.environ))
    print("input", os.read(0, 1), type(sys.stdin).__name__, os.register_at_fork)
    sys.stderr.write("to stderr")
    os.write(1, b"to the descriptor")
    if not os.fork():
        os._exit(len(FORKS))
    print("forked", os.waitstatus_to_exitcode(os.wait()[1]))
    tempfile.TemporaryDirectory(dir=os.path.dirname(__file__))
    weakref.finalize(test_it, open, os.path.join(os.path.dirname(__file__), f"finalized-{test}"), "w")
