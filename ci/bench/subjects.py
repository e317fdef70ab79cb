"""Describe the subjects (pieces of work) on which the leak checkers are compared, without running them.

A folder given by ``--corpus`` contains a module per subject:

    LABEL      "leaky" or "clean"
    RESOURCE   what is leaked, or what causes the noise
    iterate()  one unit of work; the optional setup() and teardown() run before the first and after the last call
    scaled(n)  optional: the work as a function of a size; pytest-leakcheck runs it instead, except in mode "best"
    HEAVY      True if a call is expensive; a test that chooses the number of calls then makes fewer
    OBJECT     a regular expression that matches a report which names the leaked object
    OWNER      the name of the object's owner, which keeps it alive

The line that leaks ends in the comment ``# LEAK``.

Without a folder, the subjects are the arms (leaky, fixed or clean variants) of the project's own cases in tests/cases.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_BENCH_FOLDER: Final = Path(__file__).resolve().parent
_CASES_FOLDER: Final = _BENCH_FOLDER.parents[1] / "tests"
_LEAK_MARK: Final = re.compile(r"#\s*LEAK\b")


@dataclass(frozen=True, slots=True)
class Subject:
    """Work that either leaks, or only looks as if it did.

    Attributes:
        name: Name in the table.
        leaky: Whether a report of a leak is correct.
        resource: What is leaked, or what causes the noise.
        file: Name of the file that contains the lines.
        lines: Numbers of the lines that leak.
        path: Folders that the module is imported from.
        module: The module to import.
        arm: Name of the case's arm in the module; empty if the module itself is the subject.
        thing: A regular expression that matches a report which names the leaked object; empty if it has no name.
        owner: A regular expression that matches a report which names the object's owner; empty if it has none.
        heavy: Whether a call is so expensive that fewer calls are made.
    """

    name: str
    leaky: bool
    resource: str
    file: str
    lines: tuple[int, ...]
    path: tuple[str, ...]
    module: str
    arm: str = ""
    thing: str = ""
    owner: str = ""
    heavy: bool = False


def read_corpus(folder: Path) -> list[Subject]:
    """Describe the modules of a folder, leaky ones first.

    Raises:
        ValueError: A module has no valid LABEL, or a leaky one has no line marked ``# LEAK``.
    """
    found = [_read_module(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]
    return sorted(found, key=lambda subject: not subject.leaky)


def read_cases(python: Path) -> list[Subject]:
    """Describe the arms of the project's own cases, leaky ones first.

    Args:
        python: An interpreter that can import the cases; a subprocess that runs it describes them.
    """
    command = [str(python), str(_BENCH_FOLDER / "arms.py"), str(_CASES_FOLDER)]
    described = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = [Subject(**{**one, "lines": tuple(one["lines"]), "path": tuple(one["path"])}) for one in described]
    return sorted(found, key=lambda subject: not subject.leaky)


def _read_module(path: Path) -> Subject:
    # The module is parsed, not imported, because the import of some modules already opens what they leak.
    text = path.read_text(encoding="utf-8")
    literals = constants(text)
    label = literals.get("LABEL")
    if label not in ("leaky", "clean"):
        raise ValueError(f"{path}: LABEL is {label!r}; it must be 'leaky' or 'clean'")
    owner = literals.get("OWNER")
    leaky = label == "leaky"
    lines = culprit_lines(text.splitlines())
    if leaky and not lines:
        raise ValueError(f"{path}: no line ends in '# LEAK'")
    return Subject(
        name=path.stem,
        leaky=leaky,
        resource=literals.get("RESOURCE", ""),
        file=path.name,
        lines=lines,
        path=(str(path.parent.resolve()),),
        module=path.stem,
        thing=literals.get("OBJECT") or "",
        owner=rf"\b{re.escape(owner)}\b" if owner else "",
        heavy=literals.get("HEAVY", False),
    )


def culprit_lines(lines: Sequence[str], first: int = 1) -> tuple[int, ...]:
    """Return the numbers of the lines marked ``# LEAK``; the first line has the number `first`."""
    return tuple(number for number, line in enumerate(lines, first) if _LEAK_MARK.search(line))


def constants(text: str) -> dict[str, Any]:
    """Return the top-level names that a module assigns a literal to, with their values."""
    found: dict[str, Any] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return found
