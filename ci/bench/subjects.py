"""What the checkers are run over. In: a folder of modules, or none. Out: subjects, described without running them.

A folder given by ``--corpus`` has a module per subject:

    LABEL      "leaky" or "clean"
    RESOURCE   what is leaked, or what makes the noise
    iterate()  one unit of work; setup() and teardown() come before the first and after the last, and are optional
    HEAVY      True where a call is expensive: forms that say how often it is called do so less often
    OBJECT     a regular expression that a report matches when it names what is leaked
    OWNER      the name of what holds it

The line that leaks ends in the comment ``# LEAK``.

Without it, the subjects are the arms of the project's own cases, in tests/cases.
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

_HERE: Final = Path(__file__).resolve().parent
_CASES: Final = _HERE.parents[1] / "tests"
_CULPRIT: Final = re.compile(r"#\s*LEAK\b")


@dataclass(frozen=True, slots=True)
class Subject:
    """One piece of work that either keeps what it uses, or only looks as if it did.

    Attributes:
        name: What the table calls it.
        leaky: Whether a checker is right to report it.
        resource: What is leaked, or what makes the noise.
        file: The file that holds the lines.
        lines: The lines that leak.
        path: Where it is imported from.
        module: What is imported.
        arm: Which of the cases in the module; empty where the module is the subject.
        thing: A regular expression that a report matches when it names what is leaked; empty where nothing has a name.
        owner: A regular expression likewise, of what holds it.
        heavy: A call costs so much that fewer are made.
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
    """A folder of modules, leaky ones first.

    Raises:
        ValueError: A module has no LABEL, or a leaky one no culprit line.
    """
    found = [_read_module(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]
    return sorted(found, key=lambda subject: not subject.leaky)


def read_cases(python: Path) -> list[Subject]:
    """The arms of the project's own cases, leaky ones first, as an interpreter that can import them describes them."""
    command = [str(python), str(_HERE / "arms.py"), str(_CASES)]
    described = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = [Subject(**{**one, "lines": tuple(one["lines"]), "path": tuple(one["path"])}) for one in described]
    return sorted(found, key=lambda subject: not subject.leaky)


def _read_module(path: Path) -> Subject:
    # Read and not imported: importing some of them opens what they leak.
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
    """The numbers of the lines that are marked, where the first has the number `first`."""
    return tuple(number for number, line in enumerate(lines, first) if _CULPRIT.search(line))


def constants(text: str) -> dict[str, Any]:
    """The literals that a module gives to names at its top level."""
    found: dict[str, Any] = {}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                found[statement.targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                continue
    return found
