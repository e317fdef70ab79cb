"""Run a training run for `watch_workers.py`: leaky or fixed PyAV loaders in DataLoader workers of torch.

Each step trains on one switch, in which a worker replaces the loaders of all nine videos.

Usage: python ci/bench/watched_training.py leaky|fixed WORKERS SWITCHES LIMIT

LIMIT is the limit of file descriptors. The run ends early if a worker fails.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch

from leakcheck_incidents.pyav_loader.chunks import Recording
from leakcheck_incidents.pyav_workers.workers import Parent, Setting, Switches
from leakcheck_incidents.synthetic.video import Clip, write_clip
from pytest_leakcheck.watch.training import Watcher

FRAMES = 20
GOP = 10
CAMERAS = 9


# Seconds per training step. The larger part would run on an accelerator, and is simulated by waiting. Computing it on
# CPU cores that are shared with other work would vary the pace by a third within a minute, too much to forecast a time.
PACE = 0.1


def learner() -> Callable[[list[float]], None]:
    """Return a training step that takes `PACE` seconds; the workers wait for it, as in real training runs."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(9, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    due = time.monotonic()

    def learn(means: list[float]) -> None:
        nonlocal due
        optimizer.zero_grad()
        pictures = torch.tensor(means).reshape(1, CAMERAS, 1, 1).expand(1, CAMERAS, 96, 96)
        model(pictures).square().mean().backward()
        optimizer.step()
        # A late step does not shorten the following ones.
        due = max(due + PACE, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))

    return learn


def train(arm: str, workers: int, switches: int) -> int:
    """Train on a number of switches, or until a worker fails. Return the number of completed switches."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_clip(Clip(width=64, height=64, frames=FRAMES, gop=GOP), Path(folder, "clip.mp4"))
        videos = {(f"camera{number}", "rgb"): path for number in range(CAMERAS)}
        setting = Setting("fork", prefetch=2, collector=False, workers=workers)
        implementation = import_module(f"leakcheck_incidents.pyav_loader.{arm}")
        parent = Parent(Switches(implementation, Recording(videos, FRAMES, GOP), setting), setting)
        taken = 0
        learn = learner()
        with Watcher() as watcher:
            try:
                while taken < switches:
                    learn(parent.take())
                    taken += 1
                    watcher.step()
            except RuntimeError as error:
                print(str(error).strip().splitlines()[-1])
        parent.close()
    return taken


if __name__ == "__main__":
    limit = int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    print("taken:", train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
