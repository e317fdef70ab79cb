"""Write a fault between tests whose verdicts are known, and judge what a run of them came to."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sandbox import Ran

# The kinds of outcome, the good ones first.
SURVIVED, AS_PLAIN = "survived", "as plain pytest"
HANG = "hang"
SILENT_PASS = "silent pass"  # noqa: S105 - no password
SESSION_ENDED = "session ended"
LOST_FINDING = "lost finding"
FALSE_ALARM = "false alarm"
NOT_JUDGED = "not judged"
LEFTOVERS = "leftovers"
RAW_TEXT = "raw control characters"
GOOD: Final = (SURVIVED, AS_PLAIN)

# What is expected of the test with the fault.
LEAKS, CLEAN, ANY = "not ok", "not red", "any"
RED: Final = ("leak", "over_budget", "unclosed")

_HEADER: Final = """\
import array, asyncio, atexit, builtins, contextlib, ctypes, decimal, errno, faulthandler, fcntl, gc, importlib, io
import itertools, json, linecache, locale, logging, mmap, multiprocessing, os, pathlib, pickle, queue, random, resource
import select, shutil, signal, socket, subprocess, sys, tempfile, threading, time, tracemalloc, types, warnings, weakref
import concurrent.futures

import psutil
import pytest

OPEN, CLOSE, PATH, RDONLY = os.open, os.close, os.path.abspath(__file__), os.O_RDONLY
AT = int(os.environ.get("FAULT_AT", "5"))
KEPT, OPENED, DONE = [], [], []

def leak():
    KEPT.append(OPEN(PATH, RDONLY))

def clean():
    CLOSE(OPEN(PATH, RDONLY))

def now():
    DONE.append(1)
    return len(DONE) == AT

def refuse(*_, **__):
    raise RuntimeError("refused")

def nothing(*_, **__):
    return None

@pytest.mark.fd_budget(0)
def test_leaky_before():
    leak()

@pytest.mark.fd_budget(0)
def test_clean_before():
    clean()

"""
_FOOTER: Final = """
@pytest.mark.fd_budget(0)
def test_leaky_after():
    leak()

@pytest.mark.fd_budget(0)
def test_clean_after():
    clean()
