"""The verdicts on every case, compared with those that are recorded in tests/golden/verdicts.json.

    .venv/bin/python ci/golden.py                                     compares what needs nothing but the checkout
    .venv/bin/python ci/golden.py --section cases --section forms     some of it
    .venv/bin/python ci/golden.py --corpus FOLDER --wild FOLDER       other cases too
    .venv/bin/python ci/golden.py --section incidents --only pyav     one incident
    .venv/bin/python ci/golden.py --write --runs 3                    records what three runs have seen
    .venv/bin/python ci/golden.py --write --add                       adds what one more run has seen

Exit status: 0 where all is as recorded, 1 where a row is added, removed or changed, 2 where something could not be run.
tests/golden/README.md says what a row holds.
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
_BENCH: Final = ROOT / "ci" / "bench"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support"), str(_BENCH)]

from checkers import CHECKERS, FORM, PROJECT
from leakcheck_incidents.catalog import INCIDENTS
from projects import Outcome, Project
from sessions import ARMS_CONFTEST, ARMS_SESSION, FORMS, FORMS_ARMS, HURRIED, REVERSED
from subjects import Subject, constants, read_corpus
from venvs import Missing, environment
from verdict_rows import FILE, Rows, by_parameter, compare, made_with, merge, read, reduce, varied, write

SECTIONS: Final = ("cases", "forms", "corpus", "wild", "incidents")
# Reports mean the same on every machine: descriptors run out after so many.
_DESCRIPTORS: Final = 1024
# For one session of pytest, in seconds. All cases in one take four minutes, on a busy machine more.
_LIMIT: Final = 1800.0
_FORM: Final = next(one for one in CHECKERS if one.requires[-1] == PROJECT).settings["default"].form
# As fixtures/conftest.py loads for all of them.
_PLUGINS: Final = ("-p", "leakcheck_incidents.material", "-p", "leakcheck_incidents.simulated")
# What a release of these cases may need beside itself: older ones import pkg_resources.
_BESIDE: Final = ("pytest>=9,<10", "setuptools<81")


@dataclass(frozen=True, slots=True)
class Job:
    """A session of pytest, or several.

    Attributes:
        section: Where its rows belong.
        name: What the output calls it. Its rows have it before theirs, if there are other jobs in the section.
        run: Gives its rows, and the versions of what it ran with; given the number of the run, from 0.
        covers: Whether a recorded row is one of its own.
    """

    section: str
    name: str
    run: Callable[[int], tuple[Rows, dict[str, str]]]
    covers: Callable[[str], bool]


def main() -> int:
    options = _parser().parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, hard))
    chosen = options.section or [name for name in SECTIONS if name not in ("corpus", "wild") or getattr(options, name)]
    jobs = [job for section in chosen for job in _jobs(section, options)]
    selected = [job for job in jobs if options.only in job.name]
    began = time.monotonic()
    failed = 0
    done: list[Done] = []
    for one in _run_all(selected, options):
        if isinstance(one, str):
            print(one, flush=True)
            failed = _FAILED
            continue
        done.append(one)
        print(
            f"{one.job.section} {one.job.name}: {len(one.rows)} rows, {one.seconds:.0f} s", file=sys.stderr, flush=True
        )
        # What an interrupted run has found is kept: the whole takes minutes.
        if options.write:
            _record(one, options)
    for section in dict.fromkeys(one.job.section for one in done):
        of_section = [one for one in done if one.job.section == section]
        rows, seconds = sum(len(one.rows) for one in of_section), sum(one.seconds for one in of_section)
        print(f"{section}: {rows} rows from {len(of_section)} jobs, {seconds:.0f} s of their time")
    print(f"{time.monotonic() - began:.0f} s in all, {options.jobs} job(s) at a time, {options.runs} run(s) of each")
    if options.write:
        _tidy(jobs, options.file)
        return failed
    return failed or _compare(jobs, done, options.file)


_CHANGED: Final = 1
_FAILED: Final = 2


@dataclass(frozen=True, slots=True)
class Done:
    """A job that was run.

    Attributes:
        job: Which.
        rows: What was seen in any of its runs.
        versions: Of what it ran with.
        seconds: What all runs took.
    """

    job: Job
    rows: Rows
    versions: dict[str, str]
    seconds: float


def _run_all(jobs: Sequence[Job], options: argparse.Namespace) -> Iterator[Done | str]:
    """Each that could be run, in their order; or why it could not."""
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
    before = _recorded_of(done.job, recorded)
    rows = merge([before, done.rows]) if options.add else done.rows
    recorded[section] = _without(recorded.get(section, {}), before) | rows
    made[section] = {**made.get(section, {}), **done.versions}
    write(recorded, made, options.file)


def _tidy(jobs: Sequence[Job], path: Path) -> None:
    """Drop the rows of cases that are no more, and say where runs differed."""
    recorded = read(path)
    for name in dict.fromkeys(job.section for job in jobs if job.section in recorded):
        recorded[name] = _without(recorded[name], _orphans(name, jobs, recorded))
        for field, names in varied(recorded[name]).items():
            print(f"{name}: {field} was not always the same in {len(names)} rows: {', '.join(names)}")
    write(recorded, made_with(path), path)


def _compare(jobs: Sequence[Job], done: Sequence[Done], path: Path) -> int:
    recorded = read(path)
    differences = [
        (one.job.section, diff) for one in done for diff in compare(_recorded_of(one.job, recorded), one.rows)
    ]
    for section in dict.fromkeys(job.section for job in jobs):
        differences += [(section, one) for one in compare(_orphans(section, jobs, recorded), {})]
    for section, difference in differences:
        print(f"{section}: {difference}")
    print(f"{len(differences)} differences" if differences else "all as recorded")
    return _CHANGED if differences else 0


def _recorded_of(job: Job, recorded: Mapping[str, Rows]) -> Rows:
    return {name: row for name, row in recorded.get(job.section, {}).items() if job.covers(name)}


def _orphans(section: str, jobs: Sequence[Job], recorded: Mapping[str, Rows]) -> Rows:
    """Rows of cases that are no more."""
    of_section = [job for job in jobs if job.section == section]
    rows = recorded.get(section, {})
    return {name: row for name, row in rows.items() if not any(job.covers(name) for job in of_section)}


def _without(rows: Rows, others: Rows) -> Rows:
    return {name: row for name, row in rows.items() if name not in others}


def _jobs(section: str, options: argparse.Namespace) -> Iterator[Job]:
    if section == "cases":
        yield Job(section, "all arms", _cases, lambda _name: True)
    elif section == "forms":
        yield from (_named(section, arm, partial(_form, arm)) for arm in FORMS_ARMS)
    elif section == "incidents":
        yield from (_named(section, name, partial(_incident, name)) for name in INCIDENTS)
    elif getattr(options, section) is None:
        raise SystemExit(f"the section {section} needs --{section} FOLDER")
    elif section == "corpus":
        for subject in read_corpus(options.corpus):
            yield _named(section, subject.name, partial(_module, options.corpus, subject))
    else:
        yield from _releases(options.wild, options.environments.resolve())


def _releases(folder: Path, environments: Path) -> Iterator[Job]:
    for path in sorted(folder.glob("*.py")):
        header = constants(path.read_text(encoding="utf-8"))
        for arm in ("LEAKY", "FIXED", "CLEAN"):
            if arm in header:
                yield _named("wild", f"{path.stem} {arm.lower()}", partial(_release, path, header, arm, environments))


def _named(section: str, name: str, run: Callable[[int], tuple[Rows, dict[str, str]]]) -> Job:
    """A job whose rows have its name before theirs."""

    def named(number: int) -> tuple[Rows, dict[str, str]]:
        rows, versions = run(number)
        return {f"{name} {test}".rstrip(): row for test, row in rows.items()}, versions

    return Job(section, name, named, lambda row: f"{row} ".startswith(f"{name} "))


def _cases(number: int) -> tuple[Rows, dict[str, str]]:
    """All in one session, as users have them: every second run from the last to the first."""
    from cases.catalog import ARMS

    with _project() as project:
        project.write("conftest.py", ARMS_CONFTEST + HURRIED + (REVERSED if number % 2 else ""))
        project.write("test_it.py", ARMS_SESSION.format(arms=list(ARMS)))
        return by_parameter(_rows(_run(project, PYTHONPATH=str(ROOT / "tests")))), _versions("numpy")


def _form(arm: str, _number: int) -> tuple[Rows, dict[str, str]]:
    with _project() as project:
        project.load_asyncio()
        project.write("test_forms.py", FORMS.format(after=FORMS_ARMS[arm]))
        return _rows(_run(project)), _versions("pytest-asyncio")


def _incident(name: str, _number: int) -> tuple[Rows, dict[str, str]]:
    incident = INCIDENTS[name]
    if incident.missing:
        raise Missing(f"needs {', '.join(incident.missing)}")
    with _project() as project:
        rows = _rows(_run(project, *_PLUGINS, "--pyargs", incident.tests))
    distributions = importlib.metadata.packages_distributions()
    return rows, _versions(*(distributions[module][0] for module in incident.needs))


def _module(folder: Path, subject: Subject, _number: int) -> tuple[Rows, dict[str, str]]:
    return _subject(folder, subject.module, sys.executable, {}, heavy=subject.heavy), _versions("numpy")


def _release(
    path: Path, header: Mapping[str, Any], arm: str, environments: Path, _number: int
) -> tuple[Rows, dict[str, str]]:
    """A module over a release that is installed for it. It says which, and for which interpreter:

    LEAKY and FIXED, or CLEAN: requirements, the first two as words, the last as a list; EXTRA, a list: others; PYTHON:
    the version; ENV: variables of the environment.
    """
    own = header[arm] if arm == "CLEAN" else header[arm].split()
    requires = (*own, *header.get("EXTRA", ()), *_BESIDE, PROJECT)
    python = environment(environments, _interpreter(header["PYTHON"]), requires)
    variables = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", **header.get("ENV", {})}
    versions = {f"{path.stem} {arm.lower()}": f"{' '.join(own)} on Python {header['PYTHON']}"}
    return _subject(path.parent, path.stem, str(python), variables), versions


def _subject(folder: Path, module: str, python: str, variables: Mapping[str, str], *, heavy: bool = False) -> Rows:
    """A module with ``iterate()``, as ci/bench/peers.py has it run: one call is one iteration."""
    with _project() as project:
        project.write(f"{FORM}.py", _FORM)
        run = {"module": module, "arm": "", "heavy": heavy, "calls": str(project.folder / "calls")}
        path = os.pathsep.join((str(_BENCH), str(folder.resolve())))
        outcome = _run(project, python=python, PYTHONPATH=path, BENCH_RUN=json.dumps(run), **variables)
        (row,) = _rows(outcome).values()
        return {"": row}


def _interpreter(version: str) -> str:
    found = sys.executable if sys.version.startswith(f"{version}.") else shutil.which(f"python{version}")
    if found is None:
        raise Missing(f"needs Python {version}")
    return found


@contextmanager
def _project() -> Iterator[Project]:
    """A project in a folder of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        yield Project(Path(folder))


def _run(project: Project, *arguments: str, python: str = sys.executable, **variables: Any) -> Outcome:
    temporary = project.folder / "tmp"
    temporary.mkdir()
    return project.run("--tb=short", *arguments, python=python, limit=_LIMIT, TMPDIR=str(temporary), **variables)


def _rows(outcome: Outcome) -> Rows:
    if not outcome.findings:
        raise RuntimeError(f"no verdicts:\n{outcome.text[-2000:]}")
    return reduce(outcome.findings)


def _versions(*distributions: str) -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in (*distributions, "pytest")}
    return {"python": platform.python_version(), **found}


def _parser() -> argparse.ArgumentParser:
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
