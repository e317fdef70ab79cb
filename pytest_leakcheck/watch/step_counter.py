"""Pass the step of a training run to a watch in another process, as a number in a file that both map into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pytest_leakcheck.runner.processes.supervisor import Board

# Environment variable with the path of the file that ``watch -- COMMAND`` creates for the command.
VARIABLE: Final = "LEAKCHECK_WATCH_STEPS"


def make_board(path: Path) -> Board:
    """Create the file and map it, in the watching process."""
    path.write_bytes(bytes(Board.SIZE))
    return Board(path)


def watched_board() -> Board | None:
    """Map the file in the training process; None if no watch has started this process."""
    path = os.environ.get(VARIABLE)
    try:
        return Board(Path(path)) if path else None
    except OSError:
        # The watch is over and has removed its file.
        return None
