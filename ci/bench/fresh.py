"""Run one workload with one seed in a fresh pytest process, and return the verdicts that it reports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

Said: TypeAlias = Mapping[str, Any]

# Worst first. `unclosed` and `inconclusive` are yellow here (reported, but no failure), because no workload has a
# budget for a named resource that allows no growth.
VERDICTS: Final = ("error", "red", "unclosed", "inconclusive", "ok")
_TEST_FILE: Final = Path(__file__).with_name("one_workload.py")
_TIMEOUT_SECONDS: Final = 180.0
# Seconds between two polls of the process; short compared with the second that the fastest process takes.
_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one process.

    Attributes:
        workload: Name of the workload.
        seed: Seed of its data, and its hash seed.
        verdict: The worst verdict, one of `VERDICTS`; ``error`` if the process hung, failed or gave no report.
        resources: Verdict by resource, of each resource that was judged.
        iterations: The most iterations that a verdict is based on.
        seconds: Wall time of the whole process, imports included.
        remarks: The report and readings of each resource that was neither ``ok`` nor ``unavailable``; for an error, the
            end of the output.
    """

    workload: str
    seed: int
    verdict: str
    resources: Mapping[str, str]
    iterations: int
    seconds: float
    remarks: Sequence[Said]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})


def run(workload: str, seed: int) -> Row:
    """Judge a workload once, with the default settings of the plugin.

    Args:
        workload: A name in `workloads.find_workloads`.
        seed: A number from 0 on.

    Returns:
        The result.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="census-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (folder / "tmp").mkdir()
        # Temporary files go to a separate folder, because other programs and the other processes of the census write
        # to /tmp.
        ended = _run_pytest(folder, _create_environment(workload, seed) | {"TMPDIR": str(folder / "tmp")})
        seconds = round(time.perf_counter() - began, 3)
        finding = _read_finding(folder / "report.json")
        if ended is None or ended not in (0, 1) or not finding:
            what = "nothing within the time" if ended is None else f"exit {ended}"
            tail = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
            return Row(workload, seed, "error", {}, 0, seconds, [{"reason": what, "output": tail}])
    return _create_row(workload, seed, seconds, finding)


def _create_environment(workload: str, seed: int) -> dict[str, str]:
    # CI and BUILD_NUMBER would make some yellow verdicts red. The other variables may be settings of the user.
    others = ("PYTEST", "PYTHON", "CENSUS", "CI", "BUILD_NUMBER")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    named = {"CENSUS_WORKLOAD": workload, "CENSUS_SEED": str(seed)}
    return clean | named | {"PYTHONHASHSEED": str(seed % 2**32)}


def _run_pytest(folder: Path, environment: Mapping[str, str]) -> int | None:
    """Run pytest; return its exit status, or None if it ran out of time and was killed."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider"]
    command += ["--leakcheck", "--leakcheck-json=report.json", str(_TEST_FILE)]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # The workers of pytest are in its process group, so `killpg` kills them together with a pytest that hangs.
            start_new_session=True,
        )
        try:
            return _wait(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    end = time.perf_counter() + _TIMEOUT_SECONDS
    while time.perf_counter() < end:
        if (status := process.poll()) is not None:
            return status
        time.sleep(_POLL_SECONDS)
    return None


def _read_finding(path: Path) -> Said:
    """Return the one finding of a report, which is the second line; empty if there is no report or no finding."""
    try:
        _first, finding, _last, _end = path.read_text(encoding="utf-8").split("\n")
    except (FileNotFoundError, ValueError):
        return {}
    found: Said = json.loads(finding)
    return found


def _create_row(workload: str, seed: int, seconds: float, finding: Said) -> Row:
    verdicts: list[Said] = finding["verdicts"]
    outcomes = {one["resource"]: one["verdict"] for one in verdicts}
    if finding["colour"] == "red":
        verdict = "red"
    else:
        verdict = next((word for word in ("unclosed", "inconclusive") if word in outcomes.values()), "ok")
    readings = {one["resource"]: one["readings"] for one in finding["recording"]["series"]}
    said = ("resource", "verdict", "colour", "slope", "level", "iterations", "reason")
    remarks = [
        {
            **{key: one[key] for key in said},
            "held": finding["held"].get(one["resource"], []),
            "readings": readings.get(one["resource"], []),
        }
        for one in verdicts
        if one["verdict"] not in ("ok", "unavailable")
    ]
    iterations = max(one["iterations"] for one in verdicts)
    return Row(workload, seed, verdict, outcomes, iterations, seconds, remarks)
