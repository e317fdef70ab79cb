"""Count how many leaks of tests/cases a screen finds, and how many of the clean arms it judges in 4 iterations.

A test without a mark is screened under ``--leakcheck-scope=all`` (`judge.screening`). All arms run in one session, as a
user runs tests. Print the leaks that were missed, and exit 1 if a clean arm is red.
"""

# ruff: noqa: E402 - the helpers of the tests are not installed

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "support")]

from cases.catalog import ARMS
from projects import UNNAMED
from pytest_leakcheck.judge.screening import ITERATIONS
from pytest_leakcheck.model.finding import RED
from sessions import judge_arms


def main() -> int:
    """Run all arms without a mark, and print what the screen found."""
    found = judge_arms(ARMS, "--leakcheck-scope=all", conftest=UNNAMED, marked=False)
    leaky = [name for name, (case, call) in ARMS.items() if call is case.leaky and case.verdict != "inconclusive"]
    clean = [name for name, (case, call) in ARMS.items() if call is not case.leaky]
    red = {name for name, verdicts in found.items() if any(one["verdict"] in RED for one in verdicts)}
    missed = [name for name in leaky if name not in red]
    false = [name for name in clean if name in red]
    short = [name for name in clean if found[name] and max(one["iterations"] for one in found[name]) <= ITERATIONS]
    print(f"found: {len(leaky) - len(missed)} of {len(leaky)} leaks; missed: {', '.join(missed)}")
    print(
        f"clean: {len(short)} of {len(clean)} judged in at most {ITERATIONS} iterations; red: {', '.join(false) or 'none'}"
    )
    return bool(false)


if __name__ == "__main__":
    sys.exit(main())
