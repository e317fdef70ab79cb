"""macOS and Windows, simulated: what psutil reads is judged, and all else is unavailable, with the reason."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest

from projects import ROOT, Project
from shell import shell

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="simulates other systems on Linux")

SYSTEMS: Final = ["darwin", "win32"]
ARM_VERDICTS: Final = {"leaky": "leak", "fixed": "ok"}
# On Windows no process is started for a test. A ceiling on memory takes one, too.
NO_GROUPS: Final = "a separate process needs process groups, which this system does not have"
NOT_READ: Final = {
    "test_rss": "resident memory is read from /proc/self/status, which exists only on Linux",
    "test_mmap": "mapped bytes are read from /proc/self/statm, which exists only on Linux",
    "test_shm": "/dev/shm cannot be watched here ([Errno 2] No such file or directory: '/dev/shm')",
}
# By system, the resources with two arms that are judged, and why all else is not. What is not in a row takes seconds,
# and shows no more there than on the other system.
EXPECTED: Final[dict[str, tuple[set[str], dict[str, str]]]] = {
    "darwin": (
        {"fd", "thread", "isolated"},
        {
            "test_scaling": "resident memory is read from /proc/self/status, which exists only on Linux",
            "test_ceiling": "its ceiling cannot be set: resident memory is read from /proc, which exists only on Linux",
        },
    ),
    "win32": (
        {"heap", "fd", "process"},
        {
            "test_scaling": NO_GROUPS,
            "test_ceiling": NO_GROUPS,
            "test_isolated": NO_GROUPS,
            "test_disk": "{tmp} cannot be watched here (Windows opens no folder as a file)",
        },
    ),
}


def environment(system: str, folder: Path) -> dict[str, str]:
    """Return what has a process see this system; its temporary files are out of the way of sessions that see Linux."""
    start, temporary = folder / "start", folder / "tmp"
    start.mkdir()
    temporary.mkdir()
    # Each Python loads it as it starts.
    (start / "sitecustomize.py").write_text("import simulated_system\n", encoding="utf-8")
    path = os.pathsep.join(map(str, (start, ROOT, ROOT / "fixtures", ROOT / "tests" / "support")))
    return {"SIMULATED_SYSTEM": system, "PYTHONPATH": path, "TMPDIR": str(temporary)}


@pytest.mark.parametrize(("system", "left_out"), [("darwin", "heap or process or disk"), ("win32", "thread")])
def test_what_can_be_counted_is_judged_and_all_else_says_why(project: Project, system: str, left_out: str) -> None:
    arms, reasons = EXPECTED[system]
    project.copy("arms_of_counters.py")
    given: dict[str, Any] = {**environment(system, project.folder)}
    ran = project.run("-k", f"not ({left_out})", **given)
    assert ran.status == 1
    assert "please report this" not in ran.one_line, ran.text
    judged = {test: verdict for (test, _), verdict in ran.verdicts.items() if "[" in test and verdict != "unavailable"}
    assert judged == {f"test_{one}[{arm}]": verdict for one in arms for arm, verdict in ARM_VERDICTS.items()}
    missing = [one for one in ran.findings if one["verdict"] == "unavailable"]
    # In a session beside others, each test has a temporary folder of its own.
    reasons_told = (re.sub(r"/leakcheck-\w+/t(?= )", "", one["reason"]) for one in missing)
    told = dict(zip((one["test"].rpartition("::")[2].partition("[")[0] for one in missing), reasons_told, strict=True))
    assert told == {name: why.format(tmp=project.folder / "tmp") for name, why in (NOT_READ | reasons).items()}
    lines = (project.folder / "test_it.py").read_text(encoding="utf-8").splitlines()
    for leak in (one for one in ran.findings if one["verdict"] == "leak"):
        name = "test_fd" if "isolated" in leak["test"] else f"test_{leak['resource']}"
        assert lines[leak["site"]["line"] - 1].endswith(f"# of {name}"), leak["test"]
        assert leak["owner"]["name"].startswith("test_it."), leak["test"]


PLAIN: Final = """
    import os, sys
    import pytest

    KEPT = []

    @pytest.mark.fd_budget(0)
    def test_it():
        KEPT.append(os.open(__file__, os.O_RDONLY))
        print("loaded", *sorted(one for one in sys.modules if one.startswith("pytest_leakcheck")))
"""


def test_plain_pytest_loads_and_judges_nothing(project: Project) -> None:
    loaded = []
    for system in ("", *SYSTEMS):
        folder = project.folder / (system or "linux")
        folder.mkdir()
        ran = project.run_test(PLAIN, "-s", leakcheck=False, **environment(system, folder))
        assert (ran.status, ran.last_line) == (0, "1 passed")
        loaded.append(next(line for line in ran.text.splitlines() if "loaded " in line))
    assert "runner" not in loaded[0]
    assert loaded == loaded[:1] * 3


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_watch_says_what_it_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    for name, value in environment(system, tmp_path).items():
        monkeypatch.setenv(name, value)
    ran = shell("watch", "--interval=0.1", "--", "sleep", "0.5", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    note = f"on {system}, memory includes pages of files; descriptor limits and targets are not read"
    assert note in ran.stderr
    assert "  fd   " in ran.stderr


def test_windows_ends_a_command_without_the_signals_of_other_systems(tmp_path: Path) -> None:
    program = """
        import subprocess, sys
        from pytest_leakcheck.runner.processes.supervisor import end_tree
        process = subprocess.Popen(["sleep", "60"])
        end_tree(process, grace=0, group=False)
        print(process.returncode)
    """
    given = os.environ | environment("win32", tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{-signal.SIGTERM}\n", "")
