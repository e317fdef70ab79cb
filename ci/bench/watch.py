"""Measure the CPU time of `pytest-leakcheck watch` on a tree of processes that all gain descriptors and memory.

Usage: python ci/bench/watch.py [--processes 66] [--seconds 120] [--interval 1]
"""

from __future__ import annotations

import argparse
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

import psutil

# A tree of processes; each gains a descriptor and 64 KiB per second.
TREE: Final = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if not os.fork():
        break
kept = []
while os.getppid() != 1:
    kept.append((os.open("/dev/null", os.O_RDONLY), bytearray(b"x") * 65536))
    time.sleep(1)
"""
# Seconds of start-up, which includes imports and other work that is done once. It is measured separately.
SETTLING: Final = 45.0


def cost(root: int, seconds: float, interval: float, ledger: Path, *, terminal: bool) -> tuple[float, float]:
    """Return the CPU seconds of the start-up, and the share of one core after it."""
    near, far = pty.openpty()
    command = [sys.executable, "-m", "pytest_leakcheck", "watch", str(root), f"--interval={interval}"]
    command += [f"--ledger={ledger}"]
    output = far if terminal else subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=output, env=os.environ | {"COLUMNS": "100", "TERM": "xterm"})
    os.close(far)
    # Read the output as a terminal does, because otherwise the watch would block as soon as the buffer is full.
    threading.Thread(target=_drain, args=(near,), daemon=True).start()
    try:
        time.sleep(SETTLING)
        beginning = _cpu_seconds(process.pid)
        at = time.monotonic()
        time.sleep(seconds)
        spent = _cpu_seconds(process.pid) - beginning
        return beginning, spent / (time.monotonic() - at)
    finally:
        process.terminate()
        process.wait()


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of the main thread of a process.

    The file counts nanoseconds. The usual counters have a resolution of 10 ms; a watch takes ten samples to use that
    much.
    """
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:
        # The watch has closed its end.
        os.close(descriptor)


def main() -> None:
    """Measure a watch that prints plain lines and one that shows the live table, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=66)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--interval", type=float, default=1.0)
    given = parser.parse_args()
    tree = subprocess.Popen([sys.executable, "-c", TREE, str(given.processes)])
    try:
        for name, terminal in (("plain lines", False), ("live table", True)):
            with tempfile.TemporaryDirectory() as folder:
                ledger = Path(folder, "watch.jsonl")
                beginning, share = cost(tree.pid, given.seconds, given.interval, ledger, terminal=terminal)
                rows = len(ledger.read_text(encoding="utf-8").splitlines())
                size = ledger.stat().st_size / rows
            print(
                f"{name}: {given.processes} processes, every {given.interval:g} s: {share:.3%} of one core,"
                f" {beginning:.2f} s for the first {SETTLING:.0f} s; {rows} lines of {size:.0f} bytes"
            )
    finally:
        for child in psutil.Process(tree.pid).children():
            child.kill()
        tree.kill()
        tree.wait()


if __name__ == "__main__":
    main()
