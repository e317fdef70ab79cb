"""A workload and a seed in, what one fresh process of pytest says of it out."""

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

# Worst first. `unclosed` and `inconclusive` are yellow here: no workload names a resource without tolerating growth.
VERDICTS: Final = ("error", "red", "unclosed", "inconclusive", "ok")
_TEST: Final = Path(__file__).with_name("one_workload.py")
_TIMEOUT: Final = 180.0
# Seconds between looks at a process: short against the second that the quickest one takes.
_POLL: Final = 0.02


@dataclass(frozen=True, slots=True)
class Row:
    """One process.

    Attributes:
        workload: Its name.
        seed: What its data and its hash seed come from.
        verdict: The worst of the test, one of `VERDICTS`; ``error`` is a process that hung, failed or said nothing.
        resources: The outcome for each resource that was judged.
        iterations: The most that a verdict rests on.
        seconds: Wall time of the whole process, imports included.
        remarks: What was said of each resource that was not ``ok``, with its readings; of an error the last lines.
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
    """Judge a workload once, with the plugin as it is by default.

    Args:
        workload: A name in `workloads.find_workloads`.
        seed: Any number from 0 on.

    Returns:
        What was said.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="census-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        (folder / "tmp").mkdir()
        # Temporary files of its own: it must not matter what else the machine, or the process beside it, writes to /tmp.
        ended = _pytest(folder, _environment(workload, seed) | {"TMPDIR": str(folder / "tmp")})
        seconds = round(time.perf_counter() - began, 3)
        report = _read(folder / "report.json")
        if ended is None or ended not in (0, 1) or not report:
            what = "nothing within the time" if ended is None else f"exit {ended}"
            tail = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
            return Row(workload, seed, "error", {}, 0, seconds, [{"reason": what, "output": tail}])
    return _row(workload, seed, seconds, report)


def _environment(workload: str, seed: int) -> dict[str, str]:
    # CI would turn yellow red, and whatever begins so is somebody's own setting.
    others = ("PYTEST", "PYTHON", "CENSUS", "CI", "BUILD_NUMBER")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    named = {"CENSUS_WORKLOAD": workload, "CENSUS_SEED": str(seed)}
    return clean | named | {"PYTHONHASHSEED": str(seed % 2**32)}


def _pytest(folder: Path, environment: Mapping[str, str]) -> int | None:
    """The exit status, or None where it had to be ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--rootdir", ".", "-p", "no:cacheprovider"]
    command += ["--leakcheck", "--leakcheck-json=report.json", str(_TEST)]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Its workers are in its group, so that nothing of a process that hangs outlives it.
            start_new_session=True,
        )
        try:
            return _wait(process)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    end = time.perf_counter() + _TIMEOUT
    while time.perf_counter() < end:
        if (status := process.poll()) is not None:
            return status
        time.sleep(_POLL)
    return None


def _read(path: Path) -> Said:
    try:
        report: Said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return report if report["findings"] else {}


def _row(workload: str, seed: int, seconds: float, report: Said) -> Row:
    findings: list[Said] = report["findings"]
    outcomes = {one["resource"]: one["verdict"] for one in findings}
    if any(one["colour"] == "red" for one in findings):
        verdict = "red"
    else:
        verdict = next((word for word in ("unclosed", "inconclusive") if word in outcomes.values()), "ok")
    readings = {one["resource"]: one["readings"] for one in report["recordings"][0]["series"]}
    said = ("resource", "verdict", "colour", "slope", "level", "iterations", "reason", "held")
    remarks = [
        {**{key: one.get(key) for key in said}, "readings": readings.get(one["resource"], [])}
        for one in findings
        if one["verdict"] not in ("ok", "unavailable")
    ]
    iterations = max(one["iterations"] for one in findings)
    return Row(workload, seed, verdict, outcomes, iterations, seconds, remarks)
