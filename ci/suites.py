"""Judge samples of the test suites of released packages, which were not written with leaks in mind.

    python ci/suites.py                                   sample and judge every suite of ci/suites/suite_catalog.py
    python ci/suites.py --only aiohttp --tests 100        one suite, 100 of its tests
    python ci/suites.py --before ../older                 also judge with the plugin of another checkout
    python ci/suites.py --weekly                          judge once, by the baselines of ci/suites/baselines
    python ci/suites.py --only multidict --releases 6.6.4,6.7.0,6.7.1      each release by the findings of the one before

Each suite has a virtual environment below `.venv/suites`, with pinned releases and the checkout. A sample is drawn with a
seed: one case of each test function, spread over the files. It runs three times under the same conditions: plainly
(without the plugin), with `--leakcheck-scope=all`, and with `--leakcheck-fail-on=none` in addition, for at most 3 s per
test. The outcomes of `-rA` of the last two must be those of the first, but for one more report of each test with a red
finding. In the last, also the exit status, the line of counts (with that of warnings) and the JUnit report must be those
of the plain run. Then the first pass alone runs, plainly and judged in turns: what the plugin costs before it judges.
The output of the runs and the findings are kept beside the environment. Exit status 1 if an outcome differs.

A baseline lists the leaks that a sample is known to have, each with its reason: true, by design, or false. `--weekly` leaves
out what does not look for leaks (the third run, the turns); a leak that is in no baseline also has exit status 1.
`--update` writes them; the reasons are yours. `--releases` judges as a gate would have done: a red finding is a leak that
the release before did not have.
"""

# ruff: noqa: E402 - the modules in ci/suites and ci/bench are not installed

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

_PARTS: Final = Path(__file__).with_name("suites")
sys.path[:0] = [str(_PARTS), str(Path(__file__).with_name("bench"))]

from suite_catalog import EMPTY, SUITES, Suite
from suite_figures import Figures, Run, compute, draw, parse_junit, parse_outcomes, parse_session
from venvs import PROJECT, ROOT, Missing, call, environment, inherited

_TIMEOUT_SECONDS: Final = 7200
_FINDINGS: Final = "findings.json"
_JUDGE: Final = ("--leakcheck-scope=all", f"--leakcheck-json={_FINDINGS}")
_BASELINES: Final = _PARTS / "baselines"
# A gate of that time did not know what is known of these releases today.
_UNKNOWN: Final = ("-o", "leakcheck_library_leaks=false")
# The third run is about outcomes only, which must be those of the plain run however often a test is repeated. So it takes
# less time, and its findings are not used.
_JUDGE_WITHOUT_FAILING: Final = ("--leakcheck-scope=all", "--leakcheck-fail-on=none", "--leakcheck-max-time=3")
# Where the authors of a suite configure pytest, in pytest's order.
_CONFIGURATIONS: Final = {
    "pytest.ini": "[pytest]",
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}
# How a plain run is kept free of the plugin, which is installed for the runs that are judged.
_PLAIN: Final = ("-p", "no:leakcheck")


@dataclass(frozen=True, slots=True)
class Installed:
    """A suite in its environment: its interpreter, and the arguments of pytest that name the tests.

    Node ids are relative to `root`. The runs start in `folder`, and leave their output there for a look into a finding.
    """

    suite: Suite
    python: Path
    root: Path
    targets: tuple[str, ...]
    folder: Path


