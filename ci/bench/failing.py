"""Measure what a failing path costs, in CPU time, as a multiple of a plain run of its test.

The program opens a file 20 times, and computes for some milliseconds. A path is quiet if nothing is open as the call fails.
It leaks if the program has opened another file before, and does not close it then.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
POSITIONS: Final = 20
PROGRAM: Final = f"""
import hashlib, os
DATA = bytes(400_000)
LEAKS = False

def read():
    kept = [os.open("/dev/zero", os.O_RDONLY)] if LEAKS else []
    for _ in range({POSITIONS}):
        os.close(os.open("/dev/zero", os.O_RDONLY))
        hashlib.sha256(DATA).digest()
    for one in kept:
        os.close(one)
"""
TEST: Final = """
import os, pytest, program
program.LEAKS = bool(os.environ.get("LEAKS"))

@pytest.mark.leakcheck
def test_it():
    program.read()
"""


def plain_run(folder: Path) -> float:
    """Return the CPU time of one run of the program."""
    code = "import time, program\nfor _ in range(9): program.read()\nbegan = time.process_time()\n"
    code += "for _ in range(50): program.read()\nprint((time.process_time() - began) / 50)"
    return float(subprocess.check_output([sys.executable, "-c", code], cwd=folder))


def session(folder: Path, *options: str, leaks: bool = False) -> float:
    """Return the CPU time of a session, with its child processes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LEAKS": "1" if leaks else ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--leakcheck",
        "--leakcheck-max-time=600",
        *options,
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == int(leaks and bool(options)), done.stdout
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print the cost of a quiet path, and of one that leaks: of the 21 calls there, 20 raise, and 19 leak."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
        (folder / "test_it.py").write_text(TEST, encoding="utf-8")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        once = plain_run(folder)
        print(f"one run of the test: {once * 1000:.1f} ms of CPU time")
        for what, leaks in (("quiet", False), ("leaks", True)):
            without = session(folder, leaks=leaks)
            of_paths = session(folder, "--leakcheck-failures=os.open", leaks=leaks)
            each = (of_paths - without) / POSITIONS
            print(f"a path, {what}: {each * 1000:.0f} ms, {each / once:.1f} times a run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
