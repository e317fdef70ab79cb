"""The source behind a site: the text of its line, and the function that a line is in, where only the line is known."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Final

from pytest_leakcheck.attribution.call_paths import is_harness, tells_phase
from pytest_leakcheck.model.culprit import Site

_DOTTED: Final = re.compile(r"[A-Za-z_][\w.]*$")


def text_of(site: Site) -> str:
    """The line, without its indent; empty where there is no source."""
    return linecache.getline(site.file, site.line).strip()


def call_at(code: CodeType, lasti: int) -> str:
    """The call that an instruction makes, as it is written: ``av.open()``; empty where it is none, or before Python 3.11.

    Args:
        code: The function.
        lasti: The instruction, as ``frame.f_lasti`` has it.
    """
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return ""
    line, last_line, column, end = next(islice(positions(), lasti // 2, None), (None,) * 4)
    if line is None or line != last_line:
        return ""
    # Columns are counted in bytes.
    text = linecache.getline(code.co_filename, line).encode()[column:end].decode(errors="replace")
    name, parenthesis, _arguments = text.partition("(")
    return f"{name}()" if parenthesis and _DOTTED.match(name) else ""


def with_functions(path: Sequence[Site]) -> tuple[Site, ...]:
    """The path with the functions that its lines are in, for a path of lines alone, and what each calls.

    A frame calls the function of the one below it; what the innermost calls is not known.
    """
    if not path:
        return ()
    named = [site if site.function else replace(site, function=_function_of(site)) for site in path]
    called = [f"{below.function}()" for below in named[1:]]
    return tuple(replace(site, call=call) for site, call in zip(named, [*called, named[-1].call], strict=True))


def _function_of(site: Site) -> str:
    if not is_harness(site.file):
        return function_at(site.file, site.line)
    return _loaded_function(site) if tells_phase(site.file) else "?"


def _loaded_function(site: Site) -> str:
    """Of the harness, asked of the module itself: to parse pytest's takes 4 to 16 ms, and only its functions matter."""
    modules = [one for one in list(sys.modules.values()) if type(one) is ModuleType]
    things = (one for module in modules if vars(module).get("__file__") == site.file for one in vars(module).values())
    for code in (one.__code__ for one in things if type(one) is FunctionType):
        if code.co_filename == site.file and site.line in {line for _start, _end, line in code.co_lines()}:
            return code.co_name
    return "?"


def function_at(file: str, line: int) -> str:
    """The qualified name of the function around a line; ``<module>`` outside of all, or where there is no source."""
    inside = [(first, last, name) for first, last, name in _functions(file) if first <= line <= last]
    # The innermost begins last.
    return max(inside)[2] if inside else "<module>"


@lru_cache(maxsize=32)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and qualified name of each function of a file."""
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
