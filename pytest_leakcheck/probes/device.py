"""``vram``: memory on accelerators. What is read of one device, and the instrument that sums them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final

from pytest_leakcheck.model.device_state import State
from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.probes.base import Unavailable

# From what is trusted most to what is trusted least.
_KINDS: Final[tuple[Kind, ...]] = ("measured", "accounted", "simulated", "predicted")


class Device:
    """What is read of one accelerator. All amounts are bytes, of this process.

    For one that the plugin does not know, or that is simulated, subclass it and return it from the hook
    ``pytest_leakcheck_probes``: ``vram`` then reads what was returned there, and nothing else.

    Attributes:
        name: As a program calls it, such as ``"cuda:0"``.
        kind: How its figures come about; every report shows it, unless they are ``"measured"``. ``"accounted"``: summed up
            by what the program asks for; ``"simulated"``: of a model of a device; ``"predicted"``: of work that was not done.
    """

    name: str = "device"
    kind: Kind = "measured"

    def open(self) -> None:
        """Get ready, and do now what the first use of the device costs.

        Raises:
            Unavailable: It cannot be read here.
        """

    def allocated(self) -> int:
        """What is given out to live tensors, now."""
        raise NotImplementedError

    def reserved(self) -> int | None:
        """What the allocator has taken from the driver, given out or not; None where it does not tell."""
        return None

    def driver(self) -> int | None:
        """What the driver counts for this process; None where it was not asked."""
        return None

    def capacity(self) -> int | None:
        """What the device has in all; None where that is not known."""
        return None

    def pieces(self) -> Mapping[Hashable, int] | None:
        """What each piece that is given out takes, by what tells it from others, such as its address; None where that is not
        known. With it, the line that makes what is retained is found as that of a descriptor is."""
        return None

    def peak(self) -> int | None:
        """The highest that `allocated` was since `reset_peak`; None where no mark is kept, so that it is read at each call."""
        return None

    def reset_peak(self) -> None:
        """Set the mark back to what is allocated now."""

    def settle(self) -> None:
        """Let work that is under way end, and give back to the driver what is reserved and not given out."""

    def limit(self, size: int) -> Callable[[], None]:
        """Let nobody have more than so many bytes.

        Returns:
            What takes the limit away again.

        Raises:
            Unavailable: It cannot be limited.
        """
        raise Unavailable(f"{self.name} has no ceiling that could be set to {size} bytes")

    def describe(self) -> str:
        """Where the figures come from, for the report."""
        return self.name

    def close(self) -> None:
        """Give back what `open` took."""


class Vram:
    """``vram``: bytes that live tensors occupy, summed over the devices that this process uses.

    Resolution: the allocator's grain, 512 bytes with torch. Noise: none. Cost: up to 0.1 ms per device. Scope: this process.
    Does not see: memory that is taken past the allocator (NCCL, contexts, other libraries), unless a device tells of it. Never
    reads a silent 0: without a device it is unavailable.

    Attributes:
        lost: What the device failed with while it was read; empty as long as it answers.
    """

    resource = "vram"

    def __init__(self, find: Callable[[], Sequence[Device]]) -> None:
        """
        Args:
            find: The devices; raises `Unavailable` where there is none.
        """
        self._find = find
        self._devices: tuple[Device, ...] = ()
        self._states: tuple[State, ...] = ()
        # In place: a number kept per reading would be a block of ours.
        self._last = array("q", (0,))
        self.lost = ""

    def open(self) -> None:
        """
        Raises:
            Unavailable: There is no device, or it does not answer.
        """
        devices = tuple(self._find())
        opened: list[Device] = []
        try:
            for device in devices:
                device.open()
                opened.append(device)
                device.allocated()
        except Unavailable:
            _close(opened)
            raise
        except Exception as error:
            _close(opened)
            raise Unavailable(f"{device.name} does not answer: {_first_line(error)}") from error
        self._devices = devices

    def close(self) -> None:
        _close(self._devices)

    @property
    def kind(self) -> Kind:
        """Of several devices the least trustworthy."""
        return max((device.kind for device in self._devices), key=_KINDS.index, default="measured")

    @property
    def name(self) -> str:
        """All devices, with where their figures come from."""
        return ", ".join(device.describe() for device in self._devices)

    @property
    def capacity(self) -> int | None:
        """Of all devices; None where one of them does not tell."""
        sizes = [device.capacity() for device in self._devices]
        return sum(size for size in sizes if size) if all(sizes) else None

    def read(self) -> int:
        """A device that fails is lost: it is said so, once, and its last figure stands, so that the rest can be judged."""
        if self.lost:
            return self._last[0]
        try:
            total = 0
            for device in self._devices:
                total += device.allocated()
        except Exception as error:  # noqa: BLE001 - a driver may fail in any way
            self.lost = _first_line(error)
            return self._last[0]
        self._last[0] = total
        return total

    def pieces(self) -> dict[Hashable, int] | None:
        """All pieces by device and identity; None where a device does not know its own."""
        found: dict[Hashable, int] = {}
        for at, device in enumerate(self._devices):
            pieces = device.pieces()
            if pieces is None:
                return None
            found |= {(at, key): size for key, size in pieces.items()}
        return found

    def peak(self) -> int | None:
        """The highest sum since `reset_peak`, at most: devices need not have been highest at the same moment."""
        if self.lost:
            return None
        peaks = [device.peak() for device in self._devices]
        return None if None in peaks else sum(peak for peak in peaks if peak)

    def reset_peak(self) -> None:
        if not self.lost:
            for device in self._devices:
                device.reset_peak()

    def limit(self, size: int) -> Callable[[], None]:
        """Let this process have so much on each device.

        Returns:
            What takes the limits away again.

        Raises:
            Unavailable: A device cannot be limited.
        """
        lifting: list[Callable[[], None]] = []

        def lift() -> None:
            while lifting:
                lifting.pop()()

        try:
            for device in self._devices:
                lifting.append(device.limit(size))  # noqa: PERF401 - of several, those that are limited must be lifted
        except Unavailable:
            lift()
            raise
        return lift

    def mark(self) -> None:
        """Remember the start, for `states`."""
        self._states = self._take()

    def states(self) -> tuple[tuple[State, State], ...]:
        """Each device at the start and now, what is not given out given back before."""
        now = self._take()
        return tuple(zip(self._states, now, strict=True)) if len(now) == len(self._states) else ()

    def _take(self) -> tuple[State, ...]:
        try:
            for device in self._devices:
                device.settle()
            return tuple(State(one.name, one.allocated(), one.reserved(), one.driver()) for one in self._devices)
        except Exception as error:  # noqa: BLE001 - as above
            self.lost = self.lost or _first_line(error)
            return ()


def _close(devices: Sequence[Device]) -> None:
    for device in devices:
        device.close()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
