"""Every case of the corpus under the plugin: each leak is red, nothing else is, whatever goes on beside the session."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from cases.case import KINDS
from cases.catalog import ARMS, CATALOG
from projects import UNNAMED, Outcome, Project
from pytest_leakcheck.model.resources import RESOURCES
from sessions import REVERSED, by_arm, run_arms, write_arms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the cases are made of Linux: /proc, /dev/shm, epoll")

# When this session was collected, in seconds since the epoch.
BEGAN: Final = time.time()
# Other programs write where the cases do: at their own pace, and without a thought for who counts.
FOREIGN: Final = """
    import itertools, os, sys, threading
    from pathlib import Path
    stop, made, parent = threading.Event(), [], os.getppid()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    for number in itertools.count():
        for folder in sys.argv[1:]:
            made.append(Path(folder, f"leakcheck-{os.getpid()}-foreign-{number}"))
            made[-1].write_bytes(b"1")
        if stop.wait(0.01) or os.getppid() != parent:
            break
    for path in made:
        path.unlink(missing_ok=True)
"""
# The name of a run: what is added to conftest.py, and to the command line. No culprits are looked for.
GATE: Final = "steady"
# Wait as long as in a user's session for what ends by itself.
UNHURRIED: Final = ("-p", "no:hurried")
RUNS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    GATE: (UNNAMED, ()),
    "alone": (UNNAMED, UNHURRIED),
    "reversed": (UNNAMED + REVERSED, UNHURRIED),
    "workers": (UNNAMED, (*UNHURRIED, "-n", "2")),
    "covered": (UNNAMED, (*UNHURRIED, "--cov=cases", "--cov-report=")),
    "foreign": (UNNAMED, UNHURRIED),
}


def arms_of(name: str) -> list[str]:
    """All of them alone; then some of the cases by turns, and what foreign programs make too with these."""
    if name == GATE:
        return [arm for arm, (case, _call) in ARMS.items() if not case.timed]
    turn = list(RUNS).index(name) - 1
    shared = {"shm", "disk"} if name == "foreign" else set()
    cases = [case for at, case in enumerate(CATALOG.values()) if at % 6 == turn or not shared.isdisjoint(case.kind)]
    return list(ARMS) if name == "alone" else [arm for case in cases for arm in case.arms]


def run(project: Project, name: str) -> Outcome:
    conftest, arguments = RUNS[name]
    write_arms(project, arms_of(name), conftest)
    if name != "foreign":
        return run_arms(project, *arguments)
    script = project.write("foreign.py", FOREIGN)
    with subprocess.Popen(
        [sys.executable, script, project.folder / "tmp", "/dev/shm"], stdin=subprocess.PIPE
    ) as foreign:
        try:
            return run_arms(project, *arguments)
        finally:
            foreign.communicate()


Runs: TypeAlias = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each run by its name; it takes place when it is first asked for."""
    return functools.cache(lambda name: run(Project(tmp_path_factory.mktemp(name)), name))


@pytest.fixture(params=[pytest.param(one, marks=() if one == GATE else pytest.mark.laboratory) for one in RUNS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def outcome(name: str, runs: Runs) -> Outcome:
    return runs(name)


def seen(outcome: Outcome, arm: str, found: list[dict[str, Any]]) -> str:
    """The findings of an arm other than `ok`, and the readings behind them."""
    recordings = [one for one in outcome.recordings if one["test"].endswith(f"[{arm}]")]
    series = {one["resource"]: one["readings"] for recording in recordings for one in recording["series"]}
    return "\n".join(
        f"{one['resource']}: {one['verdict']} after {one['iterations']}: {one['reason']}\n  {series.get(one['resource'])}"
        for one in found
        if one["verdict"] != "ok"
    )


def is_judged(kinds: tuple[str, ...]) -> bool:
    return any(kind in RESOURCES and RESOURCES[kind].default for kind in kinds)


def test_every_leak_is_red(outcome: Outcome, name: str) -> None:
    missed = {}
    for arm, found in by_arm(outcome, arms_of(name)).items():
        case, call = ARMS[arm]
        if call is not case.leaky or not is_judged(case.kind):
            continue
        hits = [one for one in found if one["resource"] in case.kind and one["verdict"] == case.verdict]
        # What only the collector gave back is red where a budget names the resource, and yellow where it is judged
        # by default.
        colour = "red" if case.verdict == "leak" else "yellow"
        # How many iterations it takes, while threads come and go, is a matter of the machine as well.
        most = math.inf if name == GATE else 300
        if not any(one["colour"] == colour and one["iterations"] <= most for one in hits):
            missed[arm] = seen(outcome, arm, found)
    assert missed == {}


def doubtful(outcome: Outcome, name: str) -> dict[str, dict[str, Any]]:
    """Of each arm that leaks nothing, the verdicts that are not as they should be."""
    found = {}
    # Who made what another program leaves in shared memory cannot be told.
    excused = "coverage.py keeps a tracer", "of unknown origin in /dev/shm"
    for arm, of_arm in by_arm(outcome, arms_of(name)).items():
        case, call = ARMS[arm]
        fine = {"ok", "inconclusive"} if case.doubt else {"ok"}
        # Coverage keeps a tracer for each thread. That is growth, and said to be coverage's.
        said = {one["verdict"] for one in of_arm if not any(text in one["reason"] for text in excused)}
        if call is not case.leaky and not (of_arm and said <= fine):
            found[arm] = {"said": said, "seen": seen(outcome, arm, of_arm)}
    return found


def test_nothing_else_is_red(outcome: Outcome, name: str) -> None:
    """What is in order may be in doubt where the machine is busy, and is never red."""
    found = doubtful(outcome, name)
    assert {
        arm: one for arm, one in found.items() if not one["said"] or not one["said"] <= {"ok", "inconclusive"}
    } == {}


@pytest.mark.laboratory
@pytest.mark.parametrize("name", [one for one in RUNS if one != GATE], indirect=True)
def test_hardly_anything_is_in_doubt(outcome: Outcome, name: str) -> None:
    found = doubtful(outcome, name)
    assert len(found) <= 2, found


def test_every_kind_has_a_probe() -> None:
    assert {kind for kind in KINDS if not is_judged((kind,))} == {"reference"}


def changed_at(path: Path) -> float:
    """Return when an entry was made or last changed, in seconds since the epoch; 0 if it is gone."""
    try:
        return path.lstat().st_ctime
    except FileNotFoundError:
        return 0.0


@pytest.mark.usefixtures("outcome")
def test_nothing_is_left_behind() -> None:
    """The cases' own tear-downs: each name says whose it is, and those processes are gone.

    What was there before this session is of another, which may have been killed.
    """
    entries = [path for path in Path("/dev/shm").glob("*leakcheck-*") if changed_at(path) >= BEGAN]
    pids = {path: path.name.partition("leakcheck-")[2].split("-")[0] for path in entries}
    assert [path for path, pid in pids.items() if pid.isdigit() and not Path("/proc", pid).exists()] == []


def test_the_catalog_is_large_enough() -> None:
    pairs = [case for case in CATALOG.values() if case.leaky and case.fixed and not case.clean]
    clean = [case for case in CATALOG.values() if case.clean and not case.leaky and not case.fixed]
    assert len(pairs) + len(clean) == len(CATALOG)
    assert len(pairs) >= 45
    assert len(clean) >= 20
    assert {kind for case in pairs for kind in case.kind} == KINDS
