"""A stated sensitivity is never false: a leak of 1.5 times what a clean test states is found, in every resource."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from projects import ROOT, UNNAMED, Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")

BODIES = ("fast", "busy", "slow", "slow_and_busy")
RESOURCES = ("fd", "thread", "process", "shm", "disk", "task", "object", "block", "heap", "arrow", "mmap", "rss")
# Without a mark, a test is screened; with this mark, it is judged in full, and rss too with budgets of its own.
MARKS = {
    "screened": "",
    "marked": "@pytest.mark.leakcheck",
    "budgeted": "\n".join(f"@pytest.mark.{name}_budget" for name in RESOURCES),
}


def run(project: Project, tests: dict[str, tuple[str, str, str]]) -> Outcome:
    """Judge tests, each given by its name: its mark, its body, and the arguments of the leak that is planted."""
    path = project.copy("program_with_planted_leaks.py")
    text = path.read_text(encoding="utf-8")
    for name, (mark, body, arguments) in tests.items():
        leak = f"leak_{name} = planted({arguments})\n\n\n" if arguments else ""
        text += f"\n\n{leak}{MARKS[mark]}\ndef test_{name}():\n    {body}()\n"
        text += f"    leak_{name}()\n" if arguments else ""
    path.write_text(text, encoding="utf-8")
    project.write("conftest.py", UNNAMED)
    # On a busy machine, a test that leaks processes takes longer than the usual time.
    return project.run(
        "--leakcheck-scope=all", "--leakcheck-max-time=300", limit=1800, PYTHONPATH=str(Path(ROOT, "ci", "bench"))
    )


def floors_of(project: Project, works: list[tuple[str, str]]) -> dict[tuple[str, str, str], float]:
    """The floor that a clean test states, by its mark, its body and the resource."""
    ran = run(project, {f"{mark}_{body}": (mark, body, "") for mark, body in works})
    found = {}
    for mark, body in works:
        for resource in RESOURCES:
            one = ran.finding(f"::test_{mark}_{body}", resource)
            assert one["verdict"] == "ok", one
            if one["floor"] is not None:
                found[mark, body, resource] = one["floor"]
    return found


def leaks_of(mark: str, resource: str, floor: float, seed: int) -> list[str]:
    """Arguments for leaks of 1.5 times a floor; that of every second call is planted in this rhythm."""
    leaks = [f"{resource!r}, {1.5 * floor}"]
    if floor == 0.5:
        leaks.append(f"{resource!r}, 0.5, period=2")
        if mark != "screened":
            leaks.append(f"{resource!r}, 0.75, Random({seed})")
    else:
        leaks.append(f"{resource!r}, {1.5 * floor}, period=2")
    return leaks


def missed(project: Project, floors: dict[tuple[str, str, str], float]) -> tuple[int, list[object]]:
    """The number of leaks planted, and those that were not found."""
    tests: dict[str, tuple[str, str, str]] = {}
    for (mark, body, resource), floor in floors.items():
        kinds = (resource, "cycle") if resource == "fd" else (resource,)
        for leak in (one for kind in kinds for one in leaks_of(mark, kind, floor, len(tests))):
            tests[f"{resource}_{len(tests)}"] = (mark, body, leak)
    ran = run(project, tests)
    lost: list[object] = []
    for name, test in tests.items():
        one = ran.finding(f"::test_{name}", name.partition("_")[0])
        if one["verdict"] != ("unclosed" if "cycle" in test[2] else "leak"):
            lost.append((test, one["verdict"], one["reason"]))
    return len(tests), lost


def test_a_leak_of_the_stated_size_is_found(project: Project) -> None:
    """A sample, with work that leaves free blocks of other sizes."""
    floors = floors_of(project, [("screened", "busy")])
    assert missed(project, {one: floor for one, floor in floors.items() if one[2] in ("fd", "heap")}) == (6, [])


@pytest.mark.laboratory
def test_a_leak_of_the_stated_size_is_found_in_every_resource(project: Project) -> None:
    """All but that of devices."""
    floors = floors_of(project, [(mark, body) for mark in MARKS for body in BODIES])
    assert {name for _mark, _body, name in floors} == set(RESOURCES)
    total = 0
    lost: list[object] = []
    for resource in RESOURCES:
        count, some = missed(project, {one: floor for one, floor in floors.items() if one[2] == resource})
        total, lost = total + count, lost + some
    assert not lost, lost
    assert total >= 200
