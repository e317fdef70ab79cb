"""Check readings of accelerator memory on this machine. Print tables; exit 1 if a verdict is not as expected.

For the current device, the script measures the cost of a sample (a reading of the allocator's count) and of a reading
of the driver's count, too. It judges a leaky and a fixed loop while another process allocates memory on the same device.
Then it runs the tests of this file, and of ``vram_jax.py`` if JAX is installed, with ``--leakcheck``. The class of a
test states the expected verdict: red in `TestLeaky`, not red in `TestClean`.

Without a device the script reports that and exits 3. With --accounted it counts live tensors on the CPU instead, and
judges only loops.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn

from pytest_leakcheck import measure
from pytest_leakcheck.model.finding import RED, Finding, Verdict
from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.catalog import account_for_tensors
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.report import json_file

pytestmark = pytest.mark.vram_budget(0)
DEVICE: Final = torch.accelerator.current_accelerator() or torch.device("cpu")
MODEL: Final = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
OPTIMIZER: Final = torch.optim.Adam(MODEL.parameters(), 1e-4)
NEIGHBOUR: Final = """
import sys, time, torch
kept = []
print("ready", flush=True)
for _ in range(400):
    kept.append(torch.zeros(1 << 20, device=sys.argv[1]))
    time.sleep(0.05)
"""


def main() -> int:
    """Print the tables; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accounted", action="store_true", help="without a device, count live tensors on the CPU")
    accounted: bool = parser.parse_args().accounted
    try:
        vram = Vram(lambda: find_accelerators(accounted=accounted))
        vram.open()
    except Unavailable as error:
        print(error)
        return 3
    if accounted:
        account_for_tensors()
    print(f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}  {vram.name}  ({vram.kind})\n")
    print("| what | came to | |\n| --- | ---: | --- |")
    print(f"| a sample | {cost(vram.read, 1000):.1f} us | the allocator's count |")
    vram.mark()
    took = cost(vram.describe_growth, 20)
    print(f"| the driver's count, too | {took:.0f} us | cached memory given back before, so not in a loop |")
    vram.close()
    if accounted:
        return int(loops("alone") > 0)
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(DEVICE)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        wrong = loops("beside another process")
        other.kill()
    wrong += cases(Path(__file__))
    if importlib.util.find_spec("jax") is not None:
        wrong += cases(Path(__file__).with_name("vram_jax.py"))
    return int(wrong > 0)


