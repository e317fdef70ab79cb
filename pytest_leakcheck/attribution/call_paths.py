"""Read the test's own part, the test phase and the line to change from a call path.

The harness is pytest, its plugins and this package. Under tox or nox, the project under test is
installed like any other package; the line to change may still be in it.
"""

from __future__ import annotations

import ast
import gc
import linecache
import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from itertools import islice, pairwise, takewhile
from pathlib import Path, PurePath
from types import CodeType, CoroutineType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from pytest_leakcheck.model.culprit import (
    PACKAGE_FOLDERS,
    CreationPath,
    Site,
    TestPhase,
    digest_of,
    is_installed,
)

# pytest functions that start a test phase (_pytest/runner.py), and those that run a fixture
# (_pytest/fixtures.py).
_PHASE_FUNCTIONS: Final[dict[str, TestPhase]] = {
    "pytest_runtest_setup": "setup",
    "pytest_runtest_call": "call",
    "pytest_runtest_teardown": "teardown",
}
_FIXTURE_FUNCTIONS: Final = frozenset({"call_fixture_func", "_teardown_yield_fixture"})
_STDLIB_PREFIXES: Final = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")}
)
# Ends with a separator, so that a folder whose name only begins like this one does not match.
PACKAGE_FOLDER: Final = f"{Path(__file__).parents[1]}{os.sep}"


def _package_folder(package: str) -> str:
    spec = find_spec(package)
    return str(Path(spec.origin).parent) + os.sep if spec is not None and spec.origin else "<none>"


# A script can measure without pytest, so `_package_folder` accepts a package that is not installed.
_HARNESS_PREFIXES: Final = (PACKAGE_FOLDER, *map(_package_folder, ("_pytest", "pluggy")))


def read_path(path: Sequence[Site]) -> CreationPath | None:
    """Return the part of a call path (outermost first) that follows the harness.

    None if only the standard library is left.
    """
    phase: TestPhase = ""
    fixture, begins = "", 0
    for at, site in enumerate(path):
        if not is_harness(site.file):
            continue
        begins = at + 1
        function = site.function.rpartition(".")[2]
        name = _file_name(site.file)
        if name == "runner.py" and function in _PHASE_FUNCTIONS:
            phase, fixture = _PHASE_FUNCTIONS[function], ""
        elif name == "fixtures.py" and function in _FIXTURE_FUNCTIONS and begins < len(path):
            fixture = path[begins].function.rpartition(".")[2]
    own = tuple(path[begins:])
    # If only standard library frames are left, either the harness called them, or their caller is
    # unknown.
    if all(is_standard(site.file) for site in own):
        return None
    candidates = [site for site in reversed(own) if not is_standard(site.file)]
    return CreationPath(
        own, next((site for site in candidates if is_own(site.file)), candidates[0]), phase, fixture
    )


def line_of(path: Sequence[Site]) -> tuple[str, int] | None:
    """Return the file and the line that the test's author can change; None as `read_path`."""
    where = read_path(path)
    return None if where is None else (where.site.file, where.site.line)


@cache
def is_harness(file: str) -> bool:
    """Return whether a file belongs to pytest (with pluggy), a pytest plugin or this package."""
    if file.startswith(_HARNESS_PREFIXES):
        return True
    parts = PurePath(file).parts
    in_plugin_package = (
        folder in PACKAGE_FOLDERS and name.startswith("pytest_") for folder, name in pairwise(parts)
    )
    return is_installed(file) and (file in plugin_files() or any(in_plugin_package))


@cache
def is_of_plugin(module: str) -> bool:
    """Return whether a module belongs to an installed pytest plugin.

    False for modules of this package and of the project.
    """
    file = getattr(sys.modules.get(module), "__file__", None)
    return (
        type(file) is str
        and not file.startswith(_HARNESS_PREFIXES)
        and is_harness(file)
        and not is_own(file)
    )


def _file_name(file: str) -> str:
    # `Path` would take seconds for all frames of thousands of call paths. Other functions here are
    # cached for that.
    return file.rpartition(os.sep)[2]


