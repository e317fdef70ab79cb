"""Check each entry of ``known_libraries.json``: the releases that it covers leak, and the finding fits the entry.

For each release that a reproduction in ``ci/library_leaks`` names, this makes a virtual environment with that release and
this checkout, and runs the reproduction there:

* once per resource of the entry, with ``leakcheck_library_leaks = false``: the leak is red and fits the entry, and the
  control is not red;
* once with the default settings: the leak is yellow, for the reason that the entry gives. Where the reproduction has a
  test that keeps what the package makes in a list of its own, that test stays red.

The environments are kept in ``.venv/library-leaks``. A run takes about ten minutes, and half an hour the first time.

Usage: python ci/library_leaks.py                 (exits with 1 on any difference)
       python ci/library_leaks.py --only click-streams
       python ci/library_leaks.py --newest        (the newest releases: exits with 1 if one leaks that no entry covers, or
                                                   if an entry covers one that does not leak)
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from pytest_leakcheck.baseline.library_leaks import LibraryLeak, fits, read_shipped
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.json_file import read

ROOT: Final = Path(__file__).parents[1]
REPRODUCTIONS: Final = ROOT / "ci" / "library_leaks"
ENVIRONMENTS: Final = ROOT / ".venv" / "library-leaks"
# Seconds for one session with two tests; the slowest takes a quarter of it.
_LIMIT: Final = 300
_ROW: Final = "{:<30} {:<26} {:<8} {:<16} {}"


class SetUpError(Exception):
    """An environment could not be made, or a session has written no report; the message has what was printed."""


@dataclass(frozen=True)
class Row:
    """A line of the table; `wrong` says what differs from the entry, and is empty if nothing does."""

    name: str
    release: str
    resource: str
    rate: str
    wrong: str

    def __str__(self) -> str:
        matched = self.wrong or ("yes" if self.rate else "no leak, not covered")
        return _ROW.format(self.name, self.release, self.resource, self.rate, matched).rstrip()


def reproduction_of(leak: LibraryLeak) -> Path:
    """Return the file that shows a leak."""
    return REPRODUCTIONS / f"test_{leak.name.replace('-', '_')}.py"


def read_constant(path: Path, name: str) -> tuple[str, ...]:
    """Return a constant of a reproduction, without importing what it needs; empty if it has none of that name."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name:
            found: tuple[str, ...] = ast.literal_eval(node.value)
            return found
    return ()


def make_environment(name: str, requirements: tuple[str, ...], *, again: bool = False) -> Path:
    """Return the Python of an environment with these packages and this checkout, made unless it is there.

    Args:
        name: The name of its folder.
        requirements: What to install.
        again: Make it even if it is there, because the requirements name no releases.

    Raises:
        SetUpError: A package could not be installed.
    """
    folder = ENVIRONMENTS / name
    python, mark = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(("pytest>=9.0", "psutil>=6.0", *requirements))
    if not again and mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return python
    venv.create(folder, with_pip=True, clear=True)
    for arguments in (wanted.splitlines(), ["--no-deps", "--editable", str(ROOT)]):
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SetUpError(done.stderr.strip())
    mark.write_text(wanted, encoding="utf-8")
    return python


def run(python: Path, path: Path, *arguments: str) -> dict[str, Finding]:
    """Run a reproduction, and return the finding on each test by the first words of its name: ``leaky``, ``control``.

    Raises:
        SetUpError: There was no report within `_LIMIT` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, ini = Path(folder, "findings.json"), Path(folder, "pytest.ini")
        ini.write_text("[pytest]\n", encoding="utf-8")
        command = [
            str(python),
            "-m",
            "pytest",
            "-c",
            str(ini),
            "--rootdir",
            folder,
            "-p",
            "no:cacheprovider",
            "--leakcheck",
        ]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
        done = subprocess.run(
            [*command, "--leakcheck-json", str(report), *arguments, str(path)],
            cwd=folder,
            env=clean,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT,
        )
        try:
            findings = read(report).findings
        except (OSError, ValueError):
            raise SetUpError(done.stdout[-2000:] + done.stderr[-2000:]) from None
    return {finding.test.rpartition("::test_")[2]: finding for finding in findings}


def check(leak: LibraryLeak, release: str, *, newest: bool = False) -> Iterator[Row]:
    """Yield a row for each resource of an entry, and one for the default settings.

    Args:
        leak: The entry.
        release: The requirement to install.
        newest: The release may be one that the entry does not cover.
    """
    path = reproduction_of(leak)
    name = f"{leak.name}-newest" if newest else f"{leak.name}-{release.partition('==')[2]}"
    needs = read_constant(path, "NEEDS")
    if newest:
        needs = tuple(Requirement(one).name for one in needs)
    try:
        python = make_environment(name, (release, *needs), again=newest)
        shown = f"{leak.package}=={_installed(python, leak.package)}"
        covered = SpecifierSet(leak.versions).contains(shown.partition("==")[2], prereleases=True)
        for resource in leak.resources:
            found = run(python, path, "-o", "leakcheck_library_leaks=false", f"--leakcheck-resources={resource}")
            wrong = _compare(leak, resource, found, covered=covered)
            yield Row(leak.name, shown, resource, _rate(found.get("leaky")), wrong)
        found = run(python, path)
        wrong = _compare_default(leak, found) if covered else ""
        yield Row(leak.name, shown, "default", _rate(found.get("leaky")), wrong)
    except (SetUpError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        yield Row(leak.name, release, "", "", "did not run")


def _installed(python: Path, package: str) -> str:
    command = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return subprocess.run([python, "-c", command, package], capture_output=True, text=True, check=True).stdout.strip()


def _compare(leak: LibraryLeak, resource: str, found: dict[str, Finding], *, covered: bool) -> str:
    """Return how the findings on one resource differ from the entry."""
    leaky, control = found.get("leaky"), found.get("control")
    cause = leaky.culprit if leaky is not None and leaky.colour == "red" else None
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


def _compare_default(leak: LibraryLeak, found: dict[str, Finding]) -> str:
    """Return how the findings under default settings differ from the entry."""
    leaky, kept = found.get("leaky"), found.get("kept")
    if leaky is None or leaky.colour != "yellow" or leaky.third_party != f"known: {leak}":
        return "not known" if leaky is None else f"{leaky.colour}: {leaky.third_party or 'not known'}"
    return "hides a leak of the test's own" if kept is not None and kept.colour != "red" else ""


def _rate(finding: Finding | None) -> str:
    if finding is None or finding.verdict.outcome == "ok":
        return ""
    return f"{format_rate(finding.verdict.slope, find_resource(finding.verdict.resource).unit)}"


def main() -> int:
    """Print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description="Check the entries of known_libraries.json.")
    parser.add_argument("--only", metavar="NAME", help="check this entry alone")
    parser.add_argument("--newest", action="store_true", help="check the newest release of each package")
    given = parser.parse_args()
    leaks = [leak for leak in read_shipped() if given.only in (None, leak.name)]
    if not leaks:
        parser.error(f"--only {given.only}: is not one of {', '.join(leak.name for leak in read_shipped())}")
    print(_ROW.format("entry", "release", "resource", "rate", "matched"))
    wrong = 0
    for leak in leaks:
        releases = read_constant(reproduction_of(leak), "RELEASES")
        for release in dict.fromkeys(Requirement(one).name for one in releases) if given.newest else releases:
            for row in check(leak, release, newest=given.newest):
                print(row, flush=True)
                wrong += bool(row.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