def cost(read: Callable[[], object], samples: int) -> float:
    """Return the microseconds of one reading, from the fastest of five blocks."""
    blocks = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(samples // 5):
            read()
        blocks.append((time.perf_counter() - began) / (samples // 5))
    return min(blocks) * 1e6


def loops(where: str) -> int:
    """Judge two loops, print a row for each, and return how many verdicts are not as expected."""
    wrong, history = 0, []
    works: dict[str, Callable[[], object]] = {"ok": lambda: train().item(), "leak": lambda: history.append(train())}
    for expected, work in works.items():
        verdict = measure(work, vram=0).finding.verdict
        print(f"| {expected}, {where} | {verdict.outcome} | {verdict.reason or f'floor {verdict.floor:.0f} B/iter'} |")
        wrong += verdict.outcome != expected
    return wrong


def cases(file: Path) -> int:
    """Run the tests of a file, print a row for each, and return how many verdicts are not as expected."""
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
    last = ran.stdout.splitlines()[-1]
    print(f"\n{len(worst)} cases, {wrong} not as expected; {last}")
    return wrong or int("error" in last)


def train(batch: int = 64) -> torch.Tensor:
    """Train one step; return its loss."""
    loss: torch.Tensor = MODEL(torch.randn(batch, 256, device=DEVICE)).pow(2).mean()
    OPTIMIZER.zero_grad()
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    OPTIMIZER.step()
    return loss


@pytest.fixture(scope="class")
def kept() -> Iterator[list[Any]]:
    """Yield a list that outlives the iterations; it is emptied after the last test of the class."""
    held: list[Any] = []
    yield held
    held.clear()
    gc.collect()
    torch.accelerator.empty_cache()


class Cyclic:
    """An object that refers to itself and to a tensor."""

    def __init__(self) -> None:
        self.me, self.tensor = self, torch.zeros(1000, device=DEVICE)


class TestLeaky:
    """Each test retains device memory, allocates too much of it, or leaves its release to the garbage collector."""

    def test_keeps_its_loss(self, kept: list[Any]) -> None:
        kept.append(train())

    def test_keeps_one_number(self, kept: list[Any]) -> None:
        kept.append(torch.zeros(1, device=DEVICE))

    def test_keeps_a_slice_of_its_batch(self, kept: list[Any]) -> None:
        kept.append(torch.randn(1024, 256, device=DEVICE)[0])

    def test_keeps_a_tensor_of_another_stream(self, kept: list[Any]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            kept.append(torch.zeros(1 << 18, device=DEVICE))

    def test_a_hook_keeps_activations(self, kept: list[Any]) -> None:
        handle = MODEL[0].register_forward_hook(lambda _module, _inputs, output: kept.append(output.detach()))
        train()
        handle.remove()

    def test_an_error_keeps_its_frame(self, kept: list[Any]) -> None:
        try:
            fail_with(torch.zeros(1 << 16, device=DEVICE))
        except RuntimeError as error:
            kept.append(error)

    def test_captures_a_graph_each_time(self, kept: list[Any]) -> None:
        graph, given = torch.cuda.CUDAGraph(), torch.zeros(1 << 16, device=DEVICE)
        with torch.cuda.graph(graph):
            made = given * 2
        kept.append((graph, given, made))

    def test_a_cycle_waits_for_the_collector(self) -> None:
        Cyclic()

    @pytest.mark.vram_budget("4 KiB", peak="2 MiB")
    def test_peak_above_its_limit(self) -> None:
        torch.zeros(1 << 20, device=DEVICE)

    @pytest.mark.leakcheck_ceiling(vram="1 GiB")
    def test_runs_out_under_a_ceiling(self, kept: list[Any]) -> None:
        kept.append(torch.zeros(1 << 24, device=DEVICE))

    @pytest.mark.leakcheck(isolate=True)
    def test_in_a_fresh_process(self, kept: list[Any]) -> None:
        kept.append(train())

    def test_in_a_loop(self, kept: list[Any], leakcheck: Any) -> None:
        for _ in leakcheck.steps(vram=0):
            kept.append(train())  # noqa: PERF401 - each step of the loop is measured


def fail_with(tensor: torch.Tensor) -> None:
    """Raise an error whose traceback refers to the tensor."""
    raise RuntimeError(f"{tensor.shape}")


class TestClean:
    """Each test releases the memory that it allocates, or retains a bounded amount."""

    def test_batches_of_many_sizes(self, sizes: Any) -> None:
        train(next(sizes)).item()

    def test_peak_below_its_limit(self) -> None:
        torch.zeros(1 << 18, device=DEVICE)

    @pytest.mark.vram_budget
    def test_a_full_deque(self, last: Any) -> None:
        last.append(train().detach())

    def test_streams_and_events(self) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            made = torch.zeros(1 << 18, device=DEVICE) + 1
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        torch.cuda.current_stream().wait_event(done)
        made.record_stream(torch.cuda.current_stream())

    def test_mixed_precision(self) -> None:
        scaler = torch.amp.GradScaler(DEVICE.type)
        with torch.autocast(DEVICE.type, dtype=torch.float16):
            loss = MODEL(torch.randn(64, 256, device=DEVICE)).float().pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(OPTIMIZER)
        scaler.update()
        OPTIMIZER.zero_grad()

    def test_convolutions(self, network: nn.Module) -> None:
        network(torch.randn(4, 3, 64, 64, device=DEVICE)).mean().backward()
        network.zero_grad()

    def test_runs_out_and_goes_on(self) -> None:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 44, device=DEVICE)
        train().item()

    def test_replays_a_graph(self, graph: Any) -> None:
        graph.replay()

    def test_compiled(self, compiled: Any) -> None:
        compiled(torch.randn(64, 256, device=DEVICE)).sum().item()

    def test_loader_with_pinned_memory(self, loader: Any) -> None:
        for (batch,) in loader:
            MODEL(batch.to(DEVICE, non_blocking=True)).sum().item()

    @pytest.mark.leakcheck_ceiling(vram="1 GiB")
    def test_under_a_ceiling(self) -> None:
        train().item()

    @pytest.mark.leakcheck(isolate=True)
    def test_in_a_fresh_process(self) -> None:
        train().item()

    def test_in_a_loop(self, leakcheck: Any) -> None:
        for _ in leakcheck.steps(vram=0):
            train().item()


@pytest.fixture(scope="class")
def sizes() -> Iterator[int]:
    """Return batch sizes without end."""
    return cycle([16, 64, 32, 128, 48, 96, 80, 112])


@pytest.fixture(scope="class")
def last() -> deque[Any]:
    """Return a deque that keeps its last four entries."""
    return deque(maxlen=4)


@pytest.fixture(scope="class")
def network() -> nn.Module:
    """Return a convolutional network for which cuDNN tries out its algorithms (benchmark mode)."""
    torch.backends.cudnn.benchmark = True
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1)).to(DEVICE)


@pytest.fixture(scope="class")
def graph() -> Any:
    """Return a captured graph of the model."""
    given, side = torch.zeros(64, 256, device=DEVICE), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            MODEL(given)
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(captured):
        MODEL(given)
    return captured


@pytest.fixture(scope="class")
def compiled() -> Any:
    """Return a compiled network."""
    return torch.compile(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8)).to(DEVICE))


@pytest.fixture(scope="class")
def loader() -> Any:
    """Return a loader with workers and pinned memory."""
    data = torch.utils.data.TensorDataset(torch.randn(128, 256))
    return torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, pin_memory=True, persistent_workers=True)


if __name__ == "__main__":
    sys.exit(main())