"""
BEFORE: Final = {"test_leaky_before": "leak", "test_clean_before": "ok"}
AFTER: Final = {"test_leaky_after": "leak", "test_clean_after": "ok"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault within a test.

    Attributes:
        body: The body of the test. ``if now():`` restricts a line to the fifth iteration, `leak()` keeps a descriptor.
        expected: `LEAKS` (no verdict may be `ok` alone), `CLEAN` (no verdict may be red) or `ANY`.
        module: Lines of the module before the test, such as fixtures.
        arguments: The fixtures that the test asks for.
        undo: Body of an unmarked test that puts things back after the fault; empty: the fault stays.
        lasting: The fault stays and disturbs measuring itself: the tests after it may also be inconclusive.
        never_ok: Resources that must not have the verdict `ok`.
        plugins: Third-party plugins that are loaded.
        leaves: It leaves temporary files or processes behind itself; they are no fault of the plugin's.
        small_tmp: TMPDIR is a file system of 256 KiB.
    """

    name: str
    category: str
    body: str
    expected: str = ANY
    module: str = ""
    arguments: str = ""
    marks: str = "@pytest.mark.fd_budget(0)"
    undo: str = ""
    lasting: bool = False
    never_ok: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    leaves: bool = False
    file: str = "test_it.py"
    small_tmp: bool = False
    seconds: float = 60
    modes: tuple[str, ...] = ("in place", "isolated")

    def source(self, *, isolated: bool) -> str:
        """Return the test module."""
        lines = [_HEADER, textwrap.dedent(self.module), self.marks]
        if isolated:
            lines.append("@pytest.mark.leakcheck(isolate=True)")
        lines += [f"def test_fault({self.arguments}):", textwrap.indent(textwrap.dedent(self.body).strip(), "    ")]
        if self.undo:
            lines += ["def test_put_back():", textwrap.indent(textwrap.dedent(self.undo).strip(), "    ")]
        return "\n".join((*lines, _FOOTER))


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one fault in a mode: "in place", "isolated" or "outside"; `result` is of `GOOD` or a defect."""

    name: str
    category: str
    mode: str
    expected: str
    seen: str
    result: str
    detail: str


def judge(fault: Fault, ran: Ran, run_plain: Callable[[], Ran]) -> tuple[str, str]:
    """Return the result of a run, and what went wrong.

    Where it differs from what is expected, it is compared with plain pytest: `run_plain` runs the same project without
    ``--leakcheck``, with the fault in the only iteration.
    """
    if ran.status is None:
        return (AS_PLAIN, "") if run_plain().status is None else (HANG, ran.last_words)
    found = _find_wrong(BEFORE, ran, lasting=False) or _find_end(ran, run_plain)
    found = found or _find_wrong(AFTER, ran, lasting=fault.lasting) or _find_own(fault, ran, run_plain)
    return found or _find_left(fault, ran, run_plain) or (SURVIVED, "")


def describe(ran: Ran) -> str:
    """Return the verdicts of a run in the order of its tests, those of the fault itself in brackets."""

    def one(name: str) -> str:
        return ran.verdicts.get(name, {}).get("fd", "-")

    own = [f"{name} {verdict}" for verdicts in own_verdicts(ran).values() for name, verdict in verdicts.items()]
    return " ".join((*map(one, BEFORE), f"[{', '.join(own) or '-'}]", *map(one, AFTER)))


def own_verdicts(ran: Ran) -> dict[str, dict[str, str]]:
    """Return the verdicts on the tests with the fault."""
    return {name: verdicts for name, verdicts in ran.verdicts.items() if name.startswith("test_fault")}


def _find_wrong(tests: Mapping[str, str], ran: Ran, *, lasting: bool) -> tuple[str, str] | None:
    """Return the first of the tests around that is not judged as it should be."""
    for name, right in tests.items():
        seen = ran.verdicts.get(name, {}).get("fd")
        if seen is None:
            if ran.status is not None and ran.outcomes.get(name) == "failed" and lasting:
                continue
            if name in BEFORE:
                return LOST_FINDING, name
            continue
        if seen == right or (seen in RED and right in RED):
            continue
        if seen == "ok":
            return SILENT_PASS, name
        if seen in RED:
            return FALSE_ALARM, f"{name}: {seen}"
        if not lasting:
            return NOT_JUDGED, f"{name}: {seen}"
    return None


def _find_end(ran: Ran, run_plain: Callable[[], Ran]) -> tuple[str, str] | None:
    """Return a result if the session ended early, or without a report."""
    if ran.status not in (0, 1) or any(name not in ran.verdicts for name in AFTER) or "INTERNALERROR" in ran.text:
        plain = run_plain()
        if plain.status not in (0, 1) or any(plain.outcomes.get(name) != "passed" for name in AFTER):
            return AS_PLAIN, ""
        return SESSION_ENDED, f"status {ran.status}: {ran.last_words}"
    return None if ran.whole else (LOST_FINDING, "no report at the end")


def _find_left(fault: Fault, ran: Ran, run_plain: Callable[[], Ran]) -> tuple[str, str] | None:
    """Return what the run has left, or has printed as it stands."""
    if not fault.leaves and (left := [*ran.files, *ran.processes]):
        return LEFTOVERS, ", ".join(left)
    if "\x1b" in ran.text and "\x1b" not in run_plain().text:
        return RAW_TEXT, next(ascii(line) for line in ran.text.splitlines() if "\x1b" in line)
    return None


def _find_own(fault: Fault, ran: Ran, run_plain: Callable[[], Ran]) -> tuple[str, str] | None:
    """Return what is wrong with the verdicts on the fault itself."""
    own = own_verdicts(ran)
    passed = [one for name, one in ran.outcomes.items() if name.startswith("test_fault")]
    verdicts = [verdict for one in own.values() for verdict in one.values()]
    for one in own.values():
        for resource in fault.never_ok:
            if one.get(resource) == "ok":
                return SILENT_PASS, f"{resource} of the fault is ok"
    if fault.expected == LEAKS and all(one == "passed" for one in passed):
        silent = [name for name, one in own.items() if all(verdict == "ok" for verdict in one.values())]
        if silent or not own:
            return SILENT_PASS, ", ".join(silent) or "no verdict on the fault"
    if fault.expected == CLEAN:
        if wrong := [verdict for verdict in verdicts if verdict in RED]:
            return FALSE_ALARM, f"the fault itself: {wrong[0]}"
        # A process that is disturbed for good may also fail at its end.
        if "failed" in passed and not fault.lasting and "failed" not in run_plain().outcomes.values():
            return FALSE_ALARM, f"the fault itself fails: {ran.last_words}"
    return None
