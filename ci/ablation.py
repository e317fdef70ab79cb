"""Switch off one mechanism after the other, judge all cases of tests/cases, and print what each changes.

    .venv/bin/python ci/ablation.py                      all mechanisms
    .venv/bin/python ci/ablation.py --only background    the mechanisms with "background" in their names
    .venv/bin/python ci/ablation.py --numbers judge      halve and double each number of a room, and run the tests that use it

A mechanism is what excuses growth, or a second look at it. One that changes no verdict has no case; write the case, or
delete the mechanism. Verdicts are compared with those of a session in which nothing is switched off. A number that no
test notices needs a case, or can go. Exit status 1 if a mechanism changes nothing, or no test notices a number.
"""

# ruff: noqa: E402 - the helpers of the tests are not installed

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "pytest_leakcheck"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from coverage import CoverageData

from cases.catalog import ARMS
from projects import UNNAMED
from pytest_leakcheck.model.finding import RED
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from sessions import judge_arms

_RULES: Final = "from pytest_leakcheck.runner.resource_judge import ResourceJudge"
# Not among them, because its case is an incident: `judge_series._check_releases_elsewhere`. Without it, pyav_workers with
# the collector of the workers on has no answer after 287 iterations, in place of one after 50.
# The statements that switch a mechanism off, in a conftest.py, by the name of the mechanism.
MECHANISMS: Final[Mapping[str, tuple[str, ...]]] = {
    look.removeprefix("_look_").replace("_", " "): (
        "from pytest_leakcheck.runner.innocent_growth import InnocentGrowth",
        f"InnocentGrowth.{look} = lambda self, *_: None",
    )
    for look in vars(InnocentGrowth)
    if look.startswith("_look_")
} | {
    "views of pandas": (
        "from pytest_leakcheck.runner.bounded_caches import BoundedOwners",
        "BoundedOwners._measure_pandas_views = lambda self, _resource: None",
    ),
    "minimum time": (_RULES, "ResourceJudge._may_end_by_itself = lambda self, *_: False"),
    "shown by exact counters": (
        "from pytest_leakcheck.runner import resource_judge",
        "resource_judge._yields_to_exact_counters = lambda _budget: False",
    ),
    "objects replaced": ("from pytest_leakcheck.runner import sampler", "sampler._FrozenObjects.gone = 0"),
}
# The options of the sessions that are compared: nothing else makes tracers, and the tests of the plugin wait for nothing.
_UNDER: Final = {
    "for late ends": ("-p", "no:hurried"),
    "at tracers": ("--cov=cases", "--cov-report="),
    "minimum time": ("--leakcheck-min-time=3",),
}


Executed: TypeAlias = Mapping[Path, Mapping[int, list[str]]]
# For the unit tests of a room with a changed number, which may never end.
_MOST_SECONDS: Final = 900


def main() -> int:
    """Print a row for each mechanism; return 1 if one changes no verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PART", help="mechanisms with PART in their names")
    parser.add_argument("--arms", default="", metavar="PART", help="arms with PART in their names")
    parser.add_argument("--numbers", default="", metavar="ROOM", help="the numbers of a folder of the package")
    options = parser.parse_args()
    if options.numbers:
        return _try_numbers(options.numbers, options.only)
    arms = [name for name in ARMS if options.arms in name]
    usual: dict[tuple[str, ...], dict[str, str]] = {}
    idle = []
    for name, statements in MECHANISMS.items():
        if options.only not in name:
            continue
        under = _UNDER.get(name, ())
        if under not in usual:
            usual[under] = _judge(arms, (), under)
        without = _judge(arms, statements, under)
        changed = [f"{arm} {usual[under][arm]} -> {without[arm]}" for arm in arms if usual[under][arm] != without[arm]]
        print(f"{name:22} {'; '.join(changed) or 'changes nothing'}", flush=True)
        if not changed:
            idle.append(name)
    return bool(idle)


def _try_numbers(room: str, only: str) -> int:
    """Print a row for each number of a room: the first test that fails with half of it, and with twice as much."""
    unnoticed = False
    for path in sorted((PACKAGE / room).rglob("*.py")):
        for name, numbers in _list_numbers(path).items():
            if only in f"{path.stem}.{name}":
                noticed = [_notice(room, path, name, numbers, factor) for factor in (0.5, 2)]
                unnoticed |= "" in noticed
                shown = ", ".join(map(ast.unparse, numbers))
                print(f"{path.stem}.{name} = {shown} | {' | '.join(test or 'no test' for test in noticed)}", flush=True)
    return unnoticed


def _notice(room: str, path: Path, name: str, numbers: list[ast.Constant], factor: float) -> str:
    """Return a test that notices the change: of the module's own file, or, without one, of those that execute it."""
    own = [str(one.relative_to(ROOT)) for one in (ROOT / "tests" / "unit").rglob(f"test_{path.stem}.py")]
    tests = own or _find_tests(name, _trace_tests(room)) or [f"tests/unit/{room}"]
    return _test_with(path, numbers, factor, tests)


