"""``vram`` of each library: torch, TensorFlow and JAX, here in fakes of what they answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.probes.accelerators import TorchDevice, find_accelerators
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.device import Vram

MIB = 1 << 20


class FakeTorch:
    """An accelerator as torch shows it: two devices, of which the first is in use."""

    __version__ = "2.13.0"

    def __init__(self, **changes: Any) -> None:
        self.allocated = {0: 10 * MIB, 1: 0}
        self.calls: list[str] = []

        def note(name: str) -> Callable[..., None]:
            return lambda *_arguments, **_keywords: self.calls.append(name)

        self.accelerator = SimpleNamespace(
            is_available=lambda: True,
            current_accelerator=lambda: SimpleNamespace(type="cuda"),
            device_count=lambda: 2,
            current_device_index=lambda: 0,
            memory_allocated=self.allocated.__getitem__,
            memory_reserved=self.allocated.__getitem__,
            max_memory_allocated=self.allocated.__getitem__,
            reset_peak_memory_stats=note("reset"),
            synchronize=note("synchronize"),
            empty_cache=note("empty_cache"),
            get_memory_info=lambda _index: (30 * MIB, 80 * MIB),
            **changes,
        )
        self.random = SimpleNamespace(fork_rng=lambda *_a, **_k: self._nothing("fork_rng"))

    def _nothing(self, name: str) -> Any:
        import contextlib

        self.calls.append(name)
        return contextlib.nullcontext()

    def no_grad(self) -> Any:
        return self._nothing("no_grad")

    def rand(self, *_shape: int, device: str) -> Any:
        self.calls.append(f"rand on {device}")

        class Matrix:
            def __matmul__(self, other: Any) -> Any:
                return self

        return Matrix()

    def get_device_module(self, _kind: str) -> Any:
        return SimpleNamespace(
            get_device_properties=lambda _index: SimpleNamespace(uuid="1"),
            set_per_process_memory_fraction=lambda share, _index: self.calls.append(f"fraction {share}"),
        )


def test_torchs_accelerator_is_warmed_where_it_is_used_and_left_alone_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("tensorflow", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    vram = Vram(find_accelerators)
    vram.open()
    assert "rand on cuda:0" in torch.calls
    assert "rand on cuda:1" not in torch.calls
    assert torch.calls.index("fork_rng") < torch.calls.index("rand on cuda:0"), "the program's random numbers stay"
    assert (vram.read(), vram.kind, vram.capacity) == (10 * MIB, "measured", 160 * MIB)
    assert "cuda:0 by torch 2.13.0, and its free memory (NVML would count this process only" in vram.name
    vram.mark()
    torch.allocated[1] = 5 * MIB
    assert vram.read() == 15 * MIB
    assert vram.describe_growth() == "cuda:1 +5.0 MiB by the allocator, +0 B by the driver"
    assert torch.calls.count("empty_cache") == 4
    vram.close()


def test_the_allocators_statistics_and_blocks_are_read_where_torch_lists_them() -> None:
    torch = FakeTorch()
    used = {"allocated_bytes": {"all": {"current": 1536}}}
    segments = [
        {
            "device": 0,
            "address": 4096,
            "blocks": [
                {"size": 512, "state": "active_allocated"},
                {"size": 512, "state": "inactive"},
                {"size": 1024, "state": "active_allocated"},
                {"size": 2048, "state": "active_pending_free"},
            ],
        },
        {"device": 1, "address": 9000, "blocks": [{"size": 512, "state": "active_allocated"}]},
    ]
    module = SimpleNamespace(memory_stats_as_nested_dict=lambda index: {} if index else used)
    module.memory_snapshot = lambda: segments
    torch.get_device_module = lambda _kind: module  # type: ignore[method-assign]
    first = TorchDevice(torch, "cuda", 0)
    assert first.allocated() == 1536
    assert first.pieces() == {4096: 512, 5120: 1024}
    assert TorchDevice(torch, "cuda", 1).allocated() == 0, "not in use: there are no statistics yet"
    assert TorchDevice(FakeTorch(), "mps", 0).pieces() is None


def test_a_ceiling_is_a_share_of_the_device_and_can_be_taken_away() -> None:
    torch = FakeTorch()
    device = TorchDevice(torch, "cuda", 0)
    device.open()
    lift = device.limit(20 * MIB)
    assert torch.calls[-1] == "fraction 0.25"
    lift()
    assert torch.calls[-1] == "fraction 1.0"


def test_a_torch_that_does_not_count_on_this_device_is_unavailable() -> None:
    torch = FakeTorch()
    del torch.accelerator.memory_allocated
    with pytest.raises(Unavailable, match=r"torch 2\.13\.0 does not report the memory allocated on mps:0"):
        TorchDevice(torch, "mps", 0).open()


def tensorflow(gpus: int) -> Any:
    """As TensorFlow shows its GPUs: what is used now and was at most, by name."""
    used = {f"GPU:{at}": {"current": at + 1, "peak": at + 10} for at in range(gpus)}
    resets: list[str] = []
    experimental = SimpleNamespace(get_memory_info=used.__getitem__, reset_memory_stats=resets.append)
    config = SimpleNamespace(list_physical_devices=lambda _kind: [None] * gpus, experimental=experimental)
    return SimpleNamespace(__version__="2.21.0", config=config, resets=resets)


def jax(*platforms: str) -> Any:
    """As JAX shows its devices; on the CPU it tells nothing of memory."""
    stats = {"cpu": None, "gpu": {"bytes_in_use": 5, "bytes_limit": 100}, "tpu": None}
    devices = [
        SimpleNamespace(platform=name, id=at, memory_stats=lambda name=name: stats[name])
        for at, name in enumerate(platforms)
    ]
    arrays = [SimpleNamespace(nbytes=3), SimpleNamespace(nbytes=4)]
    return SimpleNamespace(__version__="0.10.2", local_devices=lambda: devices, live_arrays=lambda: arrays)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let these be the libraries that are loaded."""

    def load(**libraries: Any) -> None:
        for name in ("torch", "tensorflow", "jax"):
            monkeypatch.delitem(sys.modules, name, raising=False)
            if name in libraries:
                monkeypatch.setitem(sys.modules, name, libraries[name])

    return load


