"""Run this package's programs at the start of `multiprocessing` children that are not forked."""

from __future__ import annotations

from multiprocessing.process import current_process
from typing import Any, Final

# `multiprocessing` pickles these, as it does all that it sends to a child; an error must not reach
# the child.
_RUN: Final = """
for program, values in programs:
    try:
        exec(program, values)
    except Exception:
        pass
"""
_NAME: Final = "pytest_leakcheck"
_PROGRAMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {}


class _Start:
    """Unpickled in a child, it runs the programs there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (_RUN, {"programs": list(_PROGRAMS.values())})


def run_in_children(name: str, program: str, **values: Any) -> None:
    """Run a program, with these values as its globals, in each child started from now on."""
    _PROGRAMS[name] = program, values
    # Each process of `multiprocessing` begins with a copy of its parent's configuration.
    vars(current_process())["_config"][_NAME] = _Start()


def stop_in_children(name: str) -> None:
    """Undo `run_in_children`."""
    if _PROGRAMS.pop(name, None) is not None and not _PROGRAMS:
        vars(current_process())["_config"].pop(_NAME, None)