def main() -> int:
    """Judge the chosen suites and print their figures. Return the exit status."""
    parser = argparse.ArgumentParser(description="Judge samples of the test suites of released packages.")
    parser.add_argument("--only", metavar="SUITE", choices=[one.name for one in SUITES], help="only this suite")
    parser.add_argument("--tests", type=int, default=400, metavar="N", help="tests per suite (default 400)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the sample (default 1)")
    parser.add_argument("--turns", type=int, default=7, metavar="N", help="runs of each first pass (default 7)")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="compare the CPU time with that of this plugin")
    parser.add_argument("--weekly", action="store_true", help="look only for leaks that are in no baseline")
    parser.add_argument("--update", action="store_true", help="write the baselines")
    parser.add_argument(
        "--releases", default="", metavar="LIST", help="judge each of these releases by the one before; needs --only"
    )
    options = parser.parse_args()
    if options.releases and options.only is None:
        parser.error("--releases lists the releases of one suite: name it with --only")
    chosen = [one for one in SUITES if options.only in (None, one.name)]
    if options.releases:
        chosen = [replace(chosen[0], release=release) for release in options.releases.split(",")]
    wrong, before = False, None
    for suite in chosen:
        try:
            installed = _install(suite)
            if options.releases:
                figures = _judge(installed, options, *_judging_by(before), *_UNKNOWN)
                before = installed.folder / _FINDINGS
            elif options.update or options.weekly:
                figures = _judge(installed, options, *_judging_by(_baseline_of(suite), update=options.update))
                wrong |= bool(figures.red)
            else:
                figures = _judge(installed, options)
        except (Missing, OSError, subprocess.SubprocessError) as error:
            print(f"{suite.name} {suite.release}: not run: {error}", flush=True)
            wrong = True
            continue
        print(figures, flush=True)
        wrong |= bool(figures.differing or figures.differing_without_failing)
    return int(wrong)


def _baseline_of(suite: Suite) -> Path:
    return _BASELINES / f"{suite.name.replace(' ', '-')}.json"


def _judging_by(baseline: Path | None, *, update: bool = False) -> list[str]:
    """Return the options of a session that judges by what a baseline or a report lists; without one, by nothing."""
    if update:
        return [f"--leakcheck-baseline={baseline}", "--leakcheck-update-baseline"]
    return [f"--leakcheck-baseline={baseline}"] if baseline and baseline.exists() else ["--leakcheck-no-baseline"]


def _judge(installed: Installed, options: argparse.Namespace, *judging_by: str) -> Figures:
    """Run a sample of a suite plainly and judged, and compute its figures.

    Without `judging_by`, also run it in each other way.
    """
    pick = installed.folder / "pick.json"
    pick.write_text("[]", encoding="utf-8")
    _pytest(installed, "collect", [*_PLAIN, "--collect-only", "-qq"], statuses=(0,))
    collected = json.loads((installed.folder / "collected").read_text(encoding="utf-8"))
    pick.write_text(json.dumps(draw(collected, options.tests, options.seed)), encoding="utf-8")
    runs = [_run(installed, "plain", _PLAIN), _run(installed, "judged", [*_JUDGE, *judging_by])]
    ratios: dict[str, float] = {}
    if not judging_by:
        runs.append(_run(installed, "none", _JUDGE_WITHOUT_FAILING))
        ratios["first pass"] = _first_pass_ratio(installed, options.turns)
    if options.before is not None:
        before = _run(installed, "before", ["--leakcheck-scope=all"], plugin=options.before.resolve())
        ratios["before"] = runs[1].cpu / before.cpu
    with (installed.folder / _FINDINGS).open(encoding="utf-8") as report:
        _first, *findings, _last = map(json.loads, report)
    name = f"{installed.suite.name} {installed.suite.release}".strip()
    return compute(name, runs, findings, ratios)


def _first_pass_ratio(installed: Installed, turns: int) -> float:
    """Return the CPU time of the first pass of sessions that judge by that of plain ones, run in turns.

    The least of each counts: other work on the machine only adds to it.
    """
    seconds: dict[str, list[float]] = {"plain": [], "judged": []}
    for _ in range(turns):
        for arm, arguments in (("plain", _PLAIN), ("judged", ("--leakcheck-scope=all",))):
            _pytest(installed, "first", [*arguments, "-q"], statuses=(2,), SUITES_FIRST_ONLY="1")
            seconds[arm].append(_measured(installed)["first_pass"])
    return min(seconds["judged"]) / min(seconds["plain"])


