"""Describe the subjects (pieces of work) on which the leak checkers are compared, without running them.

A folder given by ``--corpus`` contains a module per subject:

    LABEL      "leaky" or "clean"
    iterate()  one unit of work; the optional setup() and teardown() run before the first and after the last call
    scaled(n)  optional: the work as a function of a size; pytest-leakcheck runs it instead
    HEAVY      True if a call is expensive; a test that chooses the number of calls then makes fewer
    OBJECT     a regular expression that matches a report which names the leaked object
    OWNER      the name of the object's owner, which keeps it alive

The line that leaks ends in the comment ``# LEAK``.

Without a folder, the subjects are the arms of the project's own cases in tests/cases, which state their lines and owners.
Run as a script, this prints them as JSON: the interpreter must have what the cases import.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_CASES_FOLDER: Final = Path(__file__).resolve().parents[2] / "tests"
# Kinds of resource that a machine cannot provide 20,000 times, so an arm that leaks one of them is called less often.
_HEAVY_KINDS: Final = {"process", "thread"}


@dataclass(frozen=True, slots=True)
class Subject:
    """Work that either leaks, or only looks as if it did.

    Attributes:
        lines: Numbers of the lines that leak, in `file`.
        path: Folders that the module is imported from.
        arm: Name of the case's arm in the module; empty if the module itself is the subject.
        thing: A regular expression that matches a report which names the leaked object; empty if it has no name.
        owner: A regular expression that matches a report which names the object's owner; empty if it has none.
        heavy: Whether a call is so expensive that fewer calls are made.
    """

    name: str
    leaky: bool
    file: str
    lines: tuple[int, ...]
    path: tuple[str, ...]
    module: str
    arm: str = ""
    thing: str = ""
    owner: str = ""
    heavy: bool = False


def read_corpus(folder: Path) -> list[Subject]:
    """Describe the modules of a folder, leaky ones first; raise `ValueError` if one has no LABEL or leaking line."""
    found = [_read_module(path) for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]
    return sorted(found, key=lambda subject: not subject.leaky)


def read_cases(python: Path) -> list[Subject]:
    """Describe the arms of the project's own cases, leaky ones first, with an interpreter that can import them."""
    described = json.loads(subprocess.run([str(python), __file__], check=True, stdout=subprocess.PIPE).stdout)
    found = [Subject(**{**one, "lines": tuple(one["lines"]), "path": tuple(one["path"])}) for one in described]
    return sorted(found, key=lambda subject: not subject.leaky)


def _read_module(path: Path) -> Subject:
    # The module is parsed, not imported, because the import of some modules already opens what they leak.
    text = path.read_text(encoding="utf-8")
    literals = constants(text)
    label = literals.get("LABEL")
    if label not in ("leaky", "clean"):
        raise ValueError(f"{path}: LABEL is {label!r}; it must be 'leaky' or 'clean'")
    lines = tuple(n for n, line in enumerate(text.splitlines(), 1) if re.search(r"#\s*LEAK\b", line))
    if label == "leaky" and not lines:
        raise ValueError(f"{path}: no line ends in '# LEAK'")
    return Subject(
        name=path.stem,
        leaky=label == "leaky",
        file=path.name,
        lines=lines,
        path=(str(path.parent.resolve()),),
        module=path.stem,
        thing=literals.get("OBJECT") or "",
        owner=_any_of([literals["OWNER"]] if literals.get("OWNER") else []),
        heavy=literals.get("HEAVY", False),
    )


def _describe_cases() -> list[Subject]:
    sys.path.insert(0, str(_CASES_FOLDER))
    catalog: Any = import_module("cases.catalog")
    families = [one for name, one in sys.modules.items() if name.startswith("cases.") and hasattr(one, "CASES")]
    # Not from the catalog, whose import would take most of the time of a run.
    modules = {case.name: family for family in families for case in family.CASES}
    return [_describe(name, case, modules[case.name]) for name, (case, _call) in catalog.ARMS.items()]


def _describe(name: str, case: Any, module: Any) -> Subject:
    leaky = name.endswith("-leaky")
    # Without the list of cases, which repeats the text of the lines.
    text = Path(module.__file__).read_text(encoding="utf-8").partition("\nCASES")[0].splitlines()
    lines = [number for number, line in enumerate(text, 1) if any(part in line for part in case.line)]
    # The last word of a name such as `cases.caches.PAGES`. Other checkers name no cycle.
    owners = [re.findall(r"\w+", one)[-1] for one in case.owner if not one.startswith("cycle")]
    return Subject(
        name=name,
        leaky=leaky,
        file=Path(module.__file__).name,
        lines=tuple(lines if leaky else ()),
        path=(str(_CASES_FOLDER),),
        module=module.__name__,
        arm=name,
        owner=_any_of(owners if leaky else []),
        heavy=leaky and not _HEAVY_KINDS.isdisjoint(case.kind),
    )


def _any_of(names: Sequence[str]) -> str:
    return rf"\b(?:{'|'.join(map(re.escape, names))})\b" if names else ""


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


if __name__ == "__main__":
    print(json.dumps([asdict(subject) for subject in _describe_cases()]))