def test_tensorflows_gpus_are_summed_and_its_marks_are_set_back(only: Callable[..., None]) -> None:
    library = tensorflow(2)
    only(tensorflow=library)
    vram = Vram(find_accelerators)
    vram.open()
    assert (vram.read(), vram.peak(), vram.kind) == (3, 21, "measured")
    assert vram.name == "GPU:0 by TensorFlow 2.21.0, GPU:1 by TensorFlow 2.21.0"
    vram.reset_peak()
    assert library.resets == ["GPU:0", "GPU:1"]


def test_jaxs_accelerators_are_read_and_its_cpu_is_none(only: Callable[..., None]) -> None:
    only(jax=jax("cpu", "gpu"))
    vram = Vram(find_accelerators)
    vram.open()
    assert (vram.read(), vram.peak(), vram.capacity, vram.name) == (5, None, 100, "gpu:1 by JAX 0.10.2")
    only(jax=jax("cpu"))
    with pytest.raises(NotInUse, match=r"no accelerator: jax 0\.10\.2 sees none"):
        find_accelerators()
    only(jax=jax("tpu"))
    with pytest.raises(Unavailable, match=r"JAX 0\.10\.2 does not report the memory of tpu:0"):
        Vram(find_accelerators).open()


def test_without_a_device_what_lives_on_the_cpu_is_accounted_where_that_is_asked_for(only: Callable[..., None]) -> None:
    only(tensorflow=tensorflow(0), jax=jax("cpu"))
    with pytest.raises(NotInUse, match=r"tensorflow 2\.21\.0 and jax 0\.10\.2 see none"):
        find_accelerators()
    vram = Vram(lambda: find_accelerators(accounted=True))
    vram.open()
    assert (vram.read(), vram.kind) == (7, "accounted")
    assert vram.name == "live arrays of JAX 0.10.2 on the CPU, accounted"
    # With a device it changes nothing.
    only(tensorflow=tensorflow(1))
    assert [one.kind for one in find_accelerators(accounted=True)] == ["measured"]
    only(tensorflow=tensorflow(0))
    with pytest.raises(Unavailable, match=r"tensorflow on the CPU cannot be counted; .* those of torch and JAX"):
        find_accelerators(accounted=True)
