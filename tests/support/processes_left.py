"""Whether processes that were started are gone, and what they have made."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil


def left_over(folder: Path) -> list[int]:
    """Those of the processes noted in the folder's file ``pids`` that still run, after a moment for the system to bury them."""
    pids = [int(word) for word in (folder / "pids").read_text().split()]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(map(_runs, pids)):
        time.sleep(0.01)
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def never_removed(paths: Iterable[Path]) -> list[Path]:
    """Those that stay. Others' files come and go in a folder that all share; what an ended process has left never goes."""
    deadline, left = time.monotonic() + 300, list(paths)
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [path for path in left if path.exists()]
    return left
