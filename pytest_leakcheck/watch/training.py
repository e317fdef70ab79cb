"""Watch a training run from inside, by `Watcher.step` after each step, or `lightning_callback`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from pytest_leakcheck.runner.processes.supervisor import Board
from pytest_leakcheck.watch.follower import Following
from pytest_leakcheck.watch.status_text import lines

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

# Environment variable with the path of the file in which a command counts its steps for ``watch --
# COMMAND``.
STEPS_VARIABLE: Final = "LEAKCHECK_WATCH_STEPS"


class Watcher:
    """A watch of this process and its descendants, which reports growth per step.

    A call of `step` takes 0.2 us, and once per interval 0.15 ms for each process. There is no
    background thread, so nothing is read until a step ends. If ``pytest-leakcheck watch --
    COMMAND`` has started the training run, that watch takes the samples: this object only passes on
    the number of the step, and ``path`` (the ledger) is None.
    """

    def __init__(
        self, path: str | Path | None = None, *, interval: float = 1.0, out: TextIO | None = None
    ) -> None:
        """Start the watch, with samples at least ``interval`` seconds apart.

        The ledger is at ``path``, by default ``watch-PID.jsonl`` in the current folder; raise
        OSError if it cannot be written. The final state is printed to ``out``, by default stderr.
        """
        self._steps = 0
        self._interval, self._out = interval, out
        self._due = float("-inf")
        # A forked worker inherits a copy of this object, which must neither sample nor write to the
        # ledger.
        self._pid = os.getpid()
        self._board: Board | None = None
        self._following: Following | None = None
        # Without the variable, no watch has started this process; without the file, that watch is
        # over.
        with contextlib.suppress(KeyError, OSError):
            self._board = Board(Path(os.environ[STEPS_VARIABLE]))
        if self._board is None:
            self._following = Following(
                self._pid, Path(path) if path is not None else None, interval
            )
        self.path = self._following.path if self._following else None

    def step(self) -> None:
        """Count a step that has ended, and take a sample if one is due."""
        self._steps += 1
        if self._board is not None:
            if os.getpid() == self._pid:
                self._board.iteration = self._steps
        elif (
            time.monotonic() >= self._due
            and self._following is not None
            and os.getpid() == self._pid
        ):
            self._due = time.monotonic() + self._interval
            self._following.sample(self._steps)

    def close(self) -> None:
        """Take a last sample and print the final state, unless another process watches.

        A second call does nothing.
        """
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._following is not None and os.getpid() == self._pid:
            following, self._following = self._following, None
            following.end("closed by the training run")
            print(*lines(following.history), sep="\n", file=self._out or sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lightning_callback(path: str | Path | None = None, *, interval: float = 1.0) -> Callback:
    """Return a callback for ``Trainer(callbacks=[...])`` that runs a `Watcher` for a fit.

    A step is one batch.
    """
    from lightning.pytorch.callbacks import Callback

    class Watching(Callback):
        watcher: Watcher | None = None

        def on_fit_start(self, *_: Any) -> None:
            self.watcher = Watcher(path, interval=interval)

        def on_train_batch_end(self, *_: Any) -> None:
            if self.watcher:
                self.watcher.step()

        def teardown(self, *_: Any, **__: Any) -> None:
            if self.watcher:
                self.watcher.close()

        on_exception = teardown

    return Watching()
