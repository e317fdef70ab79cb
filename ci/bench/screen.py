"""Count how many leaks of tests/cases a screen finds, and how many of the clean arms it judges in 4 iterations.

A test without a mark is screened under ``--leakcheck-scope=all`` (`judge.screening`). All arms run in one session, as a
user runs tests. Print the leaks that were missed, and exit 1 if a clean arm is red.
"""

# ruff: noqa: E402 - the helpers of the tests are not installed

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from cases.catalog import ARMS
from projects import UNNAMED, Outcome, Project
from pytest_leakcheck.judge.screening import ITERATIONS
from pytest_leakcheck.model.verdict import RED
from sessions import ARMS_CONFTEST, ARMS_SESSION

_MARK: Final = "        @pytest.mark.leakcheck\n"
_TIMEOUT: Final = 3600.0


def main() -> int:
    """Run all arms without a mark, and print what the screen found."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder))
        project.write("conftest.py", ARMS_CONFTEST + UNNAMED)
        project.write("test_it.py", ARMS_SESSION.format(arms=list(ARMS)).replace(_MARK, ""))
        project.write("tmp/keep", "")
        temporary = str(project.folder / "tmp")
        ran = project.run(
            "--tb=no", "--leakcheck-scope=all", limit=_TIMEOUT, PYTHONPATH=str(ROOT / "tests"), TMPDIR=temporary
        )
    leaky = [name for name, (case, call) in ARMS.items() if call is case.leaky and case.verdict != "inconclusive"]
    clean = [name for name, (case, call) in ARMS.items() if call is not case.leaky]
    outcomes, iterations = _by_arm(ran)
    missed = [name for name in leaky if RED.isdisjoint(outcomes[name])]
    false = [name for name in clean if not RED.isdisjoint(outcomes[name])]
    short = [name for name in clean if iterations[name] <= ITERATIONS]
    print(f"found: {len(leaky) - len(missed)} of {len(leaky)} leaks; missed: {', '.join(missed)}")
    print(f"clean: {len(short)} of {len(clean)} judged in {ITERATIONS} iterations; red: {', '.join(false) or 'none'}")
    return bool(false)


def _by_arm(ran: Outcome) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Return the outcomes of each arm, and the most iterations that a verdict on it is based on."""
    outcomes: dict[str, set[str]] = {name: set() for name in ARMS}
    iterations = dict.fromkeys(ARMS, 0)
    for verdict in ran.findings:
        name = verdict["test"].partition("[")[2].removesuffix("]")
        outcomes[name].add(verdict["verdict"])
        iterations[name] = max(iterations[name], verdict["iterations"])
    return outcomes, iterations


if __name__ == "__main__":
    sys.exit(main())
