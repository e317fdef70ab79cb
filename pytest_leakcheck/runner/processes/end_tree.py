"""End processes and all that they have started. Knows nothing of pytest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Final

import psutil

_POLL: Final = 0.01


def end_tree(*processes: subprocess.Popen[bytes], grace: float, group: bool) -> None:
    """Terminate children of this process, kill what is left of them and of their descendants after a grace, and reap them.

    `psutil.wait_procs` is of no use for that: it reaps a child, so that `subprocess` never learns its status, and before its
    group is killed.

    Args:
        processes: What `subprocess` has started.
        grace: Seconds between SIGTERM and SIGKILL; with 0 they are killed at once.
        group: Each leads a process group, which gets both signals; it is killed also where the leader has already ended.
    """
    group = group and sys.platform != "win32"
    alive = [process for process in processes if not has_ended(process)]
    below = [one for process in alive for one in _descendants(process.pid)]
    try:
        if grace:
            for process in alive:
                _signal(process, signal.SIGTERM, group=group)
            until = time.monotonic() + grace
            while time.monotonic() < until and not all(map(has_ended, alive)):
                time.sleep(_POLL)
    finally:
        # A second Ctrl-C cuts the grace short, no more.
        for process in processes:
            if group:
                _signal(process, signal.SIGKILL, group=group)
            else:
                process.kill()
        for one in below:
            with contextlib.suppress(psutil.Error):
                one.kill()
        for process in processes:
            process.wait()


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended. It is not reaped: until its group is ended, no other process must get its number."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal(process: subprocess.Popen[bytes], number: int, *, group: bool) -> None:
    if not group:
        process.send_signal(number)
    elif sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []
