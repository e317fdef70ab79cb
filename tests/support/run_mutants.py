"""Runs tests against mutants of a package, one after the other in this process: ``python run_mutants.py < jobs.json``.

In: a list of jobs, each with `module`, `old`, `new`, and `arguments` of pytest; and texts that are replaced in every job. Out,
in the last line: the exit status of each.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

import pytest

# Imported again for each mutant: what is mutated, and the modules that have imported names from it.
_PREFIXES: Final = ("leakcheck_incidents", "rollout_control", "store_writers", "tests.incidents")


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, replaced: list[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._replaced = replaced

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        text = self.get_data(path).decode()
        for old, new in self._replaced:
            if text.count(old) != 1:
                raise LookupError(f"{fullname}: {text.count(old)} times, not once: {old!r}")
            text = text.replace(old, new)
        return compile(text, path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, replaced: dict[str, list[tuple[str, str]]]) -> None:
        self._replaced = replaced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._replaced:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._replaced[fullname])
        return spec


def run(job: dict[str, Any], always: list[tuple[str, str, str]]) -> int:
    """One mutant. Returns the exit status of pytest."""
    replaced: dict[str, list[tuple[str, str]]] = {}
    for module, old, new in [*always, *([(job["module"], job["old"], job["new"])] if job["module"] else [])]:
        replaced.setdefault(module, []).append((old, new))
    finder = _Finder(replaced)
    for name in [name for name in sys.modules if name.startswith(_PREFIXES)]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    # What earlier runs have loaded is most of what a collection would look through, and pytest asks for several.
    gc.freeze()
    try:
        return int(pytest.main(job["arguments"]))
    finally:
        sys.meta_path.remove(finder)


if __name__ == "__main__":
    given = json.load(sys.stdin)
    statuses = [run(job, given["always"]) for job in given["jobs"]]
    sys.stdout.write(f"{json.dumps(statuses)}\n")
