"""Measure the cost of the plugin when it is installed but not used. Exit 1 above a limit.

A temporary project of 2,000 trivial tests runs with the plugin installed but without ``--leakcheck``, and with ``-p
no:leakcheck``. Every other third-party plugin is blocked in both runs, so the comparison is with plain pytest, the
cheapest run there is. The cost is the ratio of user-space instructions, at most 1.01. Unlike seconds, instructions do
not depend on the load of the machine. By chance, one of both may have one more full collection of garbage (0.5 %), and
the order of sets differs with each seed of hashes (0.3 %): the collector is off, and each repetition has another seed.
``perf`` counts them if the machine has hardware counters; otherwise ``valgrind --tool=cachegrind`` does (within 0.1 %
of what callgrind counts, in a third of the time).

The run without ``--leakcheck`` may import at most 7 modules of the plugin, and not psutil. Exit 2 if nothing can be
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from typing import Final

from venvs import inherited

FILES: Final = 20
TESTS_PER_FILE: Final = 100
LIMIT: Final = 1.01
MODULES_LIMIT: Final = 7
OFF: Final = ("-p", "no:leakcheck")

_WITHOUT_COLLECTOR: Final = "import gc, sys; gc.disable(); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
# Run pytest, then print its exit status, the imported modules of the plugin, and whether psutil is imported.
_MODULES_SCRIPT: Final = """
import json, sys
import pytest
code = pytest.main(sys.argv[1:])
ours = sorted(name for name in sys.modules if name.partition(".")[0] == "pytest_leakcheck")
print()
print(json.dumps({"code": int(code), "ours": ours, "psutil": "psutil" in sys.modules}))
"""


def main() -> int:
    """Compare both runs and print the ratio; return 1 above a limit, 2 if nothing can be measured."""
    parser = argparse.ArgumentParser(description="Cost of the plugin without --leakcheck, in instructions.")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind, interleaved (default: 3)")
    repeat: int = parser.parse_args().repeat
    others = {point.name for point in entry_points(group="pytest11")}
    if "leakcheck" not in others:
        print("the plugin is not installed for this interpreter: pip install -e .")
        return 2
    others.discard("leakcheck")
    common = ["-q", "-p", "no:cacheprovider", *(word for name in sorted(others) for word in ("-p", f"no:{name}"))]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "pytest.ini").write_text("[pytest]\n")
        tests = "\n\n".join(f"def test_{number}():\n    assert 1 + 1 == 2\n" for number in range(TESTS_PER_FILE))
        for file in range(FILES):
            (project / f"test_file_{file}.py").write_text(tests)
        for arm in ((), OFF):
            # This run writes the bytecode that the measured runs read, including the rewritten assertions of the tests.
            _run(project, [sys.executable, "-m", "pytest", *common, *arm], cold=True)
        counter = "perf" if _is_perf_usable(project) else "valgrind"
        if counter == "valgrind" and shutil.which("valgrind") is None:
            print("neither perf with hardware counters nor valgrind is here: nothing counts instructions")
            return 2
        print(f"{FILES * TESTS_PER_FILE:,} tests, instructions counted by {counter}")
        ratios = []
        for seed in range(repeat):
            on, off = (_count_instructions(counter, project, [*common, *arm], seed) for arm in ((), OFF))
            ratios.append(on / off)
            print(f"  with the plugin {on:>16,}   without {off:>16,}   ratio {on / off:.4f}", flush=True)
        ratio = median(ratios)
        found = json.loads(_run(project, [sys.executable, "-c", _MODULES_SCRIPT, *common]).stdout.splitlines()[-1])
        ours, psutil = found["ours"], found["psutil"]
    print(f"median ratio {ratio:.4f} (limit {LIMIT})")
    print(f"modules of ours after a plain run: {len(ours)} (limit {MODULES_LIMIT}): {', '.join(ours)}")
    print(f"psutil imported by a plain run: {'yes' if psutil else 'no'} (must be no)")
    # If no module is listed, the plugin was not loaded, and nothing was compared.
    good = ratio <= LIMIT and 1 <= len(ours) <= MODULES_LIMIT and not psutil
    print("within the limits" if good else "ABOVE A LIMIT")
    return 0 if good else 1


def _run(project: Path, command: list[str], *, cold: bool = False, seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = inherited() | {"PYTHONHASHSEED": str(seed)} | ({} if cold else {"PYTHONDONTWRITEBYTECODE": "1"})
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit {done.returncode} of {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def _is_perf_usable(project: Path) -> bool:
    if shutil.which("perf") is None:
        return False
    # Without hardware counters (as in most virtual machines) perf exits 0, and prints a note instead of the number.
    command = ["perf", "stat", "-x", ",", "-e", "instructions:u", "true"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return done.returncode == 0 and re.search(r"^[1-9]\d*,", done.stderr, re.MULTILINE) is not None


def _count_instructions(counter: str, project: Path, arguments: list[str], seed: int) -> int:
    """Return the instructions of one pytest run."""
    pytest = [sys.executable, "-c", _WITHOUT_COLLECTOR, *arguments]
    if counter == "perf":
        done = _run(project, ["perf", "stat", "-x", ",", "-e", "instructions:u", *pytest], seed=seed)
        found = re.search(r"^(\d+),", done.stderr, re.MULTILINE)
    else:
        tool = ["valgrind", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={os.devnull}"]
        done = _run(project, [*tool, *pytest], seed=seed)
        found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if found is None:
        raise SystemExit(f"no count from {counter}:\n{done.stderr[-2000:]}")
    return int(found[1].replace(",", ""))


if __name__ == "__main__":
    sys.exit(main())
