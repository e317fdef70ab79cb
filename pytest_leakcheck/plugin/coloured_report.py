"""Show the report of a red (failing) finding in color."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest
from _pytest._code.code import TerminalRepr

from pytest_leakcheck.report.colour import Style, coloured
from pytest_leakcheck.report.same_cause import SameCause

_MARKUP: Final[Mapping[Style, dict[str, bool]]] = {
    "verdict": {"red": True, "bold": True},
    "label": {"light": True},
    "command": {"bold": True},
    "plain": {},
}


def has_colours(config: pytest.Config) -> bool:
    """Return whether this process writes to a terminal in color."""
    return config.pluginmanager.hasplugin("terminalreporter") and config.get_terminal_writer().hasmarkup


class ColouredReport(TerminalRepr):
    """The report of a red finding, in color on the terminal; elsewhere it acts as the report that it replaces."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def __str__(self) -> str:
        return str(self._plain)

    def toterminal(self, tw: Any) -> None:
        if not tw.hasmarkup:
            self._plain.toterminal(tw)
            return
        for parts in coloured(str(self._plain)):
            for text, style in parts:
                tw.write(tw._highlight(text) if style == "source" else tw.markup(text, **_MARKUP[style]))
            tw.line()


class SameCauseReport(ColouredReport):
    """The report of a red finding whose cause an earlier test has: on the terminal, one line that names that test."""

    def __init__(self, plain: Any, same: SameCause, line: str) -> None:
        super().__init__(plain)
        self.same = same
        self._line = line

    def toterminal(self, tw: Any) -> None:
        tw.line(self._line, red=True)
