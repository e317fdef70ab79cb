"""Check readings of accelerator memory on this machine. Print tables; exit 1 if a verdict is not as expected.

For the current device, the script measures the cost of a sample (a reading of the allocator's count) and of a reading
of the driver's count, too. It judges a leaky and a fixed loop while another process
allocates memory on the same device. Then it runs the tests of ``device_cases.py``, and of ``device_cases_jax.py`` if
JAX is installed, with ``--leakcheck``.

Without a device the script reports that and exits 3. With --accounted it counts live tensors on the CPU instead, and
judges only loops.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck import measure
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.custom_probe import account_for_tensors
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.report import json_file

CASES: Final = {"torch": "device_cases.py", "jax": "device_cases_jax.py"}
RED: Final = frozenset({"leak", "over_budget", "unclosed"})
NEIGHBOUR: Final = """
import sys, time, torch
kept = []
print("ready", flush=True)
for _ in range(400):
    kept.append(torch.zeros(1 << 20, device=sys.argv[1]))
    time.sleep(0.05)
"""
SAMPLES: Final = 1000


def main() -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accounted", action="store_true", help="without a device, count live tensors on the CPU")
    wanted = parser.parse_args()
    import torch

    try:
        vram = Vram(lambda: find_accelerators(accounted=wanted.accounted))
        vram.open()
    except Unavailable as error:
        print(error)
        return 3
    if wanted.accounted:
        account_for_tensors()
    device = "cpu" if vram.kind == "accounted" else str(torch.accelerator.current_accelerator())
    print(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}  {vram.name}  ({vram.kind})\n")
    print("| what | came to | |\n| --- | ---: | --- |")
    print(f"| a sample | {cost(vram.read):.1f} us | the allocator's count |")
    vram.mark()
    took = cost(vram.describe_growth, 20)
    print(f"| the driver's count, too | {took:.0f} us | cached memory given back before, so not in a loop |")
    vram.close()
    if device == "cpu":
        return 1 if loops(torch, device) else 0
    wrong = beside_another(torch, device)
    for library, name in CASES.items():
        if importlib.util.find_spec(library) is not None:
            wrong += cases(Path(__file__).with_name(name))
    return 1 if wrong else 0


def cost(read: Callable[[], object], samples: int = SAMPLES) -> float:
    """Return the microseconds of one reading, from the fastest of five blocks."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(samples // 5):
            read()
        best = min(best, (time.perf_counter() - began) / (samples // 5))
    return best * 1e6


def step_on(torch: Any, device: str) -> Callable[[], Any]:
    """Return one step of a small training run; the step returns its loss."""
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> Any:
        loss = model(torch.randn(512, 1024, device=device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        return loss

    return step


def loops(torch: Any, device: str) -> int:
    """Judge three loops, and return how many verdicts are not as expected."""
    step, history = step_on(torch, device), []
    wrong = told("keeps its loss", lambda: history.append(step()), "leak")
    history.clear()
    wrong += told("fixed", lambda: step().item(), "ok")
    return wrong + told("keeps 4 KiB", lambda: history.append(torch.zeros(1024, device=device)), "leak")


def beside_another(torch: Any, device: str) -> int:
    """Return how many verdicts are not as expected while another process allocates memory on the same device."""
    command = [sys.executable, "-c", NEIGHBOUR, device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        step = step_on(torch, device)
        history: list[Any] = []
        wrong = told("fixed, beside another process", lambda: step().item(), "ok")
        wrong += told("leaky, beside another process", lambda: history.append(step()), "leak")
        other.kill()
    return wrong


def cases(file: Path) -> int:
    """Run the cases of a file, print a row for each, and return how many verdicts are not as expected."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "cases.json")
        options = ("--leakcheck", f"--leakcheck-json={report}", "-q", "-p", "no:cacheprovider", "-c", os.devnull)
        command = [sys.executable, "-m", "pytest", *options, f"--rootdir={file.parent}", str(file)]
        # By default JAX allocates most of the device's memory at once, but torch is measured on the same device.
        plain = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        ran = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
        if not report.exists():
            print(ran.stdout, ran.stderr)
            return 1
        findings = json_file.read(report).findings
    worst: dict[str, tuple[Finding, Verdict]] = {}
    for finding in findings:
        for verdict in finding.verdicts:
            if verdict.resource == "vram" and (finding.test not in worst or verdict.outcome != "ok"):
                worst[finding.test] = finding, verdict
    print("\n| case | verdict | iterations | per iteration | line |\n| --- | --- | ---: | ---: | --- |")
    wrong = 0
    for test, (finding, verdict) in worst.items():
        name, as_expected = test.partition("::")[2], (verdict.outcome in RED) == ("TestLeaky" in test)
        wrong += not as_expected
        line = finding.site.line if finding.site else ""
        found = verdict.outcome if as_expected else f"**{verdict.outcome}**"
        print(f"| {name} | {found} | {verdict.iterations} | {verdict.slope:,.0f} B | {line} |")
    print(f"\n{len(worst)} cases, {wrong} not as expected; {ran.stdout.splitlines()[-1]}")
    return wrong or int("error" in ran.stdout.splitlines()[-1])


def told(what: str, work: Callable[[], object], must: str) -> int:
    """Judge a loop and print its row; return 1 if the verdict is not the expected one."""
    verdict = measure(work, vram=0).finding.verdict
    print(f"| {what} | {verdict.outcome} | {verdict.reason or f'floor {verdict.floor:.0f} B/iter'} |")
    return int(verdict.outcome != must)


if __name__ == "__main__":
    sys.exit(main())
