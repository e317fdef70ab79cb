"""Check readings of accelerator memory on this machine. Print a table; exit 1 if a verdict is not as expected.

For the current device, the script measures the cost of a sample (the allocator's count) and of both witnesses (the
allocator's and the driver's count), and judges loops: one that keeps its loss, one that does not, one that keeps
4 KiB; then a leaky and a fixed loop while another process allocates memory of the same device.

Without a device it reports so, and exits 3. With --accounted it counts live tensors on the CPU instead.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from pytest_leakcheck import measure
from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.custom_probe import account_for_tensors
from pytest_leakcheck.probes.device import Vram

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
    """Print the table; return the exit status."""
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
    print(f"{dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}  {vram.name}  ({vram.kind})\n")
    print("| what | came to | |\n| --- | ---: | --- |")
    print(f"| a sample | {cost(vram.read):.1f} us | the allocator's count |")
    vram.mark()
    print(f"| both witnesses | {cost(vram.states, 20):.0f} us | cached memory given back before, so not in a loop |")
    vram.close()
    wrong = loops(torch, device)
    if device != "cpu":
        wrong += beside_another(torch, device)
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
    """Return how many verdicts on the loops are not as expected."""
    step, history = step_on(torch, device), []
    wrong = told("keeps its loss", lambda: history.append(step()), "leak")
    history.clear()
    wrong += told("mended", lambda: step().item(), "ok")
    return wrong + told("keeps 4 KiB", lambda: history.append(torch.zeros(1024, device=device)), "leak")


def beside_another(torch: Any, device: str) -> int:
    """Return how many verdicts are not as expected while another process allocates memory of the same device."""
    command = [sys.executable, "-c", NEIGHBOUR, device]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        step = step_on(torch, device)
        history: list[Any] = []
        wrong = told("mended, beside another process", lambda: step().item(), "ok")
        wrong += told("leaky, beside another process", lambda: history.append(step()), "leak")
        other.kill()
    return wrong


def told(what: str, work: Callable[[], object], must: str) -> int:
    """Judge a loop and print its row; return 1 if the verdict is not the expected one."""
    verdict = measure(work, vram=0).finding.verdict
    print(f"| {what} | {verdict.outcome} | {verdict.reason or f'floor {verdict.floor:.0f} B/iter'} |")
    return int(verdict.outcome != must)


if __name__ == "__main__":
    sys.exit(main())
