"""Replace each sentence in the source of this package by its hash, in each Python that imports this as it starts.

Two words in a row make a sentence, except in docstrings, patterns and programs, which are no text for people.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Final

_PACKAGE: Final = "pytest_leakcheck"
# Two words that are names, in one text that is split elsewhere.
_NAMES: Final = re.compile(r"arena .*|(?:(?:children|fds|threads|segments) ?)+")
_WORDS: Final = re.compile(r"\b[A-Za-z]+(?: [a-z]+)+\b")


def hashed(text: str) -> str:
    return _WORDS.sub(lambda found: "s" + hashlib.sha256(found[0].encode()).hexdigest()[:12], text)


class _Sentences(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        # A docstring.
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # A pattern, or names in one text.
        called = ast.unparse(node.func)
        return node if called.startswith("re.") or called.endswith(".split") else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        # A program has more than one line.
        if isinstance(node.value, str) and "\n" not in node.value.strip() and not _NAMES.fullmatch(node.value):
            return ast.copy_location(ast.Constant(hashed(node.value)), node)
        return node


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Sentences().visit(ast.parse(self.get_data(path), path))
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != _PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if spec is not None and isinstance(loader, SourceFileLoader):
            spec.loader = _Loader(name, loader.path)
        return spec


sys.meta_path.insert(0, _Finder)
