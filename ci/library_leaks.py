"""Check each entry of ``known_libraries.json``: the releases that it covers leak, and the finding fits the entry.

For each release that a reproduction in ``ci/library_leaks`` names, this makes a virtual environment with that release and
this checkout, and runs the reproduction there:

* once per resource of the entry, with ``leakcheck_library_leaks = false``: the leak is red, or unclosed, and fits the entry,
  and the control is not red;
* once with the default settings: the leak is yellow, for the reason that the entry gives. Where the reproduction has a
  test that keeps what the package makes in a list of its own, that test stays red.

A release of CPython is taken from the PATH or from pyenv; one that is not there is named, and is no difference.

The environments are kept in ``.venv/library-leaks``. A run takes about ten minutes, and half an hour the first time.

Usage: python ci/library_leaks.py                 (exits with 1 on any difference)
       python ci/library_leaks.py --only click-streams
       python ci/library_leaks.py --newest        (the newest releases: exits with 1 if one leaks that no entry covers, or
                                                   if an entry covers one that does not leak; of CPython, the newest
                                                   release here of each series)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

sys.path.insert(0, str(Path(__file__).with_name("bench")))

from pytest_leakcheck.baseline.library_leaks import INTERPRETER, LibraryLeak, find_range, fits, read_shipped
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.json_file import read
from subjects import constants
from venvs import PROJECT, ROOT, Absent, Missing, environment, find_interpreter, inherited, interpreters, version

# Seconds for one session with two tests; the slowest takes a quarter of it.
_LIMIT: Final = 300
_ROW: Final = "{:<30} {:<36} {:<8} {:<16} {}"


def main() -> int:
    """Print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description="Check the entries of known_libraries.json.")
    parser.add_argument(
        "--only", metavar="NAME", choices=[leak.name for leak in read_shipped()], help="this entry alone"
    )
    parser.add_argument("--newest", action="store_true", help="check the newest release of each package")
    given = parser.parse_args()
    print(_ROW.format("entry", "release", "resource", "rate", "matched"))
    status = 0
    for leak in read_shipped():
        if given.only not in (None, leak.name):
            continue
        path = ROOT / "ci" / "library_leaks" / f"test_{leak.name.replace('-', '_')}.py"
        header = constants(path.read_text(encoding="utf-8"))
        releases, needs = header["RELEASES"], header.get("NEEDS", ())
        if given.newest and leak.package == INTERPRETER:
            releases = {one.rpartition(".")[0]: f"{INTERPRETER}=={one}" for one in interpreters()}.values()
        elif given.newest:
            releases = dict.fromkeys(Requirement(one).name for one in releases)
            needs = tuple(Requirement(one).name for one in needs)
        for release in releases:
            try:
                for cells, wrong in check(leak, path, (*needs, release), newest=given.newest):
                    matched = wrong or ("yes" if cells[-1] else "no leak, not covered")
                    print(_ROW.format(leak.name, *cells, matched), flush=True)
                    status |= bool(wrong)
            except Absent as error:
                print(f"{leak.name} {release}: did not run: {error}", flush=True)
            except (Missing, subprocess.TimeoutExpired) as error:
                print(f"{leak.name} {release}: did not run: {error}", flush=True)
                status = 1
    return status


def check(
    leak: LibraryLeak, path: Path, requires: tuple[str, ...], *, newest: bool
) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield a row for each resource of an entry, and one for the default settings, each with what differs from the entry.

    A row has the release, the resource and the rate. The `newest` release may be one that the entry does not cover. Raise
    `Missing` if a package could not be installed, or a session has written no report.
    """
    environments = ROOT / ".venv" / "library-leaks"
    if leak.package == INTERPRETER:
        shown = requires[-1].replace("==", " ")
        release = shown.split()[1]
        # All entries share the environment of a release.
        tools = ("pytest>=9.0", PROJECT)
        python = environment(environments, find_interpreter(release), tools, name=f"python-{release}")
    else:
        python = environment(
            environments, sys.executable, ("pytest>=9.0", *requires, PROJECT), name=leak.name, again=newest
        )
        shown = version(python, leak.package)
    covered = find_range(leak, shown.split()[1]) is not None
    for resource in leak.resources:
        found = run(python, path, "-o", "leakcheck_library_leaks=false", f"--leakcheck-resources={resource}")
        if leak.package == INTERPRETER and not covered and "leaky" not in found:
            raise Absent("the reproduction is skipped there")
        yield (shown, resource, _rate(found)), _compare(leak, resource, found, covered=covered)
    found = run(python, path)
    yield (shown, "default", _rate(found)), _compare_default(leak, found) if covered else ""


def run(python: Path, path: Path, *arguments: str) -> dict[str, Finding]:
    """Run a reproduction, and return the finding on each test by the rest of its name: leaky, control, kept."""
    with tempfile.TemporaryDirectory() as folder:
        report, ini = Path(folder, "findings.json"), Path(folder, "pytest.ini")
        ini.write_text("[pytest]\n", encoding="utf-8")
        command = [str(python), "-m", "pytest", "-c", str(ini), "--rootdir", folder, "-p", "no:cacheprovider"]
        command += ["--leakcheck", "--leakcheck-json", str(report), *arguments, str(path)]
        done = subprocess.run(
            command, cwd=folder, env=inherited(), capture_output=True, text=True, check=False, timeout=_LIMIT
        )
        try:
            findings = read(report).findings
        except (OSError, ValueError):
            raise Missing(done.stdout[-2000:] + done.stderr[-2000:]) from None
    return {finding.test.rpartition("::test_")[2]: finding for finding in findings}


def _compare(leak: LibraryLeak, resource: str, found: Mapping[str, Finding], *, covered: bool) -> str:
    """Return how the findings on one resource differ from the entry."""
    leaky, control = found.get("leaky"), found.get("control")
    cause = leaky.culprit if leaky is not None and leaky.verdict.outcome in ("leak", "unclosed") else None
    if not covered:
        same = cause is not None and fits(leak, resource, cause)
        return "leaks as well: widen the versions" if same else ""
    if leaky is None or cause is None:
        return "does not leak"
    if control is not None and control.colour == "red":
        return "the control leaks"
    if not fits(leak, resource, cause):
        return f"other cause: {leaky.owner.name if leaky.owner else leaky.site}"
    return ""


def _compare_default(leak: LibraryLeak, found: Mapping[str, Finding]) -> str:
    """Return how the findings under default settings differ from the entry."""
    leaky, kept = found.get("leaky"), found.get("kept")
    if leaky is None or leaky.colour != "yellow" or not leaky.third_party.startswith(f"known: {leak.text}"):
        return "not known" if leaky is None else f"{leaky.colour}: {leaky.third_party or 'not known'}"
    return "hides a leak of the test's own" if kept is not None and kept.colour != "red" else ""


def _rate(found: Mapping[str, Finding]) -> str:
    leaky = found.get("leaky")
    if leaky is None or leaky.verdict.outcome == "ok":
        return ""
    return format_rate(leaky.verdict.slope, find_resource(leaky.verdict.resource).unit)


if __name__ == "__main__":
    sys.exit(main())
