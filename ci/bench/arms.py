"""The project's own cases as subjects. In: the folder that has the package `cases`. Out: JSON, a list of subjects.

The cases are values and have to be imported to be described, which is done in a process that has what they import.
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

# Of what such an arm keeps, a machine has no twenty thousand. An arm that keeps nothing can be called as often as a
# checker likes, and has to be: few calls let its noise look like a leak.
_HEAVY: Final = {"process", "thread"}
# What outlives the process, and is held by nobody in it.
_UNOWNED: Final = {"shm", "disk"}


def main() -> int:
    (folder,) = sys.argv[1:]
    sys.path.insert(0, folder)
    catalog: Any = importlib.import_module("cases.catalog")
    print(json.dumps([asdict(_subject(name, case, folder)) for name, (case, _) in catalog.ARMS.items()]))
    return 0


def _subject(name: str, case: Any, folder: str) -> Subject:
    leaky = name.endswith("-leaky")
    module = _module_of(case)
    codes = list(_codes(case.leaky, module)) if leaky else []
    return Subject(
        name=name,
        leaky=leaky,
        resource=" ".join(case.kind),
        file=Path(module.__file__ or "").name,
        # No line is marked, and whichever line of the arm is named leads there.
        lines=tuple(sorted({line for code in codes for line in _lines(code)})),
        path=(folder,),
        # And not the catalog, which imports whatever any case imports: that would be most of the time of a run.
        module=module.__name__,
        arm=name,
        owner="" if _UNOWNED.issuperset(case.kind) else _owner(codes, list(_codes(case.mended, module)), module),
        heavy=leaky and not _HEAVY.isdisjoint(case.kind),
    )


def _module_of(case: Any) -> ModuleType:
    """The family that a case is listed in."""
    families = (module for name, module in sys.modules.items() if name.startswith("cases."))
    return next(module for module in families if any(one is case for one in getattr(module, "CASES", ())))


def _codes(thing: Any, module: ModuleType) -> Iterator[CodeType]:
    """The code of a callable, and of whatever of its module it names."""
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, CodeType):
            # Methods that a dataclass has generated are of no file.
            if one.co_filename == module.__file__:
                yield one
            waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]
            waiting += [vars(module)[name] for name in one.co_names if _is_code_of(vars(module).get(name), module)]
        elif isinstance(one, partial):
            waiting += [one.func, *one.args]
        elif isinstance(one, type):
            waiting += [value for value in vars(one).values() if _is_code_of(value, module)]
        else:
            # A method has its function, and a cache or a static method what it wraps.
            inner = inspect.unwrap(one)
            waiting.append(getattr(getattr(inner, "__func__", inner), "__code__", None))


def _is_code_of(thing: Any, module: ModuleType) -> bool:
    return callable(thing) and getattr(thing, "__module__", "") == module.__name__


def _lines(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def _owner(leaky: list[CodeType], mended: list[CodeType], module: ModuleType) -> str:
    """The collections of the module that the leaky arm fills; empty where it fills none.

    Those that the mended arm uses as well count only where there are no others. An array of numbers holds nothing.
    """
    known = {
        name
        for name, value in vars(module).items()
        if isinstance(value, Collection) and not isinstance(value, (array, str, tuple)) and name != "CASES"
    }
    used, shared = ({name for code in codes for name in code.co_names} & known for codes in (leaky, mended))
    names = used - shared or used
    return rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b" if names else ""


if __name__ == "__main__":
    sys.exit(main())
