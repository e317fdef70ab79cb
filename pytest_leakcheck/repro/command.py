"""Implement ``pytest-leakcheck repro``: list the bundled incidents (real leaks), or run, check and chart one."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final, TextIO

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.exit_codes import CANNOT, INTERRUPTED, WRONG_USE
from pytest_leakcheck.repro.check_expectations import ArmResult, check_arm, is_red
from pytest_leakcheck.repro.fix_diff import difference
from pytest_leakcheck.repro.run_arm import Options, Run, run_arms

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

# The arms that run by default. An arm is one variant of the incident's code. With `ALL`, any other arms of the incident
# run as well.
BOTH: Final = ("leaky", "fixed")
ALL: Final = "all"
# Exit statuses of a run of several arms: 0 if each arm met its expectations, else 1. With a single arm, the command
# exits with the status of pytest.
AS_IT_MUST: Final = 0
NOT_AS_IT_MUST: Final = 1


class WrongUse(LeakcheckError, ValueError):
    """Invalid arguments; the message gives the option, its value and what is valid."""


def add_parser(commands: Any) -> None:
    """Register ``repro`` with the argument parser of the shell command."""
    parser = commands.add_parser("repro", help="list the incidents, or run the leaky and the fixed arm of one")
    parser.add_argument(
        "incident", nargs="?", metavar="INCIDENT", help="name of the incident; without it, all are listed"
    )
    parser.add_argument(
        "--arm",
        metavar="ARM",
        help="run only this arm (leaky, fixed or another) and exit as pytest does; 'all' runs every arm",
    )
    parser.add_argument(
        "--iterations", type=int, metavar="N", help="iterations of each test (default: as many as needed)"
    )
    parser.add_argument(
        "--ceiling", metavar="LIMITS", default="", help="run the tests under resource limits, such as fd=256,rss=1GiB"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, and everything else to stderr")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the HTML page (default: leakcheck-repro)")
    parser.add_argument("--no-open", action="store_true", help="do not open the page in a browser")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command and return its exit status.

    With one arm, the exit status of pytest; with several, 0 if each arm met its expectations, else 1. 0 if the
    incidents are only listed, 2 for wrong use, 3 if a module that the incident needs is missing, 130 if interrupted.
    """
    from leakcheck_incidents.catalog import INCIDENTS

    if given.incident is None:
        print(*_list_incidents(INCIDENTS.values()), sep="\n")
        return AS_IT_MUST
    try:
        incident, arms, options = _read_arguments(given, INCIDENTS)
        folder: Path = given.out or Path("leakcheck-repro")
        _make_folder(folder)
    except WrongUse as error:
        print(f"pytest-leakcheck repro {given.incident}: {error}", file=sys.stderr)
        return WRONG_USE
    if incident.missing:
        print(f"{incident.name}: {_describe_state(incident)}", file=sys.stderr)
        return CANNOT
    file = sys.stderr if given.json else sys.stdout
    results = [
        check_arm(incident, one, changed=options.is_changed) for one in _run_and_show(incident, arms, options, file)
    ]
    diff = difference(incident)
    _print_results(results, diff, file)
    written = _write_page(incident, results, diff, folder, file)
    if given.json:
        print(json.dumps({"incident": incident.name, "arms": [one.to_json() for one in results]}, indent=2))
    interrupted = any(one.run.interrupted for one in results)
    if not given.no_open and file.isatty() and not interrupted:
        webbrowser.open(written.resolve().as_uri())
    return _exit_status(results, alone=len(arms) == 1)


def _read_arguments(
    given: argparse.Namespace, incidents: dict[str, Incident]
) -> tuple[Incident, tuple[str, ...], Options]:
    """Return the incident, its arms and the options; raise WrongUse if an argument is out of range or unknown."""
    if given.incident not in incidents:
        raise WrongUse(f"unknown incident; use one of: {', '.join(incidents)}")
    incident = incidents[given.incident]
    if given.arm not in (None, ALL, *incident.arms):
        raise WrongUse(f"--arm {given.arm}: unknown arm; use one of: {', '.join(incident.arms)} or {ALL}")
    arms = BOTH if given.arm is None else tuple(incident.arms) if given.arm == ALL else (given.arm,)
    if given.iterations is not None and given.iterations < 1:
        raise WrongUse(f"--iterations {given.iterations}: must be at least 1")
    if given.ceiling:
        from pytest_leakcheck.config.ceiling import CeilingError, read_option

        try:
            read_option(given.ceiling)
        except CeilingError as error:
            raise WrongUse(f"--ceiling {given.ceiling}: {error}") from None
    # Reports are laid out for at least 80 columns; a narrower terminal wraps them.
    options = Options(given.iterations, given.ceiling, max(80, get_terminal_size().columns), sys.stdout.isatty())
    return incident, arms, options


def _make_folder(folder: Path) -> None:
    """Create the output folder before the runs, so that a failure (WrongUse) shows early."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongUse(f"--out {folder}: {error.strerror}; use a writable folder") from None


def _list_incidents(incidents: Any) -> list[str]:
    wide = max(len(incident.name) for incident in incidents) + 2
    return [
        line
        for incident in incidents
        for line in (f"{incident.name:<{wide}}{incident.title}", f"{'':<{wide}}{_describe_state(incident)}")
    ]


def _describe_state(incident: Incident) -> str:
    if incident.missing:
        return f"needs {' and '.join(incident.missing)}: pip install 'pytest-leakcheck[{incident.extra}]'"
    return f"ready: pytest-leakcheck repro {incident.name}"


def _run_and_show(incident: Incident, arms: Sequence[str], options: Options, file: TextIO) -> tuple[Run, ...]:
    shown: set[str] = set()

    def show(arm: str, text: str) -> None:
        if arm not in shown:
            shown.add(arm)
            colour = "red" if is_red(incident, arm) else "green"
            print(f"\n=== {incident.name}, {arm} arm: expected {colour} ===\n", file=file)
        print(text, end="", file=file, flush=True)

    return run_arms(incident, arms, options, show)


def _print_results(results: Sequence[ArmResult], diff: str, file: TextIO) -> None:
    """Print the results of several arms, and the diff of the code; pytest has already reported a single arm."""
    if len(results) == 1:
        return
    print(file=file)
    for result in results:
        print(*(f"  {check.text}" for check in result.checks), sep="\n", file=file)
        cut = " (partial: interrupted)" if result.run.interrupted else ""
        print(f"{result.run.arm} arm: {result.right} of {len(result.checks)} as expected{cut}\n", file=file)
    if diff:
        print(diff, file=file)


def _write_page(incident: Incident, results: Sequence[ArmResult], diff: str, folder: Path, file: TextIO) -> Path:
    from pytest_leakcheck.report.html.render import write_page
    from pytest_leakcheck.repro.incident_page import page_of_arms

    html = write_page(page_of_arms(incident, results, diff), folder, incident.name)
    print(html, file=file)
    return html


def _exit_status(results: Sequence[ArmResult], *, alone: bool) -> int:
    if any(one.run.interrupted for one in results):
        return INTERRUPTED
    if alone:
        return results[0].run.status
    return AS_IT_MUST if all(one.is_as_it_must for one in results) else NOT_AS_IT_MUST
