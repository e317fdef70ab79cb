"""Keep tests from disturbing the session: conclude, send and write findings whatever they do.

They may have replaced, removed or limited what that takes, filled the disk, closed descriptors or
removed the file. Measuring itself is not protected: a test that replaces what a counter reads with
gets an inconclusive verdict. An error of the measurement costs no more than the verdict on one
test.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import os.path
import sys
import traceback
from collections.abc import Iterator
from inspect import CO_GENERATOR
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

import _pytest
import pluggy
import pytest

from pytest_leakcheck.attribution.call_paths import PACKAGE_FOLDER, is_standard
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import Result, measurement_failed, unavailable
from pytest_leakcheck.model import LeakcheckError, describe_error
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.regular_file import NEW, Ours, append, replace_file
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.probes.resource_limits import room_for_files

_PYTEST: Final = tuple(
    str(Path(module.__file__).parent) for module in (_pytest, pluggy, pytest) if module.__file__
)
# What concluding, encoding and writing call, directly or through the standard library.
_OWNERS: Final[tuple[ModuleType | type, ...]] = (
    builtins,
    os,
    os.path,
    io,
    json,
    dataclasses,
    Path,
    # Windows has no such module.
    *([importlib.import_module("resource")] if importlib.util.find_spec("resource") else []),
)
_MISSING: Final = object()
# The functions themselves: a test may replace these too.
_setattr, _delattr = setattr, delattr
# By owner, its functions and classes as they are when the plugin is registered. Data is the
# program's.
_KEPT: Final = tuple(
    (
        owner,
        {
            name: value
            for name, value in vars(owner).items()
            if callable(value) or isinstance(value, classmethod)
        },
    )
    for owner in _OWNERS
)
# The modules of this package that have been imported, by name.
_own_modules: dict[str, ModuleType] = {}


class OriginalFunctions:
    """A context with the functions that were there when the plugin was registered. Cost: 60 us.

    Modules of this package that a test has removed from `sys.modules` are put back, for good.
    """

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        keep_modules()
        for owner, kept in _KEPT:
            now = owner.__dict__
            for name, original in kept.items():
                # By identity: a replacement may have any `__eq__`.
                if (current := now.get(name, _MISSING)) is not original:
                    self._replaced.append((owner, name, current))
                    _setattr(owner, name, original)

    def __exit__(self, *_: object) -> None:
        while self._replaced:
            owner, name, theirs = self._replaced.pop()
            if theirs is _MISSING:
                _delattr(owner, name)
            else:
                _setattr(owner, name, theirs)


@contextlib.contextmanager
def undisturbed_writing() -> Iterator[None]:
    """Write with the original functions, spare descriptors and, if possible, no limit on files."""
    with OriginalFunctions(), room_for_descriptors(), room_for_files():
        yield


def keep_modules() -> None:
    """Put modules of this package back, and note those that were imported since."""
    sys.modules.update(_own_modules)
    for name, module in sys.modules.copy().items():
        if name.startswith("pytest_leakcheck") and name not in _own_modules:
            _own_modules[name] = module


keep_modules()


def hide_own_frames(error: BaseException) -> None:
    """Remove frames of this package from a test's traceback: a plain session does not show them.

    They are those of hook wrappers that the error has passed, and the one in which the garbage
    collector happened to run.
    """
    waiting: list[BaseException | None] = [error]
    # By identity: an exception may have any `__hash__`.
    seen: set[int] = set()
    while waiting:
        exception = waiting.pop()
        if exception is None or id(exception) in seen:
            continue
        seen.add(id(exception))
        at = exception.__traceback__
        while at is not None and (passed := at.tb_next) is not None:
            if (
                passed.tb_next is not None
                and _is_own(passed)
                and passed.tb_frame.f_code.co_flags & CO_GENERATOR
            ):
                at.tb_next = passed.tb_next
            else:
                at = passed
        cause = exception.__cause__
        if isinstance(exception, pytest.PytestUnraisableExceptionWarning) and cause is not None:
            while cause.__traceback__ is not None and _is_own(cause.__traceback__):
                cause.__traceback__ = cause.__traceback__.tb_next
        waiting += [
            cause,
            exception.__context__,
            *(exception.exceptions if isinstance(exception, BaseExceptionGroup) else ()),
        ]


def _is_own(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER)


def why_failed(error: Exception) -> str:
    """Describe a measurement error, with its innermost line in this package; raise others again.

    Code of this package raised it, or called what did, and not by way of pytest. The cause may lie
    in the test, which may have closed our descriptors. Wrong use (`LeakcheckError`) does not count.
    """
    if isinstance(error, Unavailable):
        return str(error)
    file, line = next(
        (
            place
            for place in reversed(_places_of(error))
            if place[0].startswith((PACKAGE_FOLDER, *_PYTEST))
        ),
        ("", 0),
    )
    if isinstance(error, LeakcheckError) or not file.startswith(PACKAGE_FOLDER):
        raise error
    return f"the measurement failed: {describe_error(error)} ({Path(file).relative_to(PACKAGE_FOLDER)}:{line})"


def unmeasured(plan: Plan, error: Exception, *, of_test: bool = True) -> Result:
    """Return the result for a test whose measurement failed with this error; raise others again.

    With `of_test`, an error that a function of the project raised counts as well, for example a
    gauge.
    """
    innermost, _line = _places_of(error)[-1]
    if not (of_test or innermost.startswith(PACKAGE_FOLDER) or is_standard(innermost)):
        raise error
    budget = next((one for one in plan.budgets if one.explicit), plan.budgets[0])
    is_unavailable, why = isinstance(error, Unavailable), why_failed(error)
    verdict = (
        unavailable(budget.resource, why) if is_unavailable else measurement_failed(budget, why)
    )
    return Result(plan, Recording(plan.test, (), stopped="failed"), (verdict,), {})


def _places_of(error: Exception) -> list[tuple[str, int]]:
    """List the files and lines that an error passed through, the innermost last."""
    return [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]


class AppendedFile:
    """A file opened for each text, so that no test can close or take over its descriptor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._same: tuple[int, int] | None = None
        self._unwritten = b""

    def begin(self, text: str = "", ours: Ours = NEW) -> None:
        """Replace the file by one with this text, or raise `FileError`; see `replace_file`."""
        status = replace_file(self.path, text.encode(errors="backslashreplace"), ours)
        self._same = status.st_dev, status.st_ino

    def write(self, text: str) -> None:
        """Append a text. If that raises `OSError`, the next call begins with what is left."""
        self._unwritten += text.encode(errors="backslashreplace")
        while self._unwritten:
            # A full disk may take a part: only what it has taken is removed.
            self._unwritten = self._unwritten[
                append(self.path, self._unwritten, same_as=self._same) :
            ]
