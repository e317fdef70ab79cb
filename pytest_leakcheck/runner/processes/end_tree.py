"""End processes and all their descendants, independently of pytest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Final

import psutil

from pytest_leakcheck.probes import clock

_POLL_SECONDS: Final = 0.01


def end_tree(*processes: subprocess.Popen[bytes], grace: float, group: bool) -> None:
    """Terminate child processes, kill them and their descendants after `grace` seconds (0: at once), and reap them.

    With `group`, each process leads a process group, which gets both signals, and is killed even if its leader has
    ended. `psutil.wait_procs` would reap a child before its group is killed, and `subprocess` would never learn its
    status.
    """
    alive = [process for process in processes if not has_ended(process)]
    descendants = [one for process in alive for one in _descendants(process.pid)]
    try:
        if grace:
            for process in alive:
                _send_signal(process, signal.SIGTERM, group=group)
            deadline = clock.monotonic() + grace
            while clock.monotonic() < deadline and not all(map(has_ended, alive)):
                clock.sleep(_POLL_SECONDS)
    finally:
        # In `finally`, so that a second Ctrl-C shortens the grace period, but does not skip the kill.
        for process in processes:
            if group:
                _send_signal(process, signal.SIGKILL, group=group)
            else:
                process.kill()
        for one in descendants:
            with contextlib.suppress(psutil.Error):
                one.kill()
        for process in processes:
            process.wait()


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, unreaped: its pid must not be reused before its group is killed."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _send_signal(process: subprocess.Popen[bytes], number: int, *, group: bool) -> None:
    if not group:
        process.send_signal(number)
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _descendants(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []
