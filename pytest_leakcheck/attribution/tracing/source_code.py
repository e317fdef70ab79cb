"""Make the sites of a call path (a line each) from frames, and read their source: the line and the function around."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Final

from pytest_leakcheck.attribution.call_paths import is_harness, tells_phase
from pytest_leakcheck.model.culprit import Site

_DOTTED_NAME: Final = re.compile(r"[A-Za-z_][\w.]*$")


def path_to(frame: FrameType | None, call: str = "") -> tuple[Site, ...]:
    """Return the call path to a frame's current line, outermost first; `call` is what it calls, as ``name()``."""
    found: list[Site] = []
    while frame is not None:
        code = frame.f_code
        found.append(Site(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_qualname, call))
        call = f"{code.co_qualname}()"
        frame = frame.f_back
    return tuple(reversed(found))


def line_at(code: CodeType, lasti: int) -> int:
    """Return the line of the instruction at an offset, as in ``frame.f_lasti``; 0 if it has none."""
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or 0
    return 0


def text_of(site: Site) -> str:
    """Return the text of the line without indentation; empty if there is no source."""
    return linecache.getline(site.file, site.line).strip()


def call_at(code: CodeType, lasti: int) -> str:
    """Return an instruction's call of a plain or dotted name on one line, such as ``av.open()``; otherwise empty."""
    line, last_line, column, end = next(islice(code.co_positions(), lasti // 2, None), (None,) * 4)
    if line is None or line != last_line:
        return ""
    # Columns are byte offsets.
    text = linecache.getline(code.co_filename, line).encode()[column:end].decode(errors="replace")
    name, parenthesis, _arguments = text.partition("(")
    return f"{name}()" if parenthesis and _DOTTED_NAME.match(name) else ""


def with_functions(path: Sequence[Site]) -> tuple[Site, ...]:
    """Add missing function names and the calls to the sites of a path; the innermost site keeps its `call`."""
    if not path:
        return ()
    named: list[Site] = []
    for site in path:
        function = site.function
        if not function and is_harness(site.file):
            # Where it does not matter, it is left open: to parse a file of pytest would take 4 to 16 ms.
            function = _find_loaded_function(site) if tells_phase(site.file) else "?"
        named.append(replace(site, function=function or function_at(site.file, site.line)))
    called = [f"{below.function}()" for below in named[1:]]
    return tuple(replace(site, call=call) for site, call in zip(named, [*called, named[-1].call], strict=True))


def _find_loaded_function(site: Site) -> str:
    """Return the name of the loaded module-level function around a site; ``?`` if there is none."""
    modules = [one for one in list(sys.modules.values()) if type(one) is ModuleType]
    members = (one for module in modules if vars(module).get("__file__") == site.file for one in vars(module).values())
    for code in (one.__code__ for one in members if type(one) is FunctionType):
        if code.co_filename == site.file and site.line in {line for _start, _end, line in code.co_lines()}:
            return code.co_name
    return "?"


def function_at(file: str, line: int) -> str:
    """Return the qualified name of the function that contains a line; ``<module>`` if there is none, or no source."""
    inside = [(first, last, name) for first, last, name in _list_functions(file) if first <= line <= last]
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
