"""A container may hide most of /proc, or all of it, forbid to look into processes, and have a read-only /dev/shm."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

from projects import Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc, mounts")

# With a /proc of its own, a process sees those that it has started.
PROC: Final = ("unshare", "--mount", "--pid", "--fork")
MOUNTS: Final = {
    "subset=pid": (PROC, "mount -t proc -o subset=pid proc /proc"),
    "hidepid=2": (PROC, "mount -t proc -o hidepid=2 proc /proc"),
    "no /proc": (("unshare", "--mount"), "mount -t tmpfs none /proc"),
    "/dev/shm": (("unshare", "--mount"), "mount -t tmpfs none /dev/shm && mount -o remount,ro /dev/shm"),
}
VERDICTS: Final = {
    "fd": {("test_fd[leaky]", "fd"): "leak", ("test_fd[fixed]", "fd"): "ok"},
    "process": {("test_process[leaky]", "process"): "leak", ("test_process[fixed]", "process"): "ok"},
    "isolated": {("test_isolated[leaky]", "fd"): "leak", ("test_isolated[fixed]", "fd"): "ok"},
    "shm": {("test_shm", "shm"): "ok"},
}


def python_in(project: Project, what: str) -> str:
    """Write a Python that runs in such a container, without the right to look into processes, or skip the test."""
    unshare, mount = MOUNTS[what]
    # Root has this right, and no other user.
    command = [*unshare, "sh", "-c", f'{mount} || exit 77; exec setpriv --bounding-set=-sys_ptrace "$@"', "sh"]
    try:
        ran = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    if ran.returncode:
        pytest.skip(f"nothing can be mounted here: {ran.stderr.strip()}")
    quoted = " ".join(f"'{word}'" for word in (*command, sys.executable))
    script = project.write("python", f'#!/bin/sh\nexec {quoted} "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("what", "tests"),
    [
        ("subset=pid", ["fd", "process", "isolated"]),
        ("hidepid=2", ["fd", "process"]),
        ("/dev/shm", ["shm", "isolated"]),
    ],
    ids=["subset", "hidepid", "shm"],
)
def test_processes_of_the_test_are_judged(project: Project, what: str, tests: list[str]) -> None:
    project.copy("arms_of_counters.py")
    chosen = " or ".join(f"test_{one}" for one in tests)
    ran = project.run("-k", chosen, python=python_in(project, what))
    assert ran.verdicts == {key: verdict for one in tests for key, verdict in VERDICTS[one].items()}, ran.text
    assert "not forked" not in ran.one_line
    lines = (project.folder / "test_it.py").read_text(encoding="utf-8").splitlines()
    for leak in (one for one in ran.findings if one["verdict"] == "leak"):
        assert lines[leak["site"]["line"] - 1].endswith(f"# of test_{leak['resource']}"), leak["test"]


def test_without_proc_the_reason_is_told(project: Project) -> None:
    project.copy("arms_of_counters.py")
    ran = project.run(python=python_in(project, "no /proc"))
    assert ran.status == 0
    assert {one["verdict"] for one in ran.findings} == {"unavailable"}
    reasons = {one["test"].rpartition("::")[2].partition("[")[0]: one["reason"] for one in ran.findings}
    elsewhere = {reasons.pop(name) for name in ("test_isolated", "test_scaling", "test_ceiling")}
    assert elsewhere == {"a separate process needs /proc, which is not mounted here"}
    assert set(reasons.values()) == {"all counts are read from /proc, which is not mounted here"}


# With `hidepid`, children that no other process may look into are not shown at all.
@pytest.mark.parametrize(("what", "counted"), [("/dev/shm", "fd"), ("hidepid=2", "process")], ids=["shown", "hidden"])
def test_children_that_cannot_be_looked_into_are_counted(project: Project, what: str, counted: str) -> None:
    project.copy("arms_of_hidden_children.py")
    ran = project.run("-k", f"test_{counted}", python=python_in(project, what))
    assert ran.verdicts == VERDICTS[counted], ran.text
    if counted == "fd":
        why = ran.finding("[leaky]")["culprit"]["unresolved"]["site"]
        assert why == "no traced call of this process created one"


def test_a_watch_reads_what_it_can(project: Project) -> None:
    python = python_in(project, "subset=pid")
    command = [python, "-m", "pytest_leakcheck", "watch", "--interval=0.1", "--", "sleep", "0.5"]
    ran = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0
    assert "No such file" not in ran.stderr
    assert "  rss   " in ran.stderr