@cache
def plugin_files() -> frozenset[str]:
    """List the files of loaded pytest plugins: only the installed modules that define hooks."""
    modules = [
        dict(vars(module)) for module in list(sys.modules.values()) if type(module) is ModuleType
    ]
    files = (
        names.get("__file__")
        for names in modules
        if any(
            type(value) is FunctionType and name.startswith("pytest_")
            for name, value in names.items()
        )
    )
    return frozenset(file for file in files if file and is_installed(file))


@cache
def is_standard(file: str) -> bool:
    """Return whether a file belongs to the standard library."""
    return file.startswith("<frozen ") or (
        file.startswith(_STDLIB_PREFIXES) and not is_installed(file)
    )


@cache
def is_own(file: str) -> bool:
    """Return whether a file is part of the program under test.

    It is not installed, or it is installed with the program or its tests.
    """
    if file.startswith("<"):
        return False
    if not is_installed(file):
        return not file.startswith(_STDLIB_PREFIXES)
    return file in _Project.files or file.startswith(_Project.folders)


class _Project:
    files: frozenset[str] = frozenset()
    folders: tuple[str, ...] = ()


def set_project(root: Path, packages: Sequence[str]) -> None:
    """Set the project under test, for the whole process.

    It is the distribution of `root`, and the packages that the user has named.
    """
    # Its files are found here: during a search, the modules that this imports would look like a
    # leak of the test.
    _Project.files = _find_files(_read_name(root))
    _Project.folders = tuple(_find_folders(packages))


def add_tested(test_file: Path) -> None:
    """Count the package of an installed test file (``--pyargs``) as part of the project."""
    if is_installed(str(test_file)):
        above = takewhile(lambda folder: folder.name not in PACKAGE_FOLDERS, test_file.parents)
        # The outermost package: its folders of tests may be none, and a namespace around it is
        # shared with others.
        package = next(
            (one for one in reversed([*above]) if (one / "__init__.py").exists()), test_file.parent
        )
        _Project.folders = tuple({*_Project.folders, f"{package}{os.sep}"})


def _find_files(name: str) -> frozenset[str]:
    """List the Python files that a distribution has installed."""
    try:
        installed = distribution(name).files or ()
    except (PackageNotFoundError, ValueError, OSError):
        return frozenset()
    return frozenset(
        os.path.normpath(str(file.locate())) for file in installed if file.suffix == ".py"
    )


def _find_folders(packages: Sequence[str]) -> Iterator[str]:
    for package in packages:
        with suppress(ImportError, ValueError):
            spec = find_spec(package)
            folders = spec.submodule_search_locations if spec is not None else None
            yield from (f"{folder}{os.sep}" for folder in folders or ())


def _read_name(root: Path) -> str:
    """Return the name of the project's distribution; empty if it is not stated."""
    data: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        data = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    tool = data.get("tool", {}).get("poetry", {})
    name = data.get("project", {}).get("name") or tool.get("name")
    if isinstance(name, str) or not (root / "setup.cfg").exists():
        return name or ""
    # Imported only here: few projects have this file.
    import configparser

    setup = configparser.ConfigParser(interpolation=None)
    with suppress(configparser.Error, OSError, UnicodeDecodeError):
        setup.read(root / "setup.cfg", encoding="utf-8")
    return setup.get("metadata", "name", fallback="")


_DOTTED_NAME: Final = re.compile(r"[A-Za-z_][\w.]*$")


def path_to(frame: FrameType | None, call: str = "") -> tuple[Site, ...]:
    """Return the call path to a frame's current line, outermost first.

    `call` is what the frame calls, as ``name()``.
    """
    found: list[Site] = []
    while frame is not None:
        code = frame.f_code
        found.append(
            Site(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname, call)
        )
        call = f"{code.co_qualname}()"
        frame = frame.f_back
    return tuple(reversed(found))


