"""Judge statements that gain or lose references in C, and the same statements fixed.

`BUGS` are public bugs of C extensions. Both releases are installed in environments of their own; the statement is
repeated by a test with ``reference_budget()``, and then by a loop of its own that reads `sys.getrefcount`, which is the
truth. `CASES` are those of psleak's own tests, rebuilt: they run under psleak, under ``--leakcheck``, and with the
resource ``reference`` added. Exit status 1 if a verdict of this plugin differs from the truth.

Usage: python ci/bench/reference_bugs.py [bugs] [cases]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from pytest_leakcheck.report.json_file import read
from venvs import PROJECT, ROOT, environment, inherited

FOLDER: Final = ROOT / ".venv" / "reference-bugs"


class Bug(NamedTuple):
    """Two releases, the statement, what prepares it, and the object that gains a reference in it."""

    wrong: str
    right: str
    statement: str
    prepare: str
    obj: str


class Case(NamedTuple):
    """A statement that gains or loses references, and the same without that."""

    name: str
    leaky: str
    fixed: str


_GENERATOR: Final = "next(k for k in type.__subclasses__(object) if '_cython' in repr(k) and 'generator' in repr(k))"
BUGS: Final = (
    Bug(
        "multidict==6.3.1",
        "multidict==6.2.0",
        "MultiDict(D)",
        "from multidict import MultiDict; D = MultiDict(a=1)",
        "D",
    ),
    Bug(
        "multidict==6.7.1",
        "multidict==6.8.0",
        "MultiDict()",
        "from multidict import MultiDict",
        "MultiDict",
    ),
    Bug("multidict==6.7.1", "multidict==6.8.0", "istr('a')", "from multidict import istr", "istr"),
    Bug(
        "multidict==6.8.0",
        "multidict==7.2.1",
        "D.items() - {('a', V)}",
        "from multidict import MultiDict; V = object(); D = MultiDict(a=V)",
        "V",
    ),
    Bug(
        "ujson==5.13.0",
        "ujson==6.1.0",
        "with suppress(TypeError): ujson.dumps(V, default=lambda v: v)",
        "from contextlib import suppress; import ujson; V = object()",
        "V",
    ),
    Bug("numpy==1.25.1", "numpy==1.25.2", "str(N)", "import numpy as np; N = np.int64(1)", "np.dtype('l')"),
    Bug("numpy==2.1.2", "numpy==2.1.3", "np.add(N, 2)", "import numpy as np; N = np.float32(1)", "np.dtype('f')"),
    Bug("numpy==2.4.6", "numpy==1.26.4", "np.zeros(4)", "import numpy as np", "np.dtype('d')"),
    Bug(
        "pyarrow==23.0.1",
        "pyarrow==20.0.0",
        "list(T.itercolumns())",
        "import pyarrow; T = pyarrow.table({'a': [1]}); list(T.itercolumns())",
        _GENERATOR,
    ),
)
PREPARE: Final = """
import ctypes
take, drop = ctypes.pythonapi.Py_IncRef, ctypes.pythonapi.Py_DecRef
take.argtypes = drop.argtypes = [ctypes.py_object]
take.restype = drop.restype = None
OBJ = object()
# psleak makes 22,663 calls.
HELD = [OBJ] * 30_000

def cycle():
    one = []
    one.append(one)
    return one
"""
CASES: Final = (
    Case("an argument gains a reference", "take(OBJ)", "take(OBJ); drop(OBJ)"),
    Case("an argument loses a reference", "drop(OBJ)", "take(OBJ); drop(OBJ)"),
    *(
        Case(name, f"take({new})", f"one = {new}; take(one); drop(one)")
        for name, new in {
            "a list of 1 not released": "[None]",
            "a list of 100": "[None] * 100",
            "an integer": "int('512')",
            "a tuple of 1": "tuple([None])",
            "a tuple of 100": "tuple([None] * 100)",
            "a dict": "{}",
            "a list that holds itself": "cycle()",
        }.items()
    ),
)
_TEST: Final = """
import pytest
{prepare}

@pytest.mark.{mark}()
def test_statement():
    {statement}
"""
_PSLEAK: Final = """
import psleak
{prepare}

CALLS = 0

def statement(_):
    global CALLS
    CALLS += 1
    {statement}

