"""Tell whether a session runs the whole suite, and whether an item asks for a verdict."""

from __future__ import annotations

from typing import Final

import pytest

from pytest_leakcheck.plugin.stash import PLAN, SWEEP

_OPTIONS: Final = {"keyword": "-k", "markexpr": "-m", "lf": "--lf", "last_failed": "--lf", "deselect": "--deselect"}


def asks_for_verdict(item: pytest.Item) -> bool:
    """Return whether an item has a plan or a sweep, or may judge loops of its own."""
    return PLAN in item.stash or SWEEP in item.stash or "leakcheck" in getattr(item, "fixturenames", ())


def selected_by(config: pytest.Config) -> str:
    """Return the argument that selects a part of the suite; empty if the session runs the whole."""
    for name, flag in _OPTIONS.items():
        if config.getoption(name, None):
            return flag
    given = config.args_source is pytest.Config.ArgsSource.ARGS
    return str(config.args[0]) if given else ""
