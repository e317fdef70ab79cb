"""Judge samples of the test suites of released packages, which were not written with leaks in mind.

    python ci/suites.py                                   sample and judge every suite of ci/suites/suite_catalog.py
    python ci/suites.py --only aiohttp --tests 100        one suite, 100 of its tests
    python ci/suites.py --json FILE                       write the figures to a file
    python ci/suites.py --reproduce                       run the reproductions of the causes, without pytest

Each suite has a virtual environment below `.venv/suites`, with pinned releases and the checkout. A sample is drawn with a
seed: one case of each test function, spread over the files. It runs three times under the same conditions: plainly
(without the plugin), with `--leakcheck-scope=all`, and with `--leakcheck-fail-on=none` in addition, for at most 3 s per
test. The outcomes of `-rA` of the last run must be those of the first, and of the second too, except for tests with a
red finding. The output
of the runs and the findings are kept beside the environment. Exit status 1 if an outcome differs.
"""

# ruff: noqa: E402 - the modules in ci/suites are not installed

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PARTS: Final = ROOT / "ci" / "suites"
sys.path.insert(0, str(_PARTS))

from suite_catalog import EMPTY, SUITES, Suite
from suite_figures import Figures, Run, compute, draw, format_table, parse_outcomes

_ENVIRONMENTS: Final = ROOT / ".venv" / "suites"
_REPRODUCTIONS: Final = _PARTS / "reproductions"
_INSTALL_TIMEOUT_SECONDS: Final = 1800
_RUN_TIMEOUT_SECONDS: Final = 7200
_EMPTY_TESTS: Final = 100
_JUDGE: Final = ("--leakcheck-scope=all", "--leakcheck-json=findings.json")
# The third run is about outcomes only, which must be those of the plain run however often a test is repeated. So it takes
# less time, and its findings are not used.
_JUDGE_WITHOUT_FAILING: Final = (
    "--leakcheck-scope=all",
    "--leakcheck-json=findings-none.json",
    "--leakcheck-fail-on=none",
    "--leakcheck-max-time=3",
)
# How a plain run is kept free of the plugin, which is installed for the runs that are judged.
_PLAIN: Final = ("-p", "no:leakcheck")
# An exit status of pytest that leaves outcomes to compare: all passed, or some failed.
_COMPARABLE: Final = (0, 1)


class SuiteError(Exception):
    """A suite could not be installed, collected or run; the message says why."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A suite in its environment.

    Attributes:
        suite: The suite.
        python: The interpreter of the environment.
        root: The folder that node ids are relative to.
        targets: The arguments of pytest that name the tests.
        folder: Where pytest is started; the runs leave their output there, so that a finding can be looked into.
    """

    suite: Suite
    python: Path
    root: Path
    targets: tuple[str, ...]
    folder: Path


def main() -> int:
    """Judge the chosen suites and print their figures. Return the exit status."""
    options = _create_parser().parse_args()
    if options.reproduce:
        return _reproduce()
    done: list[Figures] = []
    failed = False
    for suite in SUITES:
        if options.only not in suite.name:
            continue
        try:
            done.append(_judge(suite, options))
        except (SuiteError, OSError, subprocess.SubprocessError) as error:
            print(f"{suite.name}: not run: {error}", flush=True)
            failed = True
            continue
        print(format_table(done[-1:]), flush=True)
        # After each suite, because all of them take an hour or more.
        if options.json:
            _write_json(options.json, done, options)
    if len(done) > 1:
        print(format_table(done))
    return int(failed or any(figures.differing or figures.differing_without_failing for figures in done))


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Judge samples of the test suites of released packages.")
    parser.add_argument("--only", default="", metavar="SUITE", help="only the suites with this text in their names")
    parser.add_argument("--tests", type=int, default=400, metavar="N", help="tests per suite (default 400)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the sample (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of each suite to this file")
    parser.add_argument("--reproduce", action="store_true", help="run the reproductions of the causes instead")
    return parser


def _write_json(path: Path, done: Sequence[Figures], options: argparse.Namespace) -> None:
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    content = {"date": today, "seed": options.seed, "suites": [asdict(figures) for figures in done]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _judge(suite: Suite, options: argparse.Namespace) -> Figures:
    """Run a sample of a suite three times, and compute its figures."""
    installed = _find_tests(suite, _install(suite))
    collected = _collect(installed)
    sample = draw(collected, options.tests, options.seed)
    (installed.folder / "pick.json").write_text(json.dumps(sample), encoding="utf-8")
    runs = [
        _run(installed, name, arguments)
        for name, arguments in (("plain", _PLAIN), ("judged", _JUDGE), ("none", _JUDGE_WITHOUT_FAILING))
    ]
    with (installed.folder / "findings.json").open(encoding="utf-8") as report:
        _first, *findings, _last = map(json.loads, report)
    return compute(suite.name, suite.release, len(collected), runs, findings)


def _install(suite: Suite) -> Path:
    """Return the environment of a suite; create it if its requirements have changed or it does not exist."""
    wanted = json.dumps([sys.version, *suite.requirements])
    name = re.sub(r"\W+", "-", suite.name)
    place = _ENVIRONMENTS / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:6]}"
    stamp = place / "installed.json"
    if stamp.exists():
        return place
    # `--clear`: an environment without a stamp is incomplete.
    _call([sys.executable, "-m", "venv", "--clear", str(place)])
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _call([*pip, *suite.requirements])
    # Editable, so that the code of the checkout judges.
    _call([*pip, "--no-deps", "--editable", str(ROOT)])
    if suite.package and not suite.tests:
        _unpack(suite, place, pip)
    stamp.write_text(wanted, encoding="utf-8")
    return place


