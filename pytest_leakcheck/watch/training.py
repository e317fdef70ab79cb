"""Watch a training run from inside.

In a training loop, write ``with Watcher() as watcher:`` and call ``watcher.step()`` after each step. For Lightning,
pass `lightning_callback` to the trainer.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TextIO

from pytest_leakcheck.watch.follower import Following, default_ledger
from pytest_leakcheck.watch.ledger import Ledger
from pytest_leakcheck.watch.status_text import last_lines
from pytest_leakcheck.watch.step_counter import watched_board

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

_INTERVAL_SECONDS: Final = 1.0


class Watcher:
    """A watch of this process and its descendants, which reports growth per step.

    A call of `step` takes 0.2 us. Once per interval, it also takes a sample, which costs 0.15 ms for each process.
    There is no background thread, so nothing is read until a step ends. If ``pytest-leakcheck watch -- COMMAND`` has
    started the training run, that watch takes the samples: this object only passes on the number of the step, and
    ``path`` (the ledger) is None.
    """

    def __init__(
        self, path: str | Path | None = None, *, interval: float = _INTERVAL_SECONDS, out: TextIO | None = None
    ) -> None:
        """Start the watch, or connect to that which has started this process; OSError without a writable ledger.

        Samples are at least ``interval`` seconds apart, and appended to the ledger at ``path``, by default
        ``watch-PID.jsonl`` in the current folder. The final state is printed to ``out``, by default stderr.
        """
        self.path: Path | None = None
        self._steps = 0
        self._interval, self._out = interval, out
        self._due = float("-inf")
        # A forked worker inherits a copy of this object, which must neither sample nor write to the ledger.
        self._pid = os.getpid()
        self._board = watched_board()
        self._ledger: Ledger | None = None
        self._following: Following | None = None
        if self._board is None:
            self.path = Path(path) if path is not None else default_ledger(os.getpid())
            self._ledger = Ledger(self.path)
            try:
                self._following = Following(os.getpid(), self._ledger, interval)
            except BaseException:
                self._ledger.close()
                raise

    def step(self) -> None:
        """Count a step that has ended, and take a sample if one is due."""
        self._steps += 1
        if self._board is not None:
            if os.getpid() == self._pid:
                self._board.iteration = self._steps
        elif time.monotonic() >= self._due:
            self._sample()

    def close(self) -> None:
        """Take a last sample and print the final state, unless another process watches. A second call does nothing."""
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._following is None or self._ledger is None or os.getpid() != self._pid:
            return
        following, self._following = self._following, None
        following.end("closed by the training run")
        self._ledger.close()
        print(*last_lines(following.history), sep="\n", file=self._out or sys.stderr, flush=True)

    def __enter__(self) -> Watcher:  # noqa: PYI034 - `Self` came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sample(self) -> None:
        if self._following is not None and os.getpid() == self._pid:
            self._due = time.monotonic() + self._interval
            self._following.sample(self._steps)


def lightning_callback(path: str | Path | None = None, *, interval: float = _INTERVAL_SECONDS) -> Callback:
    """Return a callback for ``Trainer(callbacks=[...])`` that runs a `Watcher`; a step is one training batch."""
    from lightning.pytorch.callbacks import Callback

    class Watching(Callback):
        """A callback that watches a fit from its start to its end, even if the fit fails."""

        _watcher: Watcher | None = None

        def on_fit_start(self, *_: Any) -> None:
            self._watcher = Watcher(path, interval=interval)

        def on_train_batch_end(self, *_: Any) -> None:
            if self._watcher is not None:
                self._watcher.step()

        def teardown(self, *_: Any, **__: Any) -> None:
            self._end()

        def on_exception(self, *_: Any) -> None:
            self._end()

        def _end(self) -> None:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None

    return Watching()
