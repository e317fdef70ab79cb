"""Find out which characters the terminal of the session can show, also from a worker or a subprocess."""

from __future__ import annotations

import pytest

from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.stash import ENCODING
from pytest_leakcheck.report.glyphs import Glyphs, glyphs_for


def encoding_of(config: pytest.Config) -> str:
    """Return the encoding of the session's terminal; ``ascii`` if it is unknown.

    An xdist worker receives it from its controller, and the subprocess of an isolated test from its session.
    """
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