class TestStatement(psleak.MemoryLeakTestCase):
    def test_statement(self):
        try:
            self.execute(statement, OBJ)
        finally:
            print("calls:", CALLS)
"""
_TRUTH: Final = """
import sys
{prepare}
obj = {obj}
before = sys.getrefcount(obj)
for _ in range(1000):
    {statement}
print(round((sys.getrefcount(obj) - before) / 1000))
"""
_BUG_ROW: Final = "{:<18} {:<62} {:>9} {:>10}  {}"
_CASE_ROW: Final = "{:<32} {:<7} {:>6} {:<22} {:>10} {:<8} {:>10}  {}"


def main() -> int:
    """Print a row for each release or case; return 1 if a verdict is wrong."""
    parts = {"bugs": judge_bugs, "cases": judge_cases}
    return max(parts[name]() for name in sys.argv[1:] or parts)


def judge_bugs() -> int:
    """Print a row for each release; return 1 if a verdict is wrong."""
    wrong = False
    print(_BUG_ROW.format("release", "statement", "per call", "iterations", "finding"))
    for bug in BUGS:
        for release in (bug.wrong, bug.right):
            python = str(environment(FOLDER, sys.executable, (PROJECT, release)))
            truth = int(_run(python, "-c", _TRUTH.format(**bug._asdict())))
            iterations, found = _judge(python, _TEST.format(mark="reference_budget", **bug._asdict()))
            wrong |= bool(truth) != bool(found) or found == "inconclusive"
            print(_BUG_ROW.format(release, bug.statement, truth, iterations, found or "none"), flush=True)
    return wrong


def judge_cases() -> int:
    """Print a row for each case and its fixed form; return 1 if a verdict with ``reference`` is wrong."""
    wrong = False
    python = str(environment(FOLDER, sys.executable, (PROJECT, "psleak==0.1.6")))
    print(_CASE_ROW.format("case", "", "calls", "psleak", "iterations", "default", "iterations", "with reference"))
    for case in CASES:
        for arm, statement in (("leaky", case.leaky), ("fixed", case.fixed)):
            calls, error = _judge_by_psleak(python, _PSLEAK.format(prepare=PREPARE, statement=statement))
            test = _TEST.format(mark="leakcheck", prepare=PREPARE, statement=statement)
            default = _judge(python, test)
            found = _judge(python, test, "--leakcheck-resources=countable,memory,reference")
            wrong |= (arm == "leaky") != bool(found[1]) or "inconclusive" in found
            words = (calls, error or "none", default[0], default[1] or "none", found[0], found[1] or "none")
            print(_CASE_ROW.format(case.name, arm, *words), flush=True)
    return wrong


def _judge(python: str, test: str, *options: str) -> tuple[int, str]:
    """Return the number of iterations, and what the report says grows; empty if it is green."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        # Beside other work, the time of a test would be over before it is decided.
        options += ("--leakcheck", f"--leakcheck-json={report}", "--leakcheck-max-time=300")
        _run_test(python, test, folder, *options)
        finding = read(report).findings[0]
    by_outcome = {one.outcome: one for one in reversed(finding.verdicts)}
    if verdict := by_outcome.get("leak"):
        is_reference = verdict.resource == "reference"
        return verdict.iterations, finding.held["reference"][0].what if is_reference else verdict.resource
    most = max(one.iterations for one in finding.verdicts)
    return most, next((word for word in by_outcome if word not in ("ok", "unavailable")), "")


def _judge_by_psleak(python: str, test: str) -> tuple[int, str]:
    """Return the number of calls, and the name of the error; empty if it found nothing."""
    with tempfile.TemporaryDirectory() as folder:
        output = _run_test(python, test, folder, "-s", "-p", "no:leakcheck", PYTHONMALLOC="malloc")
    error = re.search(r"psleak\.(\w+Error): ", output)
    return int(re.findall(r"calls: (\d+)", output)[0]), error[1] if error else ""


def _run_test(python: str, test: str, folder: str, *options: str, **variables: str) -> str:
    Path(folder, "test_it.py").write_text(test, encoding="utf-8")
    return _run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, folder, **variables)


def _run(python: str, *arguments: str, **variables: str) -> str:
    return subprocess.run(
        [python, *arguments], env=inherited() | variables, capture_output=True, text=True, check=False, timeout=600
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
