"""Compare the verdicts on every case with those recorded in tests/golden/verdicts.json.

    .venv/bin/python ci/golden.py                                     compare each section that needs only the checkout
    .venv/bin/python ci/golden.py --section cases --section forms     compare only these sections
    .venv/bin/python ci/golden.py --corpus FOLDER --wild FOLDER       include cases from other folders
    .venv/bin/python ci/golden.py --section incidents --only pyav     compare the incidents with "pyav" in their names
    .venv/bin/python ci/golden.py --write --runs 3                    record what three runs report
    .venv/bin/python ci/golden.py --write --add                       add what one more run reports
    .venv/bin/python ci/golden.py --write --file tests/golden/verdicts-3.15.json    record what another Python changes

A row is the recorded outcome of one test; tests/golden/README.md describes its fields. A job is one or more pytest
sessions. Exit status: 0 if everything is as recorded, 1 if a row was added, removed or changed, 2 if a job could not be
run.
"""

# ruff: noqa: E402 - the helpers of the tests and of the bench are not installed

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
_BENCH_FOLDER: Final = ROOT / "ci" / "bench"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support"), str(_BENCH_FOLDER)]

from checkers import CHECKERS, FORM
from leakcheck_incidents.catalog import INCIDENTS
from projects import Outcome, Project
from sessions import FORMS, FORMS_ARMS, REVERSED, run_arms, write_arms
from subjects import Subject, constants, read_corpus
from venvs import PROJECT, Missing, environment
from verdict_rows import FILE, Rows, by_parameter, compare, made_with, merge, read, reduce, varied, write

SECTIONS: Final = ("cases", "forms", "corpus", "wild", "incidents")
# Soft limit of file descriptors. Some reports state when descriptors run out; with a fixed limit, these reports are the
# same on every machine.
_MAX_DESCRIPTORS: Final = 1024
# Timeout of one pytest session, in seconds. All cases in one session take four minutes, more on a busy machine.
_SESSION_TIMEOUT_SECONDS: Final = 1800.0
_SUBJECT_FORM: Final = next(one for one in CHECKERS if one.requires[-1] == PROJECT).form
# Cases of releases that need an older Python are left out: the package cannot be installed there.
_OLDEST_PYTHON: Final = (3, 11)
# Packages that are installed with every release under test; setuptools, because older releases import pkg_resources.
_COMMON_REQUIREMENTS: Final = ("pytest>=9,<10", "setuptools<81")


@dataclass(frozen=True, slots=True)
class Job:
    """One or more pytest sessions whose rows are recorded together.

    In every section but `cases`, each row name starts with `name`. `run` takes the number of the run, from 0, and returns
    the rows and the installed versions. `covers` tells whether the recorded row with this name belongs to this job.
    """

    section: str
    name: str
    run: Callable[[int], tuple[Rows, dict[str, str]]]
    covers: Callable[[str], bool]


def main() -> int:
    """Run the chosen jobs, then record or compare their rows. Return the exit status."""
    options = _create_parser().parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_DESCRIPTORS, hard))
    chosen = options.section or [name for name in SECTIONS if name not in ("corpus", "wild") or getattr(options, name)]
    jobs = [job for section in chosen for job in _list_jobs(section, options)]
    selected = [job for job in jobs if options.only in job.name]
    if not selected:
        names = ", ".join(sorted({job.name for job in jobs}))
        print(f"nothing to run: no name has {options.only!r} in it; the names are {names}", file=sys.stderr)
        return _EXIT_NOT_RUN
    began = time.monotonic()
    failed = 0
    done: list[Done] = []
    for one in _run_all(selected, options):
        if isinstance(one, str):
            print(one, flush=True)
            failed = _EXIT_NOT_RUN
            continue
        done.append(one)
        print(
            f"{one.job.section} {one.job.name}: {len(one.rows)} rows, {one.seconds:.0f} s", file=sys.stderr, flush=True
        )
        # Recorded job by job, because a whole run takes minutes and may be interrupted.
        if options.write:
            _record(one, options)
    for section in dict.fromkeys(one.job.section for one in done):
        of_section = [one for one in done if one.job.section == section]
        rows, seconds = sum(len(one.rows) for one in of_section), sum(one.seconds for one in of_section)
        print(f"{section}: {rows} rows from {len(of_section)} jobs, {seconds:.0f} s of their time")
    print(f"{time.monotonic() - began:.0f} s in all, {options.jobs} job(s) at a time, {options.runs} run(s) of each")
    if options.write:
        _drop_orphans(jobs, options.file)
        return failed
    return failed or _compare(jobs, done, options.file)


_EXIT_CHANGED: Final = 1
_EXIT_NOT_RUN: Final = 2


@dataclass(frozen=True, slots=True)
class Done:
    """A job that was run: the rows of all runs, merged; the installed versions; the seconds of all runs together."""

    job: Job
    rows: Rows
    versions: dict[str, str]
    seconds: float