def _unpack(suite: Suite, place: Path, pip: Sequence[str]) -> None:
    """Unpack the sdist of a suite without the package, so that the installed one is tested."""
    folder = place / "sdist"
    requirement = f"{suite.package}=={suite.release}"
    download = ["download", "--quiet", "--no-deps", "--no-binary", suite.package]
    _call([*pip[:3], *download, "--dest", str(folder), requirement])
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    archive.unlink()
    (unpacked,) = folder.iterdir()
    shutil.rmtree(unpacked / suite.package)


def _find_tests(suite: Suite, place: Path) -> Installed:
    """Find the tests of a suite in its environment; generate those of the suite of empty tests."""
    if suite is EMPTY:
        root = place / "empty"
        root.mkdir(exist_ok=True)
        tests = "".join(f"def test_{number}():\n    pass\n\n" for number in range(_EMPTY_TESTS))
        (root / "test_empty.py").write_text(tests, encoding="utf-8")
        targets: tuple[str, ...] = (str(root),)
    elif suite.tests:
        (root,) = (place / "lib").glob("python3*/site-packages")
        targets = ("--pyargs", *suite.tests)
    else:
        (root,) = (place / "sdist").iterdir()
        targets = (str(root / "tests"),)
    folder = place / "runs"
    folder.mkdir(exist_ok=True)
    return Installed(suite, place / "bin" / "python", root, targets, folder)


def _collect(installed: Installed) -> list[str]:
    """Return the node ids of all tests of a suite."""
    folder = installed.folder
    (folder / "pick.json").write_text("[]", encoding="utf-8")
    done = _pytest(installed, [*_PLAIN, "--collect-only", "-qq"], judged=False)
    (folder / "collect.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or [done.stderr[-500:]]
        raise SuiteError(f"exit {done.returncode} of the collection: {'; '.join(lines)}")
    collected: list[str] = json.loads((folder / "collected").read_text(encoding="utf-8"))
    return collected


def _run(installed: Installed, name: str, arguments: Sequence[str]) -> Run:
    """Run the sample. Keep its output as `NAME.txt`."""
    folder = installed.folder
    used = _children_seconds()
    done = _pytest(installed, [*arguments, "-q", "-rA", "--tb=short"], judged=arguments is not _PLAIN)
    (folder / f"{name}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode not in _COMPARABLE:
        raise SuiteError(f"exit {done.returncode} of the run {name!r}: see {folder / name}.txt")
    measured = json.loads((folder / "measured").replace(folder / f"{name}.json").read_text(encoding="utf-8"))
    return Run(
        # The summary shows paths relative to the folder that pytest was started in, findings relative to the root.
        outcomes=parse_outcomes(done.stdout, f"{os.path.relpath(installed.root, folder)}/"),
        session_cpu=_children_seconds() - used,
        cpu=measured["cpu"],
        wall=measured["wall"],
        tests=measured["tests"],
        durations=measured["durations"],
        not_judged=measured["not_judged"],
    )


def _pytest(installed: Installed, arguments: Sequence[str], *, judged: bool) -> subprocess.CompletedProcess[str]:
    own = installed.root / "pytest.ini"
    ini = own if own.exists() else installed.python.parents[1] / "pytest.ini"
    if ini != own:
        ini.write_text("[pytest]\n", encoding="utf-8")
    command = [str(installed.python), "-m", "pytest", "-c", str(ini), "--rootdir", str(installed.root)]
    command += ["-p", "no:cacheprovider", "-p", "pick_tests", *installed.suite.options]
    # pytest takes a relative pattern as one below the folder that it is started in.
    command += [f"--ignore-glob={installed.root}/*/{name}" for name in installed.suite.left_out]
    # Without the settings of the session that this script may run in.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
    clean.pop("CI", None)
    pick = str(installed.folder / "pick.json")
    return subprocess.run(
        [*command, *arguments, *installed.targets],
        cwd=installed.folder,
        env=clean | {"PYTHONPATH": str(_PARTS), "SUITES_PICK": pick, "SUITES_JUDGED": str(int(judged))},
        capture_output=True,
        text=True,
        check=False,
        timeout=_RUN_TIMEOUT_SECONDS,
    )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _call(command: Sequence[str]) -> None:
    print(" ".join(command), file=sys.stderr, flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_SECONDS)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise SuiteError(f"exit {done.returncode} of {' '.join(command)}: {lines[-1] if lines else 'no output'}")


def _reproduce() -> int:
    """Run each reproduction in the environment of its suite, which the first line of its docstring names."""
    failed = 0
    suites = {suite.name: suite for suite in SUITES}
    for path in sorted(_REPRODUCTIONS.glob("*.py")):
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        name = next((one for one in suites if first.startswith(f'"""{one}: ')), "")
        if not name:
            print(f"{path.name}: its first line names no suite")
            failed = 1
            continue
        command = [str(_install(suites[name]) / "bin" / "python"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_SECONDS)
        print(f"{path.stem}: {done.stdout.strip() or done.stderr.strip()[-500:]}", flush=True)
        failed |= int(done.returncode != 0)
    return failed


if __name__ == "__main__":
    sys.exit(main())
