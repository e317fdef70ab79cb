"""What differs between the supported releases of pytest."""

from __future__ import annotations

import tomllib
from collections.abc import Hashable
from typing import Any

import pytest

try:
    from _pytest.subtests import failed_subtests_key
except ImportError:  # pragma: no cover  # before pytest 9, or moved by a later one
    failed_subtests_key = None  # type: ignore[assignment]


def is_of_subtest(report: object) -> bool:
    """Return whether a report is on a subtest: of pytest, or before pytest 9 of pytest-subtests."""
    return isinstance(report, pytest.TestReport) and hasattr(report, "context")


def forget_failed_subtests(item: pytest.Item) -> None:
    """Remove pytest's count of the failed subtests of an item, which would fail its next run."""
    if failed_subtests_key is None:
        return
    failed: Any = item.config.stash.get(failed_subtests_key, None) or {}
    # It has an entry for each test so far, so it is not searched. pytest 9.1 and earlier have no
    # `id`, and a plugin may set another one.
    for key in (item.nodeid, getattr(item, "id", None)):
        if isinstance(key, Hashable):
            failed.pop(key, None)


def warn_of_ignored_table(config: pytest.Config) -> None:
    """Warn of a table ``[tool.pytest]``, which pytest reads from version 9 on."""
    path = config.rootpath / "pyproject.toml"
    if config.inipath not in (None, path):
        return
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("pytest", {})
    except (OSError, ValueError):
        return
    if ignored := sorted(key for key in table if key != "ini_options"):
        config.issue_config_time_warning(
            pytest.PytestConfigWarning(
                f"{path.name}: pytest {pytest.__version__} ignores {', '.join(ignored)} in [tool.pytest]; "
                "move the table to [tool.pytest.ini_options], or install pytest 9"
            ),
            stacklevel=2,
        )
