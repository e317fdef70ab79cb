"""Read the lines of source around a line, as they are when the page is made."""

from __future__ import annotations

import tokenize
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.report.html.view_model import SourceLine

# Lines before and after the marked one.
_AROUND: Final = 3
_MAX_CHARACTERS: Final = 160
# A larger file is not written by hand.
_MAX_BYTES: Final = 4 * 1024 * 1024

ReadSource: TypeAlias = Callable[[Site, str], tuple[SourceLine, ...]]


def no_source(_site: Site, _text: str) -> tuple[SourceLine, ...]:
    """Show no source."""
    return ()


def source_reader() -> ReadSource:
    """Return a function that reads the lines around a site, and each file only once.

    It takes the site and the text of its line, if that is known. It returns nothing if the file cannot be read, or if
    the line is another one by now.
    """

    @cache
    def lines_of(file: str) -> Sequence[str]:
        # The name comes from a report, which may come from anywhere: it must not show other files of this machine.
        if not file.endswith(".py"):
            return ()
        try:
            if not Path(file).is_file() or Path(file).stat().st_size > _MAX_BYTES:
                return ()
            with tokenize.open(file) as read:
                return read.read().splitlines()
        except (OSError, SyntaxError, UnicodeError, ValueError):
            return ()

    def excerpt(site: Site, text: str) -> tuple[SourceLine, ...]:
        lines = lines_of(site.file)
        if not 1 <= site.line <= len(lines) or (text and lines[site.line - 1].strip() != text):
            return ()
        first, last = max(1, site.line - _AROUND), min(len(lines), site.line + _AROUND)
        while not lines[first - 1].strip() and first < site.line:
            first += 1
        while not lines[last - 1].strip() and last > site.line:
            last -= 1
        return tuple(
            SourceLine(number, lines[number - 1][:_MAX_CHARACTERS].rstrip(), number == site.line)
            for number in range(first, last + 1)
        )

    return excerpt
