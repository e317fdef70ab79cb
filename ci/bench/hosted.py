"""The subject inside the process that a checker watches. In: BENCH_RUN, a JSON object. Out: its calls, at exit.

The forms of `checkers` import this and call `iterate`, `loop` and `warm`. It runs under the interpreter of every peer,
beside the peer's own packages, so it imports the standard library alone.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_RUN: Final[dict[str, Any]] = json.loads(os.environ["BENCH_RUN"])

# An expensive call (a process, a MiB) is made less often, by every checker whose test says how often.
HEAVY: Final[bool] = _RUN["heavy"]
LOOP: Final = 40 if HEAVY else 100
WARM: Final = 5 if HEAVY else 300

_PROCESS: Final = os.getpid()
_calls = 0


def iterate() -> None:
    """One unit of work of the subject, counted."""
    global _calls  # noqa: PLW0603 - an object that counts would be one more that lives while others are looked for
    _calls += 1
    _iterate()


def loop(times: int = LOOP) -> None:
    for _ in range(times):
        iterate()


def warm() -> None:
    """What is done before the best a checker can do: caches are full, and its test sees growth alone."""
    loop(WARM)
    gc.collect()


def _nothing() -> None:
    """A subject need not be set up."""


def _load() -> tuple[Callable[[], object], Callable[[], object], Callable[[], object], Callable[[int], object] | None]:
    """The subject's setup, iterate and teardown, and the same work at any size where it is about that."""
    found: Any = importlib.import_module(_RUN["module"])
    if _RUN["arm"]:
        case = next(one for one in found.CASES if _RUN["arm"] in one.arms)
        return case.setup, case.arms[_RUN["arm"]], case.teardown, None
    ends = getattr(found, "setup", _nothing), found.iterate, getattr(found, "teardown", _nothing)
    return *ends, getattr(found, "scaled", None)


def _finish() -> None:
    if os.getpid() == _PROCESS:  # and not a child that a checker or the subject has forked
        Path(_RUN["calls"]).write_text(str(_calls), encoding="ascii")
        _teardown()


_setup, _iterate, _teardown, scaled = _load()
_setup()
# atexit is too late: the interpreter joins threads before it, and a subject that leaks threads ends them in teardown.
threading._register_atexit(_finish)  # type: ignore[attr-defined]
