"""Sum the bytes of live tensors on the CPU (``--leakcheck-vram=accounted``), on machines without an accelerator."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.device import Device


class AccountedTorch(Device):
    """Bytes in storages of torch tensors that this thread has made since `open` (see `torch_storages`)."""

    name = "cpu"
    kind = "accounted"

    def __init__(self, torch: Any) -> None:
        from pytest_leakcheck.probes.torch_storages import StorageAccount

        self._account = StorageAccount()
        self._version = torch.__version__

    def open(self) -> None:
        self._account.begin()

    def allocated(self) -> int:
        return self._account.live

    def pieces(self) -> dict[Hashable, int]:
        return dict(self._account.pieces().items())

    def peak(self) -> int:
        return self._account.highest

    def reset_peak(self) -> None:
        self._account.reset_highest()

    def describe(self) -> str:
        return f"live tensors of torch {self._version} on the CPU, accounted"

    def close(self) -> None:
        self._account.end()


class AccountedTensorflow(Device):
    """Bytes of TensorFlow's eager tensors on the CPU, without buffers of ``tf.data``."""

    name = "CPU:0"
    kind = "accounted"

    def __init__(self, tensorflow: Any) -> None:
        self._tensorflow = tensorflow

    def allocated(self) -> int:
        return int(self._tensorflow.config.experimental.get_memory_info("CPU:0")["current"])

    def peak(self) -> int:
        return int(self._tensorflow.config.experimental.get_memory_info("CPU:0")["peak"])

    def reset_peak(self) -> None:
        self._tensorflow.config.experimental.reset_memory_stats("CPU:0")

    def describe(self) -> str:
        return f"eager tensors of TensorFlow {self._tensorflow.__version__} on the CPU, accounted"


class AccountedJax(Device):
    """Bytes of JAX's live arrays on the CPU."""

    name = "cpu:0"
    kind = "accounted"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def allocated(self) -> int:
        return sum(array.nbytes for array in self._jax.live_arrays())

    def describe(self) -> str:
        return f"live arrays of JAX {self._jax.__version__} on the CPU, accounted"


def accounts_of(libraries: Mapping[str, Any]) -> tuple[Device, ...]:
    """Return one accounting device per loaded library; raise `Unavailable` if no library supports accounting."""
    accounts = {"torch": AccountedTorch, "tensorflow": AccountedTensorflow, "jax": AccountedJax}
    # For each library, an attribute that it lacks while it is only partly imported.
    wanted = {"torch": "Tensor", "tensorflow": "config", "jax": "live_arrays"}
    found = tuple(accounts[name](one) for name, one in libraries.items() if hasattr(one, wanted[name]))
    if not found:
        raise Unavailable(f"live tensors of {', '.join(libraries)} cannot be counted")
    return found
