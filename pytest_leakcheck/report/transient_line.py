"""Show a line on a terminal below what is printed there, and erase it without a trace."""

from __future__ import annotations

# The functions themselves: a test may replace those of the module.
from os import get_terminal_size, write
from typing import Final

from pytest_leakcheck.probes.own_descriptors import OwnFile
from pytest_leakcheck.report.glyphs import shown_in

_MAX_WIDTH: Final = 80
# Make sure that there is a line below: move down, which scrolls at the bottom, and up again; the column stays. Save the
# position, and turn off the wrapping of long lines.
_BEGIN: Final = b"\x1bD\x1b[A\x1b7\x1b[?7l\r\n\x1b[2K"
# Wrap long lines again, and return to the saved position.
_END: Final = b"\x1b[?7h\x1b8"
# Erase all that follows the cursor. Nothing else is printed there.
_ERASE: Final = b"\x1b[J"


class TransientLine:
    """A line on a terminal. The cursor stays where it is, so others can print as if there were no line.

    They must erase it before they print. Nothing is written any more once the terminal is gone, or the program has
    closed the descriptor.
    """

    def __init__(self, terminal: int, encoding: str) -> None:
        """Take a descriptor of the terminal, which is not closed here; raise `OSError` if it is closed."""
        self._file: OwnFile | None = OwnFile(lambda: terminal)
        self._encoding = encoding
        self._shown = False

    @property
    def width(self) -> int:
        """The columns of the line: those of the terminal, but at most 80."""
        try:
            columns = get_terminal_size(self._file.number if self._file is not None else -1).columns
        except OSError:
            columns = 0
        return min(columns or _MAX_WIDTH, _MAX_WIDTH)

    def draw(self, text: str) -> None:
        """Show a text in place of the last one."""
        self._shown = True
        self._write(_BEGIN + shown_in(text, self._encoding).encode(self._encoding) + _END)

    def erase(self) -> None:
        """Remove the line; does nothing if none is shown."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def _write(self, sequence: bytes) -> None:
        try:
            # The program may have closed the descriptor, or put another file over it.
            if self._file is not None and self._file.check() is not None:
                write(self._file.number, sequence)
                return
        except OSError:
            pass
        self._file = None
