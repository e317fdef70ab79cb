"""Watch the leaky training run of incident 2 until it dies, and compare the forecasts with the actual end.

The script then watches the fixed training run. Both have PyAV loaders in DataLoader workers of torch. A step is one
switch to the next chunk of the videos, in which a worker replaces the loaders of all nine cameras.

Usage: python ci/bench/watch_workers.py [--workers 8] [--switches 400]
       python ci/bench/watch_workers.py train leaky|fixed WORKERS SWITCHES (the run alone)
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from leakcheck_incidents.pyav_loader.chunks import Recording
from leakcheck_incidents.pyav_workers.workers import Parent, Setting, Switches
from leakcheck_incidents.synthetic.video import Clip, write_clip
from pytest_leakcheck.watch.forecast import Outlook, outlooks
from pytest_leakcheck.watch.history import History, read_histories, read_ledger
from pytest_leakcheck.watch.status_text import lines
from pytest_leakcheck.watch.training import Watcher

# The limit of descriptors of the training run, and how many a switch leaks: one for each of nine cameras.
LIMIT: Final = 1024
PER_SWITCH: Final = 9
FRAMES: Final = 20
GOP: Final = 10
# Seconds per training step. The larger part would run on an accelerator, and is simulated by waiting. Computing it on
# CPU cores that are shared with other work would vary the pace by a third within a minute, too much to forecast a time.
PACE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Watched:
    """A training run that was watched: what it and the watch printed, the steps until it ended, and the ledger."""

    said: str
    taken: int
    ledger: Path

    def whole(self) -> History:
        """Return all that the watch recorded."""
        (history,) = read_histories(self.ledger)
        return history

    def part(self, share: float) -> History:
        """Return what was recorded up to a share of the steps."""
        start, *rows = read_ledger(self.ledger)
        history = History(start)
        for row in rows:
            if (row.step or 0) > share * self.taken:
                break
            history.add(row)
        return history

    def limit_reached(self) -> tuple[int, float]:
        """Return the step and the time at which a worker first had too few free descriptors for another switch.

        The time is in seconds since the epoch. The training run continues for some steps after that, because its
        workers prepare switches in advance. Raise ValueError if no worker reached the limit.
        """
        tracks = self.whole().tracks
        fds = [track for name, track in tracks.items() if name.startswith("fd of ")]
        full = (at for fd in fds for at, count in zip(fd.at, fd.values, strict=True) if count > LIMIT - PER_SWITCH)
        moment = min(full)
        return max(step for step, at in zip(tracks["fd"].steps, tracks["fd"].at, strict=True) if at <= moment), moment


def watch(arm: str, workers: int, switches: int, ledger: Path, interval: float = 0.1) -> Watched:
    """Run the training run under `pytest-leakcheck watch`; `subprocess.CalledProcessError` if that fails."""
    command = [sys.executable, "-m", "pytest_leakcheck", "watch", "--ledger", str(ledger)]
    command += [f"--interval={interval}", "--", sys.executable, "-W", "ignore", __file__]
    command += ["train", arm, str(workers), str(switches)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    said = done.stdout + done.stderr
    (taken,) = re.findall(r"^taken: (\d+)$", said, re.MULTILINE)
    return Watched(said, int(taken), ledger)


def descriptors(history: History) -> Outlook:
    """Return the forecast for the descriptors of the whole process tree."""
    return outlooks(history)["fd"]


def foretold(watched: Watched, share: float) -> tuple[float, float]:
    """Compare the forecast after a share of the steps with the actual end.

    Return the forecast steps and seconds to the limit, each as a ratio to the actual number; 1 is exact. Raise
    LookupError if there was no forecast.
    """
    history = watched.part(share)
    fd = descriptors(history)
    if not fd.left or history.step is None:
        raise LookupError(f"no end was foretold after {share:.0%}")
    at_step, at = watched.limit_reached()
    return fd.left[0] / (at_step - history.step), fd.left[0] * fd.pace / (at - history.last)


def learner() -> Callable[[list[float]], None]:
    """Return a training step that takes `PACE` seconds; the workers wait for it, as in real training runs."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Conv2d(9, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    due = time.monotonic()

    def learn(means: list[float]) -> None:
        nonlocal due
        optimizer.zero_grad()
        pictures = torch.tensor(means).reshape(1, PER_SWITCH, 1, 1).expand(1, PER_SWITCH, 96, 96)
        model(pictures).square().mean().backward()
        optimizer.step()
        # A late step does not shorten the following ones.
        due = max(due + PACE, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))

    return learn


def train(arm: str, workers: int, switches: int) -> int:
    """Train on a number of switches, or until a worker fails. Return the number of completed switches."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    with tempfile.TemporaryDirectory() as folder:
        path = write_clip(Clip(width=64, height=64, frames=FRAMES, gop=GOP), Path(folder, "clip.mp4"))
        videos = {(f"camera{number}", "rgb"): path for number in range(PER_SWITCH)}
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


def main() -> None:
    """Watch the leaky and the fixed training run, and print their forecasts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--switches", type=int, default=400, help="of the fixed arm; the leaky one goes on until it dies"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        leaky = watch("leaky", given.workers, 1_000_000, Path(folder, "leaky.jsonl"))
        print(*lines(leaky.whole()), sep="\n")
        slope = descriptors(leaky.whole()).slope
        shown = f"{slope.value:.3f}" if slope is not None else "not known"
        print(f"died after {leaky.taken} switches; slope {shown} per switch, {PER_SWITCH} are leaked")
        for share in (0.25, 0.5, 0.75):
            try:
                steps, seconds = foretold(leaky, share)
            except LookupError as error:
                print(error)
                continue
            print(f"foretold after {share:.0%} of it: {steps:.3f} of the steps, {seconds:.3f} of the time to the limit")
        fixed = watch("fixed", given.workers, given.switches, Path(folder, "fixed.jsonl"))
        print(*lines(fixed.whole()), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        print("taken:", train(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        main()
