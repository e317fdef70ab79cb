"""Find out which characters the session's terminal can show, and how many columns a report may use.

Workers and subprocesses receive the encoding of the session's terminal. They do not receive its width.
"""

from __future__ import annotations

from typing import Final

import pytest

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.rerun_command import rerun_command
from pytest_leakcheck.plugin.stash import ENCODING
from pytest_leakcheck.report.finding_text import WIDTH, block
from pytest_leakcheck.report.glyphs import Glyphs, glyphs_for

# The maximum number of columns of the first line of a report. A longer line is hard to read.
_MAX_WIDTH: Final = 120


def encoding_of(config: pytest.Config) -> str:
    """Return the encoding of the session's terminal; ``ascii`` if it is unknown."""
    if ENCODING in config.stash:
        return config.stash[ENCODING]
    if xdist.is_worker(config):
        return xdist.told_encoding(config) or "ascii"
    if not config.pluginmanager.hasplugin("terminalreporter"):
        return "ascii"
    return getattr(config.get_terminal_writer()._file, "encoding", None) or "ascii"


def glyphs_of(config: pytest.Config) -> Glyphs:
    """Return the characters that the terminal of the session can show."""
    return glyphs_for(encoding_of(config))


def width_of(config: pytest.Config) -> int:
    """Return the columns for the first line of a report: those of the terminal, 80 to 120; 80 without a reporter."""
    if not config.pluginmanager.hasplugin("terminalreporter"):
        return WIDTH
    return max(WIDTH, min(_MAX_WIDTH, config.get_terminal_writer().fullwidth))


def report_text(finding: Finding, item: pytest.Item) -> str:
    """Return the report of a finding on this item, in characters that the session's terminal can show."""
    config = item.config
    return block(finding, glyphs_of(config), width_of(config), rerun_command(finding, item))
