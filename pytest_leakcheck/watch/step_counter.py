"""The step of a training, told to a watch in another process through one number in mapped memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pytest_leakcheck.runner.processes.supervisor import Board

# The file that `watch -- COMMAND` makes for it.
VARIABLE: Final = "LEAKCHECK_WATCH_STEPS"


def make_board(path: Path) -> Board:
    """For the process that watches."""
    path.write_bytes(bytes(Board.SIZE))
    return Board(path)


def watched_board() -> Board | None:
    """For the training; None where nobody watches it."""
    path = os.environ.get(VARIABLE)
    try:
        return Board(Path(path)) if path else None
    except OSError:
        # Of a watch that is over.
        return None
