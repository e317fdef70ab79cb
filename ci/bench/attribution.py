"""Compare the line and the owner that the plugin names for each leaky case of tests/cases with those of its source.

    .venv/bin/python ci/bench/attribution.py                                      each case once
    .venv/bin/python ci/bench/attribution.py --busy 2 -- --leakcheck-max-time=5   beside two busy processes
    .venv/bin/python ci/bench/attribution.py --only tmp_path                      the cases with "tmp_path" in their names

All cases run in one session, as a user runs tests. `Case.line` and `Case.owner` state what is right. A line is right if
its text has one of the parts that the case states; any other line is wrong. If a case states none, a
process that the plugin cannot trace creates what is retained, and no line must be named. The same holds for owners: C may
hold what is retained. Exit status 1 if a line or an owner is wrong, if a report names an object of the plugin, or if fewer
than the wanted share of the lines are right.
"""

# ruff: noqa: E402 - the helpers of the tests are not installed

from __future__ import annotations

import argparse
import linecache
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from cases.case import Case
from sessions import judge_arms

_OWN: Final = "pytest_leakcheck"
_BUSY: Final = "import sys\nwhile True: sum(range(10_000))"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the report says about one case.

    `line` and `owner` are ``right``, ``wrong``, ``unresolved``, or ``missed`` if the case is not judged as a leak. `site`
    and `held_by` are what is named, or the reason why nothing is. `is_own`: the report names an object of the plugin.
    """

    case: Case
    line: str
    owner: str
    site: str
    held_by: str
    is_own: bool

    def __str__(self) -> str:
        own = "; names an object of the plugin" if self.is_own else ""
        return f"{self.case.name}: {self.line}: {self.site}; held by {self.owner}: {self.held_by}{own}"


def read(case: Case, findings: Sequence[Mapping[str, Any]]) -> Answer:
    """Compare the findings on a case with what it states."""
    worst = next((one for one in findings if one["fingerprint"] is not None), None)
    if worst is None or worst["verdict"] != case.verdict or worst["resource"] not in case.kind:
        seen = f"{worst['resource']} {worst['verdict']} ({worst['reason']})" if worst else "no report"
        return Answer(case, "missed", "missed", seen, "", is_own=False)
    culprit = worst["culprit"]
    # The report leaves out what is empty.
    unresolved, cycle_of = culprit["unresolved"] or {}, culprit["cycle"] or ()
    line, site = "unresolved", unresolved.get("site", "")
    if worst["site"]:
        text = linecache.getline(worst["site"]["file"], worst["site"]["line"]).strip()
        line = "right" if any(part in text for part in case.line) else "wrong"
        site = f"{Path(worst['site']['file']).name}:{worst['site']['line']} {text}"
    elif not case.line:
        line = "right"
    cycle = f"cycle of {', '.join(cycle_of)}" if cycle_of else ""
    named = worst["owner"]["name"] if worst["owner"] else cycle
    owner, held_by = "unresolved", unresolved.get("owner", "")
    if named:
        owner, held_by = "right" if named.startswith(case.owner) else "wrong", named
    elif not case.owner:
        owner = "right"
    return Answer(case, line, owner, site, held_by, is_own=_names_own(worst))


def _names_own(finding: Mapping[str, Any]) -> bool:
    owner = finding["owner"] or {"name": "", "root": "", "steps": (), "holds": ""}
    texts = [owner["name"], owner["root"] or "", owner["holds"] or "", *(finding["culprit"]["cycle"] or ())]
    texts += [text for step in owner["steps"] or () for text in (step["holder"], step["via"])]
    texts += [one["what"] for one in finding["held"] or ()]
    site = (finding["site"] or {"file": ""})["file"]
    return any(_OWN in text for text in texts) or f"/{_OWN}/" in site


def run(cases: Sequence[Case], arguments: Sequence[str]) -> list[Answer]:
    """Run the leaky arms of these cases in one session."""
    found = judge_arms([f"{case.name}-leaky" for case in cases], *arguments)
    return [read(case, found[f"{case.name}-leaky"]) for case in cases]


def main() -> int:
    """Print a row for lines and one for owners, and every answer that is not right."""
    parser = argparse.ArgumentParser(description="The line and the owner that are named for each leaky case.")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this text in their names")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="keep N processes busy beside the session")
    parser.add_argument("--least", type=float, default=0.95, metavar="SHARE", help="of the lines that must be right")
    parser.add_argument("arguments", nargs="*", help="options of pytest, after --")
    options = parser.parse_args()
    # Imported only here, because it needs NumPy.
    from cases.catalog import CATALOG

    cases = [case for case in CATALOG.values() if case.leaky is not None and options.only in case.name]
    with ExitStack() as stack:
        for _ in range(options.busy):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY]))
            stack.callback(process.kill)
        answers = run(cases, options.arguments)
    for answer in answers:
        if (answer.line, answer.owner) != ("right", "right"):
            print(answer)
    print("| | cases | right | unresolved | wrong | missed |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    kinds = ("right", "unresolved", "wrong", "missed")
    for what in ("line", "owner"):
        counts = [sum(getattr(answer, what) == kind for answer in answers) for kind in kinds]
        print(f"| {what} | {len(answers)} | {' | '.join(map(str, counts))} |")
    own = sum(answer.is_own for answer in answers)
    print(f"{own} reports name an object of the plugin")
    lines = [answer.line for answer in answers]
    wrong = own or "wrong" in lines or any(answer.owner == "wrong" for answer in answers)
    return int(bool(wrong) or lines.count("right") < options.least * len(lines))


if __name__ == "__main__":
    sys.exit(main())
