"""The shell command: ``pytest-leakcheck repro`` runs a bundled incident and checks that it came out as it must."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.resources import find_resource
from pytest_leakcheck.units import format_amount

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Expectation, Incident

# As pytest's own, where one arm is run: 0 green, 1 red. With both arms 0 says that each came out as it must.
AS_IT_MUST: Final = 0
NOT_AS_IT_MUST: Final = 1
WRONG_USE: Final = 2
SOMETHING_MISSING: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911 - one for each wrong use
    """Run the command. Returns the exit status."""
    from leakcheck_incidents.batch_size import commands as factors
    from leakcheck_incidents.catalog import INCIDENTS

    parser = argparse.ArgumentParser(
        prog="pytest-leakcheck", description="Leaks of real trainings, to see for yourself."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    repro = commands.add_parser("repro", help="list the incidents, or run one: the leaky arm, then the mended one")
    repro.add_argument("incident", nargs="?", metavar="INCIDENT", help="its name; left out, all are listed")
    repro.add_argument(
        "--arm", metavar="ARM", help="leaky, fixed or another of its arms; alone it exits as pytest does"
    )
    factors.add_parser(commands)
    given = parser.parse_args(arguments)
    if given.command == "factors":
        return factors.run(given)
    if given.incident is None:
        wide = max(map(len, INCIDENTS)) + 2
        for incident in INCIDENTS.values():
            print(f"{incident.name:<{wide}}{incident.title}")
            print(f"{'':<{wide}}{_state(incident)}")
        return AS_IT_MUST
    if given.incident not in INCIDENTS:
        known = ", ".join(INCIDENTS)
        print(f"pytest-leakcheck repro {given.incident}: no such incident; there are: {known}", file=sys.stderr)
        return WRONG_USE
    incident = INCIDENTS[given.incident]
    if given.arm is not None and given.arm not in incident.arms:
        known = ", ".join(incident.arms)
        print(
            f"pytest-leakcheck repro {incident.name} --arm {given.arm}: no such arm; there are: {known}",
            file=sys.stderr,
        )
        return WRONG_USE
    if incident.missing:
        print(f"{incident.name}: {_state(incident)}", file=sys.stderr)
        return SOMETHING_MISSING
    if given.arm is not None:
        status, _findings = _run(incident, given.arm)
        return status
    came_out = [_run_and_check(incident, arm) for arm in incident.arms]
    return AS_IT_MUST if all(came_out) else NOT_AS_IT_MUST


def _state(incident: Incident) -> str:
    if incident.missing:
        return f"needs {' and '.join(incident.missing)}: pip install 'pytest-leakcheck[{incident.extra}]'"
    return f"ready: pytest-leakcheck repro {incident.name}"


def _run_and_check(incident: Incident, arm: str) -> bool:
    expected = incident.arms[arm]
    colour = "green" if all(one.verdict == "ok" for one in expected) else "red"
    print(f"\n=== {incident.name}, {arm} arm: must come out {colour} ===\n", flush=True)
    _status, findings = _run(incident, arm)
    print()
    right = [_check(incident, one, findings) for one in expected]
    print(f"\n{arm} arm: {sum(right)} of {len(right)} as it must be", flush=True)
    return all(right)


def _run(incident: Incident, arm: str) -> tuple[int, list[dict[str, Any]]]:
    """One arm in a process of its own, in an empty folder, so that no configuration of the user's plays a part."""
    with tempfile.TemporaryDirectory(prefix="leakcheck-") as folder, _soft_limits(incident.limits):
        Path(folder, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        report = Path(folder, "findings.json")
        command = [sys.executable, "-m", "pytest", "--leakcheck", f"--leakcheck-json={report}", "-q"]
        command += ["--no-header", "-p", "no:cacheprovider", "-p", "leakcheck_incidents.material"]
        command += [word for plugin in incident.plugins for word in ("-p", plugin)]
        command += ["--leakcheck-summary=all", "-k", arm, "--pyargs", incident.tests]
        # The command is made of this module's own words and the catalogue's.
        status = subprocess.run(command, cwd=folder, check=False).returncode  # noqa: S603
        findings = json.loads(report.read_text(encoding="utf-8"))["findings"] if report.exists() else []
    return status, findings


@contextlib.contextmanager
def _soft_limits(limits: dict[str, int]) -> Iterator[None]:
    """Lower what the child inherits, and put it back."""
    if "fd" not in limits or sys.platform == "win32":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowered = limits["fd"] if soft == resource.RLIM_INFINITY else min(limits["fd"], soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _check(incident: Incident, expected: Expectation, findings: list[dict[str, Any]]) -> bool:
    found = next(
        (one for one in findings if expected.test in one["test"] and one["resource"] == expected.resource), None
    )
    what = f"{expected.test}: {expected.resource} {expected.verdict}"
    if found is None:
        print(f"  NOT as it must be  {what}: nothing was said of it")
        return False
    right = found["verdict"] == expected.verdict and (expected.slope is None or found["slope"] == expected.slope)
    print(f"  {'as it must be' if right else 'NOT as it must be'}  {what}{_figures(incident, found)}")
    if not right:
        print(f"      found {found['verdict']}: {found['reason']}")
    return right


def _figures(incident: Incident, found: dict[str, Any]) -> str:
    """The growth of a finding, and of what was seen beside it, in the terms of the incident."""
    if found["verdict"] == "ok":
        return ""
    name, count = incident.part
    unit = find_resource(found["resource"]).unit
    text = f", {format_amount(found['slope'], unit)} per {incident.iteration}"
    seen = {one["resource"]: one["slope"] / count for one in found["seen"]}
    parts = [
        f"{format_amount(seen[resource], find_resource(resource).unit)} {word}"
        for resource, word in (("heap", "of heap"), ("thread", "threads"))
        if seen.get(resource, 0) > 0 and found["verdict"] == "leak"
    ]
    return f"{text}; {' and '.join(parts)} per {name}" if parts else text


if __name__ == "__main__":
    sys.exit(main())
