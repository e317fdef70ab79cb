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
import time
from array import array
from itertools import pairwise
from pathlib import Path

from pytest_leakcheck.probes.native_heap import Heap
from workloads import find_workloads

STRETCHES = 10


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
        columns = [array("q", bytes(8 * (STRETCHES + 1))) for _ in range(3)]
        print(f"{wanted.workload}, seed {wanted.seed}: {STRETCHES} stretches of {stretch:,} steps, after as many")
        print(
            f"{'steps':>8}  {'bytes in use':>14}  {'per step':>9}  {'blocks':>10}  {'gc objects':>10}  {'us/step':>9}"
        )
        for row in range(STRETCHES + 1):
            began = time.perf_counter()
            for _ in range(stretch):
                step()
            seconds = time.perf_counter() - began
            gc.collect()
            columns[0][row] = heap.read()
            columns[1][row] = sys.getallocatedblocks()
            columns[2][row] = len(gc.get_objects())
            bytes_, blocks, objects = (column[row] for column in columns)
            per_step = (bytes_ - columns[0][row - 1]) / stretch if row else 0.0
            line = f"{row * stretch:>8,}  {bytes_:>14,}  {per_step:>9.1f}  {blocks:>10,}  {objects:>10,}"
            print(f"{line}  {seconds / stretch * 1e6:>9.0f}", flush=True)
    names = ("bytes in use", "blocks", "gc objects")
    for name, column in zip(names, columns, strict=True):
        rises = sum(later > earlier for earlier, later in pairwise(column))
        slope = (column[-1] - column[0]) / (STRETCHES * stretch)
        print(f"{name}: {slope:+.2f} per step on the whole; rose in {rises} of {STRETCHES} stretches")
    return 0


if __name__ == "__main__":
    sys.exit(main())