@cache
def _trace_tests(room: str) -> Executed:
    """Run the unit tests of a room, and return which of them execute each line of each file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "coverage")
        options = ["--cov=pytest_leakcheck", "--cov-context=test", "--cov-report="]
        _run_tests([*options, f"tests/unit/{room}"], {"COVERAGE_FILE": str(file)})
        executed = CoverageData(str(file))
        executed.read()
        return {path: executed.contexts_by_lineno(str(path)) for path in PACKAGE.rglob("*.py")}


def _find_tests(name: str, executed: Executed) -> list[str]:
    """Return the tests that execute a line with this constant, without their parameters."""
    word, tests = re.compile(rf"\b{name}\b"), set[str]()
    for path, contexts in executed.items():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if word.search(line):
                tests.update(one.partition("|")[0].partition("[")[0] for one in contexts.get(number, ()))
    return sorted(tests - {""})


def _list_numbers(path: Path) -> dict[str, list[ast.Constant]]:
    """Return the numbers of each constant of a module that has some."""
    found: dict[str, list[ast.Constant]] = {}
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.annotation).startswith("Final"):
            if "sys.version_info" in ast.unparse(statement):
                # A version of Python is no threshold.
                continue
            # Half of both parts of a fraction would be the same number.
            divisors = [
                node.right
                for node in ast.walk(statement)
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            ]
            for node in ast.walk(statement):
                if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node not in divisors:
                    found.setdefault(ast.unparse(statement.target), []).append(node)
    return found


def _test_with(path: Path, numbers: list[ast.Constant], factor: float, tests: list[str]) -> str:
    """Return the first of these tests that fails with a multiple of the numbers; empty if none does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(PACKAGE, Path(folder, PACKAGE.name))) / path.relative_to(PACKAGE)
        lines = copy.read_text(encoding="utf-8").splitlines(keepends=True)
        # From the end on, so that the columns of those before them stay right.
        for number in sorted(numbers, key=lambda one: -one.col_offset):
            line, end, value = lines[number.lineno - 1].encode(), number.end_col_offset or 0, cast("Any", number.value)
            changed = repr(type(value)(value * factor)).encode()
            lines[number.lineno - 1] = (line[: number.col_offset] + changed + line[end:]).decode()
        copy.write_text("".join(lines), encoding="utf-8")
        # Without PYTHONSAFEPATH, the package of the current folder is imported.
        variables = {"PYTHONPATH": f"{folder}:{ROOT / 'fixtures'}", "PYTHONSAFEPATH": "1"}
        chance: list[str] = []
        while True:
            try:
                done = _run_tests(["-x", *tests, *chance], variables, _MOST_SECONDS)
                failed = re.findall(r"^(?:FAILED|ERROR) (\S+::\S+)", done.stdout, re.MULTILINE)
                # One that passes when it runs again did not fail for the number.
                again = _run_tests(failed, variables, _MOST_SECONDS) if failed else done
            except subprocess.TimeoutExpired:
                return "its tests do not end"
            if again.returncode or not failed:
                break
            chance.append(f"--deselect={failed[0]}")
    return failed[0].rpartition("/")[2] if failed else "the package cannot be imported" * bool(done.returncode)


def _run_tests(
    arguments: list[str], variables: dict[str, str], seconds: float | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not laboratory"]
    return subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )


def _judge(arms: list[str], statements: tuple[str, ...], under: tuple[str, ...]) -> dict[str, str]:
    """Return the worst outcome of each arm: red, in doubt or ok."""
    conftest = UNNAMED + "".join(f"\n    {line}" for line in statements) + "\n"
    found = judge_arms(arms, *under, conftest=conftest)
    return {arm: _worst({one["verdict"] for one in verdicts}) for arm, verdicts in found.items()}


def _worst(seen: set[str]) -> str:
    if not seen:
        return "no verdict"
    return "red" if seen & RED else "in doubt" if "inconclusive" in seen else "ok"


if __name__ == "__main__":
    sys.exit(main())
