"""A file of known leaks that was written once hides no leak beside them, whichever part of the suite runs, in any order."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Final

import pytest

from projects import Project

pytestmark = pytest.mark.laboratory

# What leaks once per call, by kind: into what everybody shares, into containers of the project, or into nothing.
KINDS: Final = {
    "atexit": "atexit.register(len, [])",
    "atexit_method": "atexit.register([].append, 1)",
    "at_fork": "os.register_at_fork(before=lambda: None)",
    "context": 'contextvars.ContextVar("v").set([])',
    "sys_path": 'sys.path.append("/nowhere/%d" % next(N))',
    "sys_modules": 'name = "made_%d" % next(N); sys.modules[name] = types.ModuleType(name)',
    "root_handlers": "logging.getLogger().addHandler(logging.NullHandler())",
    "logger_handlers": 'logging.getLogger("shop").addHandler(logging.NullHandler())',
    "loggers": 'logging.getLogger("made.%d" % next(N))',
    "environ": 'os.environ["MADE_%d" % next(N)] = "1"',
    "handler": "signal.signal(signal.SIGUSR1, lambda *_, old=signal.getsignal(signal.SIGUSR1): old)",
    "finalize": "weakref.finalize(WAIT, len, [])",
    "codecs": "codecs.register(lambda name: None)",
    "meta_path": "sys.meta_path.append(Finder())",
    "path_hooks": "sys.path_hooks.append(lambda path: refuse(path))",
    "gc_callbacks": "gc.callbacks.append(lambda *_: None)",
    "copyreg": "copyreg.pickle(type('T', (), {}), len)",
    "builtins": "setattr(builtins, 'made_%d' % next(N), [])",
    "namespaces": 'ElementTree.register_namespace("made%d" % next(N), "uri%d" % next(N))',
    "formats": 'shutil.register_archive_format("made%d" % next(N), len, [], "x")',
    "importers": 'sys.path_importer_cache["/made/%d" % next(N)] = None',
    "sqlite": "sqlite3.register_adapter(type('T', (), {}), len)",
    "of_processes": "multiprocessing.util.Finalize(None, len, ([],), exitpriority=0)",
    "of_threads": "threading._register_atexit(len, [])",
    "exit_stack": "STACK.callback(len, [])",
    "list": "KEPT.append([])",
    "bytes": 'KEPT.append(b"x%d" % next(N))',
    "bytearray": "KEPT.append(bytearray(3000))",
    "class": "Holder.rows.append([])",
    "lru": "cached(next(N))",
    "malloc": "LIBC.malloc(3000)",
    "mmap": "KEPT.append(mmap.mmap(-1, 1 << 16))",
    "fd": "KEPT.append(os.open(__file__, os.O_RDONLY))",
    "fd_lost": "os.open(__file__, os.O_RDONLY)",
    "socket": "KEPT.append(socket.socket())",
    "unclosed": "cycle = [socket.socket()]; cycle.append(cycle)",
    "thread": "thread = threading.Thread(target=WAIT.wait, daemon=True); thread.start(); KEPT.append(thread)",
    "thread_lost": "threading.Thread(target=WAIT.wait, daemon=True).start()",
    "disk": "handle, path = tempfile.mkstemp(); os.close(handle)",
    "process": "KEPT.append(subprocess.Popen(['sleep', '600']))",
}
_SHARED: Final = """
    import contextlib, ctypes, itertools, threading

    N = itertools.count()
    WAIT = threading.Event()
    LIBC = ctypes.CDLL(None)
    LIBC.malloc.restype = ctypes.c_void_p

    class Finder:
        def find_spec(self, *_): return None

    def refuse(path): raise ImportError
"""
_MODULE: Final = """
import atexit, builtins, codecs, contextlib, contextvars, copyreg, functools, gc, logging, mmap, multiprocessing.util
import os, shutil, signal, socket, sqlite3, subprocess, sys, tempfile, threading, types, weakref
from xml.etree import ElementTree
from shared import LIBC, N, WAIT, Finder, refuse

KEPT, STACK = [], contextlib.ExitStack()

class Holder: rows = []

@functools.lru_cache(None)
def cached(number): return [number]

def {side}_{kind}():
    {body}
"""
# `--lf` runs what failed last; the order is that of a seed.
_CONFTEST: Final = """
    import os, random

    def pytest_collection_modifyitems(items):
        if os.environ.get("SEED"):
            random.Random(os.environ["SEED"]).shuffle(items)
"""
ALL: Final = ("--leakcheck-scope=all", "--leakcheck-min-time=0", "--leakcheck-unclosed=fail", "--tb=no")


class Suite:
    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.project.write("conftest.py", _CONFTEST)
        self.project.write("shared.py", _SHARED)
        for side in ("old", "new"):
            for kind, body in KINDS.items():
                text = _MODULE.format(side=side, kind=kind, body=body.replace("; ", "\n    "))
                (folder / f"{side}_{kind}.py").write_text(text, encoding="utf-8")
                name = f"{side}_{kind}"
                test = f"from {name} import {name}\n\ndef test_{name}(): {name}()\n"
                (folder / f"test_{name}.py").write_text(test, encoding="utf-8")

    def red(self, *arguments: str, old: list[str], new: list[str], seed: str = "") -> tuple[set[str], int]:
        """Run tests by kind, and return which were red, and how many have a verdict."""
        files = [f"test_{side}_{kind}.py" for side, kinds in (("old", old), ("new", new)) for kind in kinds]
        ran = self.project.run(*ALL, *arguments, *files, cache=True, limit=3600, SEED=seed)
        assert "INTERNALERROR" not in ran.text
        tests = {one["test"].rpartition("::")[2] for one in ran.findings}
        return {one["test"].rpartition("::test_")[2] for one in ran.findings if one["colour"] == "red"}, len(tests)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    """The suite with all old leaks recorded, by one session."""
    suite = Suite(tmp_path_factory.mktemp("suite"))
    suite.red("-n", "2", "--leakcheck-update-baseline", old=list(KINDS), new=[])
    return suite


def test_each_function_has_an_entry(recorded: Suite) -> None:
    known = json.loads((recorded.project.folder / "leakcheck-baseline.json").read_text(encoding="utf-8"))["known"]
    tests = sorted(test.rpartition("::test_old_")[2] for one in known for test in one["tests"])
    assert tests == sorted(KINDS)
    assert len(known) == len(KINDS)


def test_each_new_leak_beside_its_known_one_is_red(recorded: Suite) -> None:
    every = list(KINDS)
    assert recorded.red("-n", "2", old=every, new=every) == ({f"new_{kind}" for kind in every}, 2 * len(every))


@pytest.mark.parametrize("turn", range(10))
def test_any_part_in_any_order_is_green_but_for_what_is_new(recorded: Suite, turn: int) -> None:
    # Each new leak comes in one turn, beside eight known ones, of which four are of its kind.
    kinds = list(itertools.islice(itertools.cycle(KINDS), 4 * turn, 4 * turn + 8))
    new = kinds[:4]
    arguments = [(), ("-n", "2"), ("-k", "old or " + " or ".join(new)), ("-n", "2"), ()][turn % 5]
    expected = {f"new_{kind}" for kind in new}
    assert recorded.red(*arguments, old=kinds, new=new, seed=str(turn)) == (expected, 12)
    # What failed is what is new; alone, each is as before.
    assert recorded.red("--lf", old=kinds, new=new) == (expected, 4)
    assert recorded.red(old=kinds[turn % 4 :][:1], new=[]) == (set(), 1)
