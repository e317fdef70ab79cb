"""aiohttp: the import system keeps a finder for each folder that modules are searched in.

It grew because each iteration searched another folder: the plugin let `pytester` make one. With one folder it is flat.
"""

import importlib
import sys
import tempfile
from pathlib import Path

ITERATIONS = 200


def search(folder: Path) -> None:
    """Import a module from a folder, and take both back."""
    folder.mkdir(exist_ok=True)
    (folder / "searched.py").touch()
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    importlib.import_module("searched")
    sys.path.remove(str(folder))
    del sys.modules["searched"]


with tempfile.TemporaryDirectory() as name:
    search(Path(name, "0"))
    before = len(sys.path_importer_cache)
    for _ in range(ITERATIONS):
        search(Path(name, "0"))
    same = len(sys.path_importer_cache)
    for number in range(1, ITERATIONS + 1):
        search(Path(name, str(number)))
    new = len(sys.path_importer_cache)
print(f"{ITERATIONS} iterations: {before} -> {same} finders with one folder, {same} -> {new} with new folders")