def path_to_await(awaited: Any) -> tuple[Site, ...]:
    """Return where a coroutine, and each one that it waits for, is suspended, outermost first.

    Empty once the coroutine has ended.
    """
    path = []
    while (frame := getattr(awaited, "cr_frame", None)) is not None:
        code = frame.f_code
        path.append(Site(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname))
        awaited = awaited.cr_await
    return tuple(path)


def iter_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def innermost_suspended() -> Iterator[Site]:
    """Yield where each coroutine of the program waits, unless it waits for another one of these."""
    for coroutine in gc.get_objects():
        if (
            type(coroutine) is CoroutineType
            and coroutine.cr_suspended
            and is_own(coroutine.cr_code.co_filename)
        ):
            awaited = coroutine.cr_await
            while type(awaited) is CoroutineType and not is_own(awaited.cr_code.co_filename):
                awaited = awaited.cr_await
            if type(awaited) is not CoroutineType and coroutine.cr_frame is not None:
                yield path_to(coroutine.cr_frame)[-1]


def line_at(code: CodeType, lasti: int) -> int:
    """Return the line of the instruction at an offset, as ``frame.f_lasti``; 0 if it has none."""
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or 0
    return 0


def text_of(site: Site) -> str:
    """Return the text of the line without indentation; empty if there is no source."""
    return linecache.getline(site.file, site.line).strip()


def digest_of_file(site: Site) -> str:
    """Return the digest of the file of a line; empty if there is no source."""
    return digest_of(linecache.getlines(site.file))


def call_at(code: CodeType, lasti: int) -> str:
    """Return an instruction's call of a (dotted) name on one line, as ``av.open()``; else empty."""
    line, last_line, column, end = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    if line is None or line != last_line:
        return ""
    # Columns are byte offsets.
    text = linecache.getline(code.co_filename, line).encode()[column:end].decode(errors="replace")
    name, parenthesis, _arguments = text.partition("(")
    return f"{name}()" if parenthesis and _DOTTED_NAME.match(name) else ""


def with_functions(path: Sequence[Site]) -> tuple[Site, ...]:
    """Add missing function names, and calls, to a path's sites; the innermost keeps its `call`."""
    if not path:
        return ()
    named: list[Site] = []
    for site in path:
        function = site.function
        if not function and is_harness(site.file):
            # Elsewhere the function does not matter, and to parse a file of pytest would take 4 to
            # 16 ms.
            function = (
                _find_loaded_function(site)
                if _file_name(site.file) in ("runner.py", "fixtures.py")
                else "?"
            )
        named.append(replace(site, function=function or function_at(site.file, site.line)))
    called = [f"{below.function}()" for below in named[1:]]
    return tuple(
        replace(site, call=call)
        for site, call in zip(named, [*called, named[-1].call], strict=True)
    )


def _find_loaded_function(site: Site) -> str:
    """Return the name of the loaded module-level function around a site; ``?`` if there is none."""
    modules = [one for one in list(sys.modules.values()) if type(one) is ModuleType]
    members = (
        member
        for module in modules
        if vars(module).get("__file__") == site.file
        for member in vars(module).values()
    )
    for code in (one.__code__ for one in members if type(one) is FunctionType):
        if code.co_filename == site.file and site.line in {
            line for _start, _end, line in code.co_lines()
        }:
            return code.co_name
    return "?"


def function_at(file: str, line: int) -> str:
    """Return a line's function, qualified; ``<module>`` if there is no function or no source."""
    inside = [
        (first, last, name) for first, last, name in _list_functions(file) if first <= line <= last
    ]
    # The innermost function has the highest first line.
    return max(inside)[2] if inside else "<module>"


@lru_cache(maxsize=32)
def _list_functions(file: str) -> tuple[tuple[int, int, str], ...]:
    """List the first line, last line and qualified name of each function in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = prefix + child.name
                inner = f"{name}."
                if not isinstance(child, ast.ClassDef):
                    found.append((child.lineno, child.end_lineno or child.lineno, name))
                    inner = f"{name}.<locals>."
            walk(child, inner)

    walk(tree, "")
    return tuple(found)
