"""Check whether a library retains memory: run a workload for thousands of steps without the plugin; print readings.

If `census.py` reports a red verdict, this script distinguishes a leak from a false alarm: a leak continues at one rate,
a cache becomes full, and the noise of an allocator does not rise. The readings are bytes in use (``mallinfo2``), blocks
of the interpreter's own allocator and gc objects, each after a full collection.

The last lines state in how many of ten equal stretches each reading rose: a leak rises in all of them.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from array import array
from itertools import pairwise
from pathlib import Path

from pytest_leakcheck.probes.native_heap import Heap
from workloads import find_workloads

STRETCHES = 10
NAMES = ("bytes in use", "blocks", "gc objects")


def main() -> int:
    """Run the workload and print the readings."""
    parser = argparse.ArgumentParser(description="What a workload retains over thousands of steps.")
    parser.add_argument("workload", choices=sorted(find_workloads()))
    parser.add_argument("--steps", type=int, default=5_000, help="steps after the first stretch (default: 5,000)")
    parser.add_argument("--seed", type=int, default=0, help="what the data come from (default: 0)")
    wanted = parser.parse_args()
    stretch = max(1, wanted.steps // STRETCHES)
    with tempfile.TemporaryDirectory(prefix="longrun-") as folder:
        step = find_workloads()[wanted.workload].step(wanted.seed, Path(folder))
        heap = Heap()
        heap.open()
        # Created in advance, because a growing list of readings would be retained memory itself.
        columns = [array("q", bytes(8 * (STRETCHES + 1))) for _ in NAMES]
        print(f"{'steps':>8}", *(f"{name:>14}" for name in NAMES))
        for row in range(STRETCHES + 1):
            for _ in range(stretch):
                step()
            gc.collect()
            columns[0][row] = heap.read()
            columns[1][row] = sys.getallocatedblocks()
            columns[2][row] = len(gc.get_objects())
            print(f"{row * stretch:>8,}", *(f"{column[row]:>14,}" for column in columns), flush=True)
    for name, column in zip(NAMES, columns, strict=True):
        rises = sum(later > earlier for earlier, later in pairwise(column))
        slope = (column[-1] - column[0]) / (STRETCHES * stretch)
        print(f"{name}: {slope:+.2f} per step on the whole; rose in {rises} of {STRETCHES} stretches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
