"""For a line in a training: ``with Watcher() as watcher: ... watcher.step()``; and the same as a callback of Lightning."""

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

_INTERVAL: Final = 1.0


class Watcher:
    """Follows this process and its children from inside, between steps, and tells growth per step.

    A step costs 0.2 us; once per interval one costs a sample, 0.15 ms for each process. There is no thread: while no step ends,
    nothing is read. Where the training was started by ``pytest-leakcheck watch -- COMMAND``, it only tells that its steps.

    Attributes:
        path: The ledger; None where another process watches.
    """

    def __init__(
        self, path: str | Path | None = None, *, interval: float = _INTERVAL, out: TextIO | None = None
    ) -> None:
        """
        Args:
            path: The ledger to append to; by default ``watch-PID.jsonl`` in this folder.
            interval: Seconds between samples, at least.
            out: Where the state at the end is printed; by default stderr.

        Raises:
            OSError: The ledger cannot be written.
        """
        self.path: Path | None = None
        self._steps = 0
        self._interval, self._out = interval, out
        self._due = float("-inf")
        # In a forked worker, which has a copy of this, a step does nothing.
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
        """A step has ended."""
        self._steps += 1
        if self._board is not None:
            self._board.iteration = self._steps
        elif time.monotonic() >= self._due:
            self._sample()

    def close(self) -> None:
        """Read a last time, and print what was seen. A second call does nothing."""
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._following is None or self._ledger is None or os.getpid() != self._pid:
            return
        following, self._following = self._following, None
        following.end("the training closed it")
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


def lightning_callback(path: str | Path | None = None, *, interval: float = _INTERVAL) -> Callback:
    """A `Watcher` for ``Trainer(callbacks=[...])``: a step is a training batch.

    Args:
        path: As for `Watcher`.
        interval: As for `Watcher`.

    Raises:
        ImportError: There is no Lightning.
    """
    from lightning.pytorch.callbacks import Callback

    class Watching(Callback):
        """Begins with the fit and ends with it, whether it fails or not."""

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
