"""A separate training run with a lowered limit of descriptors; at the end it prints what happened."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from importlib import import_module
from pathlib import Path

from leakcheck_incidents.pyav_loader.chunks import Recording
from leakcheck_incidents.pyav_workers import switches_until_limit
from leakcheck_incidents.pyav_workers.workers import Parent, Setting, Switches
from leakcheck_incidents.synthetic.video import Clip, write_clip

name, start, workers, switches = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])


def held(pid: int | None) -> int:
    folder = f"/proc/{pid}/fd"
    return sum(not os.readlink(f"{folder}/{name}").endswith(".mp4") for name in os.listdir(folder))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    path = write_clip(Clip(width=64, height=64, frames=20, gop=10), Path("clip.mp4"))
    recording = Recording({(f"camera{number}", "rgb"): path for number in range(9)}, frames=20, gop=10)
    setting = Setting(start, prefetch=2, collector=False, workers=workers)  # type: ignore[arg-type]
    parent = Parent(Switches(import_module(f"leakcheck_incidents.pyav_loader.{name}"), recording, setting), setting)
    parent.rest()
    children = sorted(multiprocessing.active_children(), key=lambda child: child.pid)  # type: ignore[arg-type, return-value]
    print("foretold:", switches_until_limit(256, [held(child.pid) for child in children], 9))
    own = len(list(Path("/proc/self/fd").iterdir()))
    taken = 0
    try:
        while taken < switches:
            parent.take()
            taken += 1
    except RuntimeError as error:
        print(error)
    print("taken:", taken)
    print("more of the parent's own:", len(list(Path("/proc/self/fd").iterdir())) - own)
    parent.close()
