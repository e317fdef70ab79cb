"""Watch the leaky training run of incident 2 until it dies, and compare the forecasts with the actual end.

The script then watches the fixed training run. A step of either run is one switch to the next chunk of the videos.

Usage: python ci/bench/watch_workers.py [--workers 8] [--switches 400]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_leakcheck.watch.forecast import Outlook, outlooks
from pytest_leakcheck.watch.history import History, read_histories, read_ledger
from pytest_leakcheck.watch.status_text import lines

TRAINING: Final = Path(__file__).with_name("watched_training.py")
LIMIT: Final = 1024
# Number of descriptors that a switch leaks: one for each of nine cameras.
PER_SWITCH: Final = 9


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
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "watch", "--ledger", str(ledger)]
    command += [f"--interval={interval}", "--", sys.executable, "-W", "ignore", str(TRAINING)]
    command += [arm, str(workers), str(switches), str(LIMIT)]
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
    main()
