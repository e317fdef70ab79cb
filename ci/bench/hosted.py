"""Run the subject (a piece of work that leaks or not) inside the process that a leak checker watches.

The environment variable BENCH_RUN describes the subject in JSON. At exit, this module writes the number of calls to a
file. The test modules of `checkers` import this module, and call `iterate` or `scaled`. It runs under
the interpreter of every checker, next to the checker's own packages, so it imports only the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_RUN: Final[dict[str, Any]] = json.loads(os.environ["BENCH_RUN"])

# Whether a call is expensive (takes a process or a MiB, say). Every checker whose test sets the number of calls then
# makes fewer.
HEAVY: Final[bool] = _RUN["heavy"]

_PROCESS: Final = os.getpid()
_calls = 0


def iterate() -> None:
    """Do one unit of work of the subject, and count it."""
    global _calls  # noqa: PLW0603 - a counter object would be one more live object while leaks are searched for
    _calls += 1
    _iterate()


def _load_subject() -> tuple[Callable[[], object], Callable[[], object], Callable[[], object], Any]:
    """Return the subject's setup, iterate and teardown, and its work as a function of a size, or None."""
    found: Any = importlib.import_module(_RUN["module"])
    if _RUN["arm"]:
        case = next(one for one in found.CASES if _RUN["arm"] in one.arms)
        return case.setup, case.arms[_RUN["arm"]], case.teardown, None
    ends = getattr(found, "setup", lambda: None), found.iterate, getattr(found, "teardown", lambda: None)
    return *ends, getattr(found, "scaled", None)


def _write_calls() -> None:
    if os.getpid() == _PROCESS:  # not in a process that the checker or the subject has forked
        Path(_RUN["calls"]).write_text(str(_calls), encoding="ascii")
        _teardown()


_setup, _iterate, _teardown, scaled = _load_subject()
_setup()
# atexit is too late, because the interpreter joins threads first, and a subject that leaks threads ends them in
# teardown.
threading._register_atexit(_write_calls)  # type: ignore[attr-defined]