def _install(suite: Suite) -> Installed:
    """Make the environment of a suite, and find its tests; generate those of the suite of empty tests."""
    environments, name = ROOT / ".venv" / "suites", suite.name.replace(" ", "-")
    python = environment(environments, sys.executable, (*suite.requirements, PROJECT), name=name)
    place = python.parents[1]
    if suite is EMPTY:
        root = place / "empty"
        root.mkdir(exist_ok=True)
        tests = "".join(f"def test_{number}():\n    pass\n\n" for number in range(100))
        (root / "test_empty.py").write_text(tests, encoding="utf-8")
        targets: tuple[str, ...] = (str(root),)
    elif suite.tests:
        (root,) = (place / "lib").glob("python3*/site-packages")
        targets = ("--pyargs", *suite.tests)
    else:
        root = _unpack(suite, python, place / "sdist")
        targets = tuple(str(folder) for folder in root.glob("test*/"))
    folder = place / "runs"
    folder.mkdir(exist_ok=True)
    return Installed(suite, python, root, targets, folder)


def _unpack(suite: Suite, python: Path, folder: Path) -> Path:
    """Unpack the sdist of a suite without the package, so that the installed one is tested."""
    if not folder.exists():
        download = ["download", "--quiet", "--no-deps", "--no-binary", suite.package, "--dest", str(folder)]
        call([str(python), "-m", "pip", *download, f"{suite.package}=={suite.release}"])
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        archive.unlink()
        (root,) = folder.iterdir()
        if (inner := root / "src" / suite.package / "tests").exists():
            inner.rename(root / "tests")
        for source in (suite.package, "src"):
            shutil.rmtree(root / source, ignore_errors=True)
    (root,) = folder.iterdir()
    return root


def _run(installed: Installed, name: str, arguments: Sequence[str], plugin: Path = ROOT) -> Run:
    """Run the sample."""
    junit = installed.folder / f"{name}.xml"
    arguments = [*arguments, "-q", "-rA", "--tb=short", f"--junitxml={junit}"]
    done = _pytest(installed, name, arguments, statuses=(0, 1), PLUGIN=str(plugin))
    # The summary shows paths relative to the folder that pytest was started in, findings relative to the root.
    outcomes = parse_outcomes(done.stdout, f"{os.path.relpath(installed.root, installed.folder)}/")
    session = parse_session(done.stdout, done.returncode) + parse_junit(junit.read_text(encoding="utf-8"))
    measured = _measured(installed)
    return Run(outcomes, session, measured["cpu"], measured["durations"])


def _has_table(file: Path, table: str) -> bool:
    return file.exists() and table in file.read_text(encoding="utf-8")


def _measured(installed: Installed) -> dict[str, Any]:
    measured: dict[str, Any] = json.loads((installed.folder / "measured").read_text(encoding="utf-8"))
    return measured


def _pytest(
    installed: Installed, name: str, arguments: Sequence[str], statuses: Sequence[int], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest with the plugin `pick_tests`, and keep its output as `NAME.txt`."""
    own = [installed.root / name for name, table in _CONFIGURATIONS.items() if _has_table(installed.root / name, table)]
    (ini := installed.python.parents[1] / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [
        str(installed.python),
        "-m",
        "pytest",
        "-c",
        str(own[0] if own else ini),
        "--rootdir",
        str(installed.root),
    ]
    command += ["-p", "no:cacheprovider", "-p", "pick_tests", *installed.suite.options]
    # pytest takes a relative pattern as one below the folder that it is started in.
    command += [f"--ignore-glob={installed.root}/*/{pattern}" for pattern in installed.suite.left_out]
    # The checkout is installed too, but what is named here comes first.
    variables["PYTHONPATH"] = os.pathsep.join([str(_PARTS), variables.pop("PLUGIN", str(ROOT))])
    variables["SUITES_PICK"] = str(installed.folder / "pick.json")
    done = subprocess.run(
        [*command, *arguments, *installed.targets],
        cwd=installed.folder,
        env=inherited() | installed.suite.variables | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    kept = installed.folder / f"{name}.txt"
    kept.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode not in statuses:
        raise Missing(f"exit {done.returncode} of the run {name!r}: see {kept}")
    return done


if __name__ == "__main__":
    sys.exit(main())
