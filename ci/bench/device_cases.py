"""Leaks and clean work on a real accelerator. ``vram.py`` runs this file and checks the verdicts.

The class of a case states the expected verdict: red in `TestLeaky`, not red in `TestClean`.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.vram_budget(0)
DEVICE = torch.accelerator.current_accelerator() or torch.device("cpu")

MODEL = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(DEVICE)
OPTIMIZER = torch.optim.Adam(MODEL.parameters(), 1e-4)


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

    def test_keeps_4_mib(self, kept: list[Any]) -> None:
        kept.append(torch.zeros(1 << 20, device=DEVICE))

    def test_keeps_a_slice_of_its_batch(self, kept: list[Any]) -> None:
        kept.append(torch.randn(1024, 256, device=DEVICE)[0])

    def test_keeps_a_tensor_of_another_stream(self, kept: list[Any]) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            kept.append(torch.zeros(1 << 18, device=DEVICE))

    def test_keys_grow_by_cat(self, keys: dict[str, torch.Tensor]) -> None:
        keys["all"] = torch.cat([keys["all"], torch.randn(1, 64, 128, device=DEVICE)])

    def test_adds_parameters(self, kept: list[Any]) -> None:
        kept.append(nn.Parameter(torch.zeros(100, 100, device=DEVICE)))

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


@functools.lru_cache(maxsize=8)
def mask(length: int) -> torch.Tensor:
    """Return an attention mask."""
    return torch.ones(length, length, device=DEVICE).tril()


class TestClean:
    """Each test releases the memory that it allocates, or retains a bounded amount."""

    def test_reads_its_loss(self) -> None:
        train().item()

    def test_batches_of_many_sizes(self, sizes: Any) -> None:
        train(next(sizes)).item()

    def test_peak_below_its_limit(self) -> None:
        torch.zeros(1 << 18, device=DEVICE)

    @pytest.mark.vram_budget
    def test_keeps_the_last_eight(self, kept: list[Any]) -> None:
        kept.append(torch.zeros(1 << 16, device=DEVICE))
        del kept[:-8]

    @pytest.mark.vram_budget
    def test_a_full_deque(self, last: Any) -> None:
        last.append(train().detach())

    @pytest.mark.vram_budget
    def test_masks_in_a_bounded_cache(self, sizes: Any) -> None:
        mask(next(sizes))

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

    def test_transforms_of_fourier(self) -> None:
        torch.fft.rfft(torch.randn(64, 1024, device=DEVICE)).abs().sum().item()

    def test_solves(self) -> None:
        torch.linalg.solve(torch.eye(64, device=DEVICE) * 2, torch.randn(64, 8, device=DEVICE))

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

    def test_empties_the_cache(self) -> None:
        train().item()
        torch.accelerator.empty_cache()

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
def keys() -> dict[str, torch.Tensor]:
    """Return a cache of keys with one tensor."""
    return {"all": torch.zeros(1, 64, 128, device=DEVICE)}


@pytest.fixture(scope="class")
def sizes() -> Iterator[int]:
    """Return batch sizes, more than any test takes."""
    return iter([16, 64, 32, 128, 48, 96, 80, 112] * 1000)


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
