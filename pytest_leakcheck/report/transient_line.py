"""Show the progress of a session as one line on a terminal, below what is printed there; erase it without a trace."""

from __future__ import annotations

from collections.abc import Mapping

# The functions themselves: a test may replace those of the module.
from os import get_terminal_size, write
from typing import Final, NamedTuple

from pytest_leakcheck.config.sampling import format_duration
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.probes.own_descriptors import OwnFile
from pytest_leakcheck.report.glyphs import printable, shorten, shown_in

_MAX_WIDTH: Final = 80
# Make sure that there is a line below: move down, which scrolls at the bottom, and up again; the column stays. Save the
# position, and turn off the wrapping of long lines.
_BEGIN: Final = b"\x1bD\x1b[A\x1b7\x1b[?7l\r\n\x1b[2K"
# Wrap long lines again, and return to the saved position.
_END: Final = b"\x1b[?7h\x1b8"
# Erase all that follows the cursor. Nothing else is printed there.
_ERASE: Final = b"\x1b[J"
# The maximum number of growing resources that the line lists.
_MAX_GROWING: Final = 2
# The name of a test is not shortened below this many columns; other parts are left out instead.
_MIN_NAME: Final = 12


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


class SessionProgress(NamedTuple):
    """How far the session is: how many tests it measures, have ended and leak; `seconds_left` is None if unknown."""

    done: int
    tests: int
    red: int
    seconds_left: float | None


def progress_line(session: SessionProgress, width: int, name: str, step: str = "", details: str = "") -> str:
    """Return the line that is shown while a test is repeated, of at most `width` columns.

    It has the name of the test, the number of the iteration, and what is known of the test so far. A long name is
    shortened first; then the details are left out, then how far the session is.
    """
    begin, name = f"leakcheck {step}".rstrip(), printable(name)
    red = f", {session.red} red" if session.red else ""
    left = f", ≈ {format_duration(session.seconds_left)} left" if session.seconds_left is not None else ""
    end = f"[{session.done}/{session.tests}{red}{left}]"
    line = ""
    for parts in ((details, end), ("", end), ("", "")):
        rest = "".join(f"  {part}" for part in parts if part)
        room = width - len(begin) - 2 - len(rest)
        line = f"{begin}  {shorten(name, max(1, room))}{rest}"
        if room >= min(len(name), _MIN_NAME):
            return line
    return line[:width]


def format_growth(growth: Mapping[str, float]) -> str:
    """Return the resources that have grown by more than their tolerance, with their rates; exact counters first."""
    grown = {name: rate for name, rate in growth.items() if rate > find_resource(name).tolerance}
    in_order = sorted(grown, key=lambda name: (not find_resource(name).scarce, -grown[name]))
    rates = [f"{name} {format_rate(grown[name], find_resource(name).unit)}" for name in in_order[:_MAX_GROWING]]
    more = [f"{len(in_order) - _MAX_GROWING} more"] if len(in_order) > _MAX_GROWING else []
    return " · ".join(rates + more)
