"""``pytest-leakcheck repro``: list the incidents, or run one, check the result and chart it."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final, TextIO

from pytest_leakcheck.exit_codes import CANNOT, INTERRUPTED, WRONG_USE
from pytest_leakcheck.report.html.view_model import missing_for_page
from pytest_leakcheck.repro.check_expectations import ArmResult, check_arm, is_red
from pytest_leakcheck.repro.fix_diff import difference
from pytest_leakcheck.repro.run_arm import Options, Run, run_arms

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Incident

# What is run where no arm is asked for; `ALL` are those that an incident has beside them as well.
BOTH: Final = ("leaky", "fixed")
ALL: Final = "all"
# As pytest's own, where one arm is run: 0 green, 1 red. With several 0 says that each came out as it must.
AS_IT_MUST: Final = 0
NOT_AS_IT_MUST: Final = 1


class WrongUse(ValueError):
    """What was asked for cannot be done; the message says what was seen, whose it is and what to do."""


def add_parser(commands: Any) -> None:
    """Register ``repro`` with the parsers of the shell command."""
    parser = commands.add_parser("repro", help="list the incidents, or run one: the leaky arm and the fixed one")
    parser.add_argument("incident", nargs="?", metavar="INCIDENT", help="its name; left out, all are listed")
    parser.add_argument(
        "--arm", metavar="ARM", help="leaky, fixed or another of its arms, which exits as pytest does; or all of them"
    )
    parser.add_argument(
        "--iterations", type=int, metavar="N", help="so many of each test, in place of as many as needed"
    )
    parser.add_argument("--ceiling", metavar="LIMITS", default="", help="run into a limit of its own: fd=256, rss=1GiB")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, and all else to stderr")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the page there (leakcheck-repro)")
    parser.add_argument("--no-open", action="store_true", help="do not show the page in a browser")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        The exit status: with one arm pytest's; with more 0 when each came out as it must, else 1. 2 for wrong use, 3 when
        something that the incident needs is missing, 130 when interrupted.
    """
    from leakcheck_incidents.catalog import INCIDENTS

    if given.incident is None:
        print(*_listed(INCIDENTS.values()), sep="\n")
        return AS_IT_MUST
    try:
        incident, arms, options = _read(given, INCIDENTS)
        folder: Path = given.out or Path("leakcheck-repro")
        _make(folder)
    except WrongUse as error:
        print(f"pytest-leakcheck repro {given.incident}: {error}", file=sys.stderr)
        return WRONG_USE
    if incident.missing:
        print(f"{incident.name}: {_state(incident)}", file=sys.stderr)
        return CANNOT
    file = sys.stderr if given.json else sys.stdout
    results = [check_arm(incident, one, changed=options.is_changed) for one in _run(incident, arms, options, file)]
    diff = difference(incident)
    _tell(results, diff, file)
    written = _draw(incident, results, diff, folder, file)
    if given.json:
        print(json.dumps({"incident": incident.name, "arms": [one.to_json() for one in results]}, indent=2))
    interrupted = any(one.run.interrupted for one in results)
    if written is not None and not given.no_open and file.isatty() and not interrupted:
        webbrowser.open(written.resolve().as_uri())
    return _status(results, alone=len(arms) == 1)


def _read(given: argparse.Namespace, incidents: dict[str, Incident]) -> tuple[Incident, tuple[str, ...], Options]:
    """
    Raises:
        WrongUse: It names nothing that there is.
    """
    if given.incident not in incidents:
        raise WrongUse(f"no such incident; there are: {', '.join(incidents)}")
    incident = incidents[given.incident]
    if given.arm not in (None, ALL, *incident.arms):
        raise WrongUse(f"--arm {given.arm}: no such arm; there are: {', '.join(incident.arms)}; or {ALL}")
    arms = BOTH if given.arm is None else tuple(incident.arms) if given.arm == ALL else (given.arm,)
    if given.iterations is not None and given.iterations < 1:
        raise WrongUse(f"--iterations {given.iterations}: at least 1")
    if given.ceiling:
        from pytest_leakcheck.config.ceiling import CeilingError, read_option

        try:
            read_option(given.ceiling)
        except CeilingError as error:
            raise WrongUse(f"--ceiling {given.ceiling}: {error}") from None
    # A report is read in columns of 80; narrower ones would be broken by the terminal.
    options = Options(given.iterations, given.ceiling, max(80, get_terminal_size().columns), sys.stdout.isatty())
    return incident, arms, options


def _make(folder: Path) -> None:
    """
    Raises:
        WrongUse: Nothing can be written there; better now than after the runs.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WrongUse(f"--out {folder}: {error.strerror}; name a folder that can be written") from None


def _listed(incidents: Any) -> list[str]:
    wide = max(len(incident.name) for incident in incidents) + 2
    return [
        line
        for incident in incidents
        for line in (f"{incident.name:<{wide}}{incident.title}", f"{'':<{wide}}{_state(incident)}")
    ]


def _state(incident: Incident) -> str:
    if incident.missing:
        return f"needs {' and '.join(incident.missing)}: pip install 'pytest-leakcheck[{incident.extra}]'"
    return f"ready: pytest-leakcheck repro {incident.name}"


def _run(incident: Incident, arms: Sequence[str], options: Options, file: TextIO) -> tuple[Run, ...]:
    shown: set[str] = set()

    def show(arm: str, text: str) -> None:
        if arm not in shown:
            shown.add(arm)
            colour = "red" if is_red(incident, arm) else "green"
            print(f"\n=== {incident.name}, {arm} arm: must come out {colour} ===\n", file=file)
        print(text, end="", file=file, flush=True)

    return run_arms(incident, arms, options, show)


def _tell(results: Sequence[ArmResult], diff: str, file: TextIO) -> None:
    """Print what several arms came to, and the difference of the two files; of one arm, pytest has said it all."""
    if len(results) == 1:
        return
    print(file=file)
    for result in results:
        print(*(f"  {check.text}" for check in result.checks), sep="\n", file=file)
        cut = " (partial: interrupted)" if result.run.interrupted else ""
        print(f"{result.run.arm} arm: {result.right} of {len(result.checks)} as it must be{cut}\n", file=file)
    if diff:
        print(diff, file=file)


def _draw(incident: Incident, results: Sequence[ArmResult], diff: str, folder: Path, file: TextIO) -> Path | None:
    """Write the page and return its path; print why and return None if it cannot be made."""
    if missing := missing_for_page():
        print(f"no page: {missing}", file=file)
        return None
    from pytest_leakcheck.report.html.render import write_page
    from pytest_leakcheck.repro.incident_page import page_of_arms

    html = write_page(page_of_arms(incident, results, diff), folder, incident.name)
    print(html, file=file)
    return html


def _status(results: Sequence[ArmResult], *, alone: bool) -> int:
    if any(one.run.interrupted for one in results):
        return INTERRUPTED
    if alone:
        return results[0].run.status
    return AS_IT_MUST if all(one.is_as_it_must for one in results) else NOT_AS_IT_MUST
