"""Describe the project's own cases as subjects, in JSON. The argument is the folder that contains the package `cases`.

Each arm of a case (its leaky, fixed or clean variant) becomes one subject. The cases can be described only after their
import, so this script runs under an interpreter that has the packages that they import.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from array import array
from collections.abc import Collection, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from subjects import Subject

# Kinds of resource that a machine cannot provide 20,000 times, so an arm that leaks one of them is called less often.
# An arm that leaks nothing is called as often as a checker wants, because with few calls its noise looks like a leak.
_HEAVY_KINDS: Final = {"process", "thread"}
# Kinds of resource that outlive the process, so no object of the process keeps them alive.
_UNOWNED_KINDS: Final = {"shm", "disk"}


def main() -> int:
    """Print the subjects."""
    (folder,) = sys.argv[1:]
    sys.path.insert(0, folder)
    catalog: Any = importlib.import_module("cases.catalog")
    print(json.dumps([asdict(_describe(name, case, folder)) for name, (case, _) in catalog.ARMS.items()]))
    return 0


def _describe(name: str, case: Any, folder: str) -> Subject:
    leaky = name.endswith("-leaky")
    module = _find_module(case)
    codes = list(_list_codes(case.leaky, module)) if leaky else []
    return Subject(
        name=name,
        leaky=leaky,
        resource=" ".join(case.kind),
        file=Path(module.__file__ or "").name,
        # The cases mark no leaking line, so every line of the arm counts as one.
        lines=tuple(sorted({line for code in codes for line in _line_numbers(code)})),
        path=(folder,),
        # Not the catalog, because it imports the modules of all cases, which would take most of the time of a run.
        module=module.__name__,
        arm=name,
        owner=""
        if _UNOWNED_KINDS.issuperset(case.kind)
        else _owner_pattern(codes, list(_list_codes(case.fixed, module)), module),
        heavy=leaky and not _HEAVY_KINDS.isdisjoint(case.kind),
    )


def _find_module(case: Any) -> ModuleType:
    """Return the module that lists a case."""
    families = (module for name, module in sys.modules.items() if name.startswith("cases."))
    return next(module for module in families if any(one is case for one in getattr(module, "CASES", ())))


def _list_codes(thing: Any, module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a callable, and of all functions and classes of its module that it refers to."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, CodeType):
            # Generated methods of a dataclass belong to no file.
            if one.co_filename == module.__file__:
                yield one
            waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
            waiting += [vars(module)[name] for name in one.co_names if _is_defined_in(vars(module).get(name), module)]
        elif isinstance(one, partial):
            waiting += [one.func, *one.args]
        elif isinstance(one, type):
            waiting += [value for value in vars(one).values() if _is_defined_in(value, module)]
        else:
            # Unwrap a method, a static method or a cached function to the plain function.
            inner = inspect.unwrap(one)
            waiting.append(getattr(getattr(inner, "__func__", inner), "__code__", None))


def _is_defined_in(thing: Any, module: ModuleType) -> bool:
    return callable(thing) and getattr(thing, "__module__", "") == module.__name__


def _line_numbers(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def _owner_pattern(leaky: list[CodeType], fixed: list[CodeType], module: ModuleType) -> str:
    """Return a pattern that matches the module's collections that the leaky arm uses; empty if it uses none.

    Collections that the fixed arm uses too count only if there are no others. Strings and tuples never count; nor do
    arrays of numbers, because they refer to no objects.
    """
    known = {
        name
        for name, value in vars(module).items()
        if isinstance(value, Collection) and not isinstance(value, (array, str, tuple)) and name != "CASES"
    }
    used, shared = ({name for code in codes for name in code.co_names} & known for codes in (leaky, fixed))
    names = used - shared or used
    return rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b" if names else ""


if __name__ == "__main__":
    sys.exit(main())
