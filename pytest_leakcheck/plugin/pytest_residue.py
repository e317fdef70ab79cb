"""What pytest itself keeps of a test that is run again, and putting it back: none of it is the test's leak.

Measured per repetition of one item: a function fixture over a module fixture leaves 6 gc objects and 10 blocks (a
finalizer on the higher-scoped fixture), ``tmp_path`` the same and a directory, a warning 2 objects, ``print`` 2 blocks,
``record_property`` 1 block, ``add_marker`` 1 object and 3 blocks; a class keeps its instance.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

try:
    from _pytest.subtests import failed_subtests_key
except (
    ImportError
):  # pragma: no cover  # a later pytest may move it; then failed subtests are read from the report alone
    failed_subtests_key = None  # type: ignore[assignment]


class Residue:
    """The state of an item and its session before the first repetition. `put_back` after each one."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._own_markers = list(item.own_markers)
        self._keywords = dict(item.keywords._markers)  # type: ignore[attr-defined]
        self._sections = len(item._report_sections)
        self._properties = len(item.user_properties)
        self._outliving: list[pytest.FixtureDef[Any]] = []
        self._tmp_path: Path | None = None
        terminal = item.config.pluginmanager.getplugin("terminalreporter")
        self._stats: dict[str, list[Any]] = terminal.stats if terminal is not None else {}
        self._counts = {category: len(reports) for category, reports in self._stats.items()}

    def before_teardown(self) -> None:
        """While fixtures are still up: remember those that will outlive this repetition, and its ``tmp_path``."""
        request = getattr(self._item, "_request", None)
        definitions: dict[str, pytest.FixtureDef[Any]] = getattr(request, "_fixture_defs", {})
        self._outliving = [one for one in definitions.values() if one.scope != "function"]
        tmp_path = definitions.get("tmp_path")
        if tmp_path is not None and tmp_path.cached_result is not None:
            self._tmp_path = tmp_path.cached_result[0]

    def put_back(self) -> None:
        """After tear-down."""
        item = self._item
        item.own_markers[:] = self._own_markers
        markers: dict[str, Any] = item.keywords._markers  # type: ignore[attr-defined]
        if markers.keys() != self._keywords.keys():
            markers.clear()
            markers.update(self._keywords)
        del item._report_sections[self._sections :]
        del item.user_properties[self._properties :]
        if getattr(item, "_instance", None) is not None:
            # The bound method is made anew from a new instance, as for the first run.
            del item._instance  # type: ignore[attr-defined]
            item._obj = None  # type: ignore[attr-defined]
        for definition in self._outliving:
            definition._finalizers[:] = [one for one in definition._finalizers if not _is_done(one)]
        self._outliving = []
        if self._tmp_path is not None:
            shutil.rmtree(self._tmp_path, ignore_errors=True)
            _give_number_back(item.config, self._tmp_path.name.lower())
            self._tmp_path = None
        # Subtests report as they end, in every repetition; theirs are counted once, in the logged run.
        for category, reports in self._stats.items():
            del reports[self._counts.get(category, 0) :]
        for key, _count in self._subtest_failures():
            del item.config.stash[failed_subtests_key][key]

    def failed_subtests(self) -> bool:
        """Whether subtests of this repetition failed; pytest tells that by a count beside the item's own outcome."""
        return any(count > 0 for _key, count in self._subtest_failures())

    def _subtest_failures(self) -> list[tuple[Any, int]]:
        if failed_subtests_key is None:
            return []
        failed: Any = self._item.config.stash.get(failed_subtests_key, None)
        return [(key, count) for key, count in (failed or {}).items() if str(key) == self._item.nodeid]


def _give_number_back(config: pytest.Config, folder: str) -> None:
    """Let the next folder of this name have the same number: paths intern their parts, and 3.12 keeps those for ever."""
    factory = getattr(config, "_tmp_path_factory", None)
    numbers: dict[str, int] = getattr(factory, "_next_number", {})
    for prefix, following in numbers.items():
        if folder == f"{prefix}{following - 1}":
            numbers[prefix] = following - 1


def _is_done(finalizer: Any) -> bool:
    """Whether it would finish a fixture that is finished already."""
    if not isinstance(finalizer, functools.partial):
        return False
    definition = getattr(finalizer.func, "__self__", None)
    return isinstance(definition, pytest.FixtureDef) and definition.cached_result is None
