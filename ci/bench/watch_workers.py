"""Watches the training of incident 2 until it dies, and holds what was foretold against what came.

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

from pytest_leakcheck.watch.events import Began, Sample
from pytest_leakcheck.watch.forecast import Outlook, first_to_end, outlooks
from pytest_leakcheck.watch.history import History
from pytest_leakcheck.watch.ledger import read_ledger
from pytest_leakcheck.watch.ledger_page import read_histories
from pytest_leakcheck.watch.status_text import last_lines

TRAINING: Final = Path(__file__).with_name("watched_training.py")
LIMIT: Final = 1024
# Nine cameras, each a descriptor that is kept.
PER_SWITCH: Final = 9


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of a training that was watched.

    Attributes:
        said: What the training and the watch printed.
        taken: Steps when it ended.
        ledger: The watch's file.
    """

    said: str
    taken: int
    ledger: Path

    def whole(self) -> History:
        """All that was seen."""
        (history,) = read_histories(self.ledger)
        return history

    def limit_reached(self) -> tuple[int, float]:
        """The step and the moment, in seconds since the epoch, at which a worker had no room for a switch more.

        The training goes on for some steps after that: its workers are ahead of it.

        Raises:
            ValueError: None came so far.
        """
        history = self.whole()
        tracks = [tracks["fd"] for tracks in history.processes.values()]
        full = (at for fd in tracks for at, count in zip(fd.at, fd.values, strict=True) if count > LIMIT - PER_SWITCH)
        moment = min(full)
        total = history.totals["fd"]
        return max(step for step, at in zip(total.steps, total.at, strict=True) if at <= moment), moment

    def part(self, share: float) -> History:
        """What had been seen after so much of its steps."""
        events = [event for event in read_ledger(self.ledger) if not isinstance(event, str)]
        began = next(event for event in events if isinstance(event, Began))
        history = History(began)
        for event in events:
            if isinstance(event, Sample) and (event.step or 0) > share * self.taken:
                break
            if not isinstance(event, Began):
                history.absorb(event)
        return history


@dataclass(frozen=True, slots=True)
class Foretold:
    """What was foretold at one moment: its ratio to what came, for the steps and the time to the limit; 1 is right."""

    steps: float
    seconds: float


def watch(arm: str, workers: int, switches: int, ledger: Path, interval: float = 0.1) -> Watched:
    """Run the training under `pytest-leakcheck watch`.

    Raises:
        subprocess.CalledProcessError: It could not be watched.
    """
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "watch", "--ledger", str(ledger)]
    command += [f"--interval={interval}", "--", sys.executable, "-W", "ignore", str(TRAINING)]
    command += [arm, str(workers), str(switches), str(LIMIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    said = done.stdout + done.stderr
    (taken,) = re.findall(r"^taken: (\d+)$", said, re.MULTILINE)
    return Watched(said, int(taken), ledger)


def descriptors(history: History) -> Outlook:
    """What is to be expected of the whole tree's descriptors."""
    return outlooks(history, floor=True)["fd"]


def foretold(watched: Watched, share: float) -> Foretold:
    """Hold what was foretold after a share of its steps against the end.

    Raises:
        LookupError: No end was foretold.
    """
    history = watched.part(share)
    end = first_to_end(history)
    if end is None or end[1].expected_steps is None or end[1].expected_seconds is None or history.steps is None:
        raise LookupError(f"no end was foretold after {share:.0%}")
    _pid, its = end
    at_step, at = watched.limit_reached()
    steps, seconds = at_step - history.steps, at - history.last
    return Foretold(end[1].expected_steps / steps, (its.expected_seconds or 0.0) / seconds)


def main() -> None:
    """Watch both arms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument(
        "--switches", type=int, default=400, help="of the mended arm; the leaky one goes on until it dies"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        leaky = watch("leaky", given.workers, 1_000_000, Path(folder, "leaky.jsonl"))
        print(*last_lines(leaky.whole()), sep="\n")
        slope = descriptors(leaky.whole()).per_step
        shown = f"{slope.value:.3f}" if slope is not None else "not known"
        print(f"died after {leaky.taken} switches; slope {shown} per switch, {PER_SWITCH} are leaked")
        for share in (0.25, 0.5, 0.75):
            try:
                told = foretold(leaky, share)
            except LookupError as error:
                print(error)
                continue
            print(
                f"foretold after {share:.0%} of it: {told.steps:.3f} of the steps, {told.seconds:.3f} of the time to the limit"
            )
        fixed = watch("fixed", given.workers, given.switches, Path(folder, "fixed.jsonl"))
        print(*last_lines(fixed.whole()), sep="\n")


if __name__ == "__main__":
    main()
