"""Uploads that are killed: ``killed_upload.py DATASET REPO SHARDS SEED KILLS`` prints at which event each was.

The clients are imported once. Each upload is a fork, which counts the calls that it makes, and kills itself at one of them;
a first one, that is let through, tells how many there are.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from types import FrameType
from typing import Any

from datasets import load_from_disk
from huggingface_hub import HfApi

from leakcheck_incidents.hub_upload import fixed


def main(folder: str, repo: str, shards: int, seed: int, kills: int) -> None:
    total = _in_a_fork(folder, f"{repo}-whole", shards, sys.maxsize)
    chance = random.Random(seed)
    for kill in range(kills):
        at = chance.randint(1, total)
        _in_a_fork(folder, f"{repo}-{kill}", shards, at)
        print(f"{repo}-{kill} {at} of {total}", flush=True)  # noqa: T201 - what it is for


def _in_a_fork(folder: str, repo: str, shards: int, at: int) -> int:
    """How many events it had; a killed one has none to tell."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        counted = _upload(folder, repo, shards, at)
        os.write(writing, str(counted).encode())
        # Those that made fewer calls than the first one are killed too, at their end.
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading) as answer:
        told = answer.read()
    _pid, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    return int(told or 0)


def _upload(folder: str, repo: str, shards: int, at: int) -> int:
    events = 0

    def count(_frame: FrameType, _event: str, _argument: Any) -> None:
        nonlocal events
        events += 1
        if events == at:
            os.kill(os.getpid(), signal.SIGKILL)

    dataset, api = load_from_disk(folder), HfApi()
    sys.setprofile(count)
    fixed.upload(dataset, repo, shards=shards, api=api)
    sys.setprofile(None)
    return events


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
