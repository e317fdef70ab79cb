"""Render the progress of a session as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pytest_leakcheck.config.time_left import format_duration
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.glyphs import printable, shorten

# The maximum number of growing resources that the line lists.
_MAX_GROWING: Final = 2
# The name of a test is not shortened below this many columns; other parts are left out instead.
_MIN_NAME: Final = 12


class SessionProgress(NamedTuple):
    """How far the session is: how many tests it measures, have ended and leak; `seconds_left` is None if unknown."""

    done: int
    tests: int
    red: int
    seconds_left: float | None


class ItemProgress(NamedTuple):
    """How far a test is: the number of the iteration, and what is known of the test so far; both may be empty."""

    name: str
    step: str = ""
    details: str = ""


def progress_line(test: ItemProgress, session: SessionProgress, width: int) -> str:
    """Return the line that is shown while a test is repeated, of at most `width` columns.

    A long name is shortened first; then the details are left out, then how far the session is.
    """
    begin, name = f"leakcheck {test.step}".rstrip(), printable(test.name)
    red = f", {session.red} red" if session.red else ""
    left = f", ≈ {format_duration(session.seconds_left)} left" if session.seconds_left is not None else ""
    end = f"[{session.done}/{session.tests}{red}{left}]"
    line = ""
    for parts in ((test.details, end), ("", end), ("", "")):
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