def _run_all(jobs: Sequence[Job], options: argparse.Namespace) -> Iterator[Done | str]:
    """Yield the result of each job, in the order of the jobs, or a message if a job could not be run."""
    with ThreadPoolExecutor(options.jobs) as pool:
        yield from pool.map(partial(_run_job, options.runs), jobs)


def _run_job(runs: int, job: Job) -> Done | str:
    began = time.monotonic()
    try:
        done = [job.run(number) for number in range(runs)]
    except (Missing, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return f"{job.section} {job.name}: not run: {error}"
    return Done(job, merge(rows for rows, _ in done), done[-1][1], time.monotonic() - began)


def _record(done: Done, options: argparse.Namespace) -> None:
    recorded, made = read(options.file), made_with(options.file)
    section = done.job.section
    before = _recorded_rows(done.job, recorded)
    rows = merge([before, done.rows]) if options.add else done.rows
    recorded[section] = _subtract(recorded.get(section, {}), before) | rows
    made[section] = {**made.get(section, {}), **done.versions}
    write(recorded, made, options.file)


def _drop_orphans(jobs: Sequence[Job], path: Path) -> None:
    """Drop the recorded rows of cases that no longer exist, and print the fields that differed between runs."""
    recorded = read(path)
    for name in dict.fromkeys(job.section for job in jobs if job.section in recorded):
        recorded[name] = _subtract(recorded[name], _find_orphans(name, jobs, recorded))
        for field, names in varied(recorded[name]).items():
            print(f"{name}: {field} was not always the same in {len(names)} rows: {', '.join(names)}")
    write(recorded, made_with(path), path)


def _compare(jobs: Sequence[Job], done: Sequence[Done], path: Path) -> int:
    recorded = read(path)
    differences = [
        (one.job.section, diff) for one in done for diff in compare(_recorded_rows(one.job, recorded), one.rows)
    ]
    for section in dict.fromkeys(job.section for job in jobs):
        differences += [(section, one) for one in compare(_find_orphans(section, jobs, recorded), {})]
    for section, difference in differences:
        print(f"{section}: {difference}")
    print(f"{len(differences)} differences" if differences else "all as recorded")
    return _EXIT_CHANGED if differences else 0


def _recorded_rows(job: Job, recorded: Mapping[str, Rows]) -> Rows:
    return {name: row for name, row in recorded.get(job.section, {}).items() if job.covers(name)}


def _find_orphans(section: str, jobs: Sequence[Job], recorded: Mapping[str, Rows]) -> Rows:
    """Return the recorded rows of cases that no longer exist."""
    of_section = [job for job in jobs if job.section == section]
    rows = recorded.get(section, {})
    return {name: row for name, row in rows.items() if not any(job.covers(name) for job in of_section)}


def _subtract(rows: Rows, others: Rows) -> Rows:
    return {name: row for name, row in rows.items() if name not in others}


def _list_jobs(section: str, options: argparse.Namespace) -> Iterator[Job]:
    if section == "cases":
        yield Job(section, "all arms", _run_cases, lambda _name: True)
    elif section == "forms":
        yield from (_create_named_job(section, arm, partial(_run_form, arm)) for arm in FORMS_ARMS)
    elif section == "incidents":
        yield from (_create_named_job(section, name, partial(_run_incident, name)) for name in INCIDENTS)
    elif getattr(options, section) is None:
        raise SystemExit(f"the section {section} needs --{section} FOLDER")
    elif section == "corpus":
        for subject in read_corpus(options.corpus):
            yield _create_named_job(section, subject.name, partial(_run_module, options.corpus, subject))
    else:
        yield from _list_releases(options.wild, options.environments.resolve())


def _list_releases(folder: Path, environments: Path) -> Iterator[Job]:
    for path in sorted(folder.glob("*.py")):
        header = constants(path.read_text(encoding="utf-8"))
        if tuple(map(int, header["PYTHON"].split("."))) < _OLDEST_PYTHON:
            continue
        for arm in ("LEAKY", "FIXED", "CLEAN"):
            if arm in header:
                yield _create_named_job(
                    "wild", f"{path.stem} {arm.lower()}", partial(_run_release, path, header, arm, environments)
                )


def _create_named_job(section: str, name: str, run: Callable[[int], tuple[Rows, dict[str, str]]]) -> Job:
    """Return a job whose row names start with the name of the job."""

    def named(number: int) -> tuple[Rows, dict[str, str]]:
        rows, versions = run(number)
        return {f"{name} {test}".rstrip(): row for test, row in rows.items()}, versions

    return Job(section, name, named, lambda row: f"{row} ".startswith(f"{name} "))


def _run_cases(number: int) -> tuple[Rows, dict[str, str]]:
    """Run all cases in one session, as users run them; every second run goes from the last case to the first."""
    from cases.catalog import ARMS

    with _temporary_project() as project:
        write_arms(project, ARMS, REVERSED if number % 2 else "")
        return by_parameter(_read_rows(run_arms(project))), _find_versions("numpy")


def _run_form(arm: str, _number: int) -> tuple[Rows, dict[str, str]]:
    with _temporary_project() as project:
        project.load_asyncio()
        project.write("test_forms.py", FORMS.format(after=FORMS_ARMS[arm]))
        return _read_rows(_run_pytest(project)), _find_versions("pytest-asyncio")


def _run_incident(name: str, _number: int) -> tuple[Rows, dict[str, str]]:
    incident = INCIDENTS[name]
    if incident.missing:
        raise Missing(f"needs {', '.join(incident.missing)}")
    with _temporary_project() as project:
        rows = _read_rows(_run_pytest(project, "--pyargs", incident.tests))
    distributions = importlib.metadata.packages_distributions()
    return rows, _find_versions(*(distributions[module][0] for module in incident.needs))


def _run_module(folder: Path, subject: Subject, _number: int) -> tuple[Rows, dict[str, str]]:
    return _run_subject(folder, subject.module, sys.executable, {}, heavy=subject.heavy), _find_versions("numpy")


def _run_release(
    path: Path, header: Mapping[str, Any], arm: str, environments: Path, _number: int
) -> tuple[Rows, dict[str, str]]:
    """Run a module in a separate environment, against one release of a library.

    The module states what it needs in constants. An arm is one of its variants, each with its own release:

        LEAKY, FIXED: requirements of this arm, as one string separated by spaces.
        CLEAN: requirements of this arm, as a list.
        EXTRA: further requirements, as a list.
        PYTHON: version of the interpreter.
        ENV: environment variables.
    """
    own = header[arm] if arm == "CLEAN" else header[arm].split()
    requires = (*own, *header.get("EXTRA", ()), *_COMMON_REQUIREMENTS, PROJECT)
    python = environment(environments, _find_interpreter(header["PYTHON"]), requires)
    variables = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", **header.get("ENV", {})}
    versions = {f"{path.stem} {arm.lower()}": f"{' '.join(own)} on Python {header['PYTHON']}"}
    return _run_subject(path.parent, path.stem, str(python), variables), versions


def _run_subject(folder: Path, module: str, python: str, variables: Mapping[str, str], *, heavy: bool = False) -> Rows:
    """Run a module with ``iterate()`` in the test file that ci/bench/peers.py uses; one call is one iteration."""
    with _temporary_project() as project:
        project.write(f"{FORM}.py", _SUBJECT_FORM)
        run = {"module": module, "arm": "", "heavy": heavy, "calls": str(project.folder / "calls")}
        path = os.pathsep.join((str(_BENCH_FOLDER), str(folder.resolve())))
        outcome = _run_pytest(project, python=python, PYTHONPATH=path, BENCH_RUN=json.dumps(run), **variables)
        (row,) = _read_rows(outcome).values()
        return {"": row}


def _find_interpreter(version: str) -> str:
    found = sys.executable if sys.version.startswith(f"{version}.") else shutil.which(f"python{version}")
    if found is None:
        raise Missing(f"needs Python {version}")
    return found


@contextmanager
def _temporary_project() -> Iterator[Project]:
    """Create a project in a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        yield Project(Path(folder))


def _run_pytest(project: Project, *arguments: str, python: str = sys.executable, **variables: Any) -> Outcome:
    temporary = project.folder / "tmp"
    temporary.mkdir()
    return project.run(
        "--tb=short", *arguments, python=python, limit=_SESSION_TIMEOUT_SECONDS, TMPDIR=str(temporary), **variables
    )


def _read_rows(outcome: Outcome) -> Rows:
    if not outcome.findings:
        raise RuntimeError(f"no verdicts:\n{outcome.text[-2000:]}")
    return reduce(outcome.findings)


def _find_versions(*distributions: str) -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in (*distributions, "pytest")}
    return {"python": platform.python_version(), **found}


def _create_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare the verdicts on every case with those that are recorded.")
    parser.add_argument("--only", default="", metavar="TEXT", help="what has this in its name: a case, an incident")
    help_ = "only this; may be repeated (default: all, but those whose folder is not given)"
    parser.add_argument("--section", action="append", choices=SECTIONS, help=help_)
    parser.add_argument("--corpus", type=Path, metavar="FOLDER", help="cases, a module each: see ci/bench/subjects.py")
    parser.add_argument("--wild", type=Path, metavar="FOLDER", help="cases over releases, which are installed for them")
    place = ROOT / ".venv" / "golden"
    parser.add_argument("--environments", type=Path, default=place, metavar="FOLDER", help="where they are installed")
    parser.add_argument(
        "--write", action="store_true", help="record what is found, in place of what was recorded of it"
    )
    parser.add_argument("--add", action="store_true", help="with --write: what was recorded stays right as well")
    parser.add_argument("--runs", type=int, default=1, help="how often each is run; all that is seen is found")
    parser.add_argument("--jobs", type=int, default=2, help="sessions at a time (default: 2)")
    parser.add_argument("--file", type=Path, default=FILE, help="where it is recorded")
    return parser


if __name__ == "__main__":
    sys.exit(main())
