"""Judge statements that gain references in some releases of a package, and not in others.

Each row is a public bug of a C extension. Both releases are installed in environments of their own; the statement is
repeated by a test with ``reference_budget()``, and then by a loop of its own that reads `sys.getrefcount`, which is the
truth. Exit status 1 if a verdict differs from that.

Usage: python ci/bench/reference_bugs.py
"""

from __future__ import annotations

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


_GENERATOR: Final = "next(k for k in type.__subclasses__(object) if '_cython' in repr(k) and 'generator' in repr(k))"
BUGS: Final = (
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
_TEST: Final = """
import pytest
{prepare}

@pytest.mark.reference_budget()
def test_statement():
    {statement}
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
_ROW: Final = "{:<18} {:<26} {:>9} {:>10}  {}"


def main() -> int:
    """Print a row for each release; return 1 if a verdict is wrong."""
    wrong = False
    print(_ROW.format("release", "statement", "per call", "iterations", "finding"))
    for bug in BUGS:
        for release in (bug.wrong, bug.right):
            python = str(environment(FOLDER, sys.executable, (PROJECT, release)))
            truth = int(_run(python, "-c", _TRUTH.format(**bug._asdict())))
            iterations, found = _judge(python, _TEST.format(**bug._asdict()))
            wrong |= bool(truth) != bool(found)
            print(_ROW.format(release, bug.statement, truth, iterations, found or "none"), flush=True)
    return wrong


def _judge(python: str, test: str) -> tuple[int, str]:
    """Return the number of iterations, and what the report says remains; empty if it is green."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_it.py").write_text(test, encoding="utf-8")
        report = Path(folder, "report.json")
        _run(
            python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--leakcheck", f"--leakcheck-json={report}", folder
        )
        finding = read(report).findings[0]
    verdict = finding.verdicts[0]
    return verdict.iterations, finding.held["reference"][0].what if verdict.outcome == "leak" else ""


def _run(python: str, *arguments: str) -> str:
    return subprocess.run(
        [python, *arguments], env=inherited(), capture_output=True, text=True, check=False, timeout=300
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
