"""A table of mutants and the tests that must be red for them, run in one process of its own: `run_mutants`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from projects import ROOT

# The module, what stands there, what is put in its place, and the tests, by file and words; without a module, no change.
Table: TypeAlias = Mapping[str, tuple[str, str, str, str]]


def exit_statuses(
    table: Table, package: str, files: str, always: Sequence[tuple[str, str, str]] = ()
) -> dict[str, int]:
    """Of pytest, for each mutant.

    Args:
        table: The mutants, by what is done wrong.
        package: Where their modules are.
        files: What the names of their test files begin with, below tests/incidents.
        always: What is replaced in each of them as well: the module, what stands there, and what is put in its place.
    """
    jobs = []
    for module, old, new, tests in table.values():
        file, words = tests.split(": ")
        arguments = ["-qx", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
        arguments += ["-k", words] if words else []
        arguments.append(f"tests/incidents/{files}_{file}.py")
        jobs.append({"module": module and f"{package}.{module}", "old": old, "new": new, "arguments": arguments})
    done = subprocess.run(
        [sys.executable, "-B", "tests/support/run_mutants.py"],
        input=json.dumps({"always": always, "jobs": jobs}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(table, json.loads(done.stdout.splitlines()[-1]), strict=True))
