"""Define the device interface and the instrument ``vram``, which sums all devices' memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.model.units import format_change
from pytest_leakcheck.probes.base import Unavailable

# From the most to the least trustworthy.
_KINDS_BY_TRUST: Final[tuple[Kind, ...]] = ("measured", "accounted", "simulated", "predicted")
# The smallest growth of the driver's count alone that is shown, in bytes: drivers count a few pages
# of their own.
_MIN_DRIVER_GROWTH: Final = 1 << 20


class Device:
    """Memory figures of one accelerator, in bytes; `allocated` and `peak` cover only this process.

    For a device that the plugin does not know, or for a simulated one, subclass `Device` and return
    an instance from the hook ``pytest_leakcheck_probes``. ``vram`` then reads only the devices that
    were returned there. Every report shows the origin of the figures (``kind``) unless it is
    ``"measured"``: ``"accounted"`` sums what the program allocates, ``"simulated"`` is a model of a
    device, ``"predicted"`` is for work that was not done.
    """

    name: str = "device"
    kind: Kind = "measured"

    def open(self) -> None:
        """Prepare for reading, or raise `Unavailable`.

        Allocate now what the first use of the device allocates once.
        """

    def allocated(self) -> int:
        """Return the bytes that live tensors occupy now."""
        raise NotImplementedError

    def driver(self) -> int | None:
        """Return the driver's count of bytes in use; None if it is not asked.

        The count may include other processes.
        """
        return None

    def capacity(self) -> int | None:
        """Return the device's total memory; None if unknown."""
        return None

    def pieces(self) -> Mapping[Hashable, int] | None:
        """Return the size of each allocation by an identifying key; None if unknown.

        The keys serve to find the line that made an allocation.
        """
        return None

    def peak(self) -> int | None:
        """Return the peak of `allocated` since `reset_peak`; None if unknown.

        If it is unknown, readings of `allocated` show it.
        """
        return None

    def reset_peak(self) -> None:
        """Set the peak to the bytes that are allocated now."""

    def settle(self) -> None:
        """Wait for pending work, and release unused reserved memory to the driver."""

    def limit(self, size: int) -> Callable[[], None]:
        """Limit this process to `size` bytes; return a function to undo it.

        Raise `Unavailable` if the device cannot be limited.
        """
        raise Unavailable(f"{self.name} cannot be limited to {size} bytes")

    def describe(self) -> str:
        """Return the source of the figures, for the report."""
        return self.name

    def close(self) -> None:
        """Release what `open` took."""


class Vram:
    """``vram``: bytes that live tensors occupy on all devices of this process.

    Resolution: the allocator's granularity, 512 bytes with torch. Noise: none. Cost: 11 to 160 µs
    per device, depending on the library. Scope: this process. Not counted: memory allocated outside
    the library's allocator (NCCL, contexts, other libraries), which the driver's count in
    `describe_growth` includes. `lost` is the error of the first device that failed; empty while all
    answer.
    """

    resource = "vram"

    def __init__(self, find: Callable[[], Sequence[Device]]) -> None:
        """Read the devices that `find` returns when the instrument is opened."""
        self._find = find
        self._devices: tuple[Device, ...] = ()
        self._opened = ExitStack()
        # The counts of each device at the start, by the allocator and by the driver (None if it is
        # not asked).
        self._marked: list[tuple[int, int | None]] = []
        # In an array, because an int would be a memory block of the plugin.
        self._last_total = array("q", (0,))
        self.lost = ""

    def open(self) -> None:
        devices = tuple(self._find())
        with ExitStack() as opened:
            for device in devices:
                try:
                    device.open()
                    opened.callback(device.close)
                    device.allocated()
                except Unavailable:
                    raise
                except Exception as error:
                    raise Unavailable(
                        f"{device.name} does not answer: {describe_error(error)}"
                    ) from error
            self._opened = opened.pop_all()
        self._devices = devices

    def close(self) -> None:
        self._opened.close()

    @property
    def kind(self) -> Kind:
        """The least trustworthy kind among the devices."""
        return max(
            (device.kind for device in self._devices), key=_KINDS_BY_TRUST.index, default="measured"
        )

    @property
    def name(self) -> str:
        return ", ".join(device.describe() for device in self._devices)

    @property
    def capacity(self) -> int | None:
        """The total memory of all devices; None if it is unknown for one of them."""
        sizes = [device.capacity() for device in self._devices]
        return sum(size for size in sizes if size) if all(sizes) else None

    def read(self) -> int:
        """Return the sum over all devices.

        Once a device fails, set `lost`, and return the last sum from then on.
        """
        if self.lost:
            return self._last_total[0]
        try:
            total = 0
            for device in self._devices:
                total += device.allocated()
        except Exception as error:  # noqa: BLE001 - a driver may fail in any way
            self.lost = describe_error(error)
            return self._last_total[0]
        self._last_total[0] = total
        return total

    def pieces(self) -> dict[Hashable, int] | None:
        """Return each piece's size by device and key; None if a device does not list its pieces."""
        found: dict[Hashable, int] = {}
        for at, device in enumerate(self._devices):
            pieces = device.pieces()
            if pieces is None:
                return None
            found |= {(at, key): size for key, size in pieces.items()}
        return found

    def peak(self) -> int | None:
        """Return the sum of the devices' peaks since `reset_peak`; None if unknown.

        It is an upper bound of the peak of the sum.
        """
        if self.lost:
            return None
        peaks = [device.peak() for device in self._devices]
        return None if None in peaks else sum(peak for peak in peaks if peak)

    def reset_peak(self) -> None:
        if not self.lost:
            for device in self._devices:
                device.reset_peak()

    def limit(self, size: int) -> Callable[[], None]:
        """Limit this process to `size` bytes on each device; return a function to undo it.

        Raise `Unavailable` if a device cannot be limited.
        """
        with ExitStack() as lifting:
            for device in self._devices:
                lifting.callback(device.limit(size))
            # If one cannot be limited, those before are lifted again.
            return lifting.pop_all().close

    def mark(self) -> None:
        """Note the counts of each device, with which `describe_growth` compares the later ones."""
        self._marked = self._counts()

    def describe_growth(self) -> str:
        """Return how the two counts of each device that grew have changed since `mark`.

        The counts are the allocator's and the driver's; the latter includes what other libraries
        take. The text is part of a sentence; empty if nothing grew.
        """
        counts, texts = self._counts(), []
        for device, before, now in zip(self._devices, self._marked, counts, strict=False):
            growth = now[0] - before[0]
            of_driver = None if before[1] is None or now[1] is None else now[1] - before[1]
            if growth > 0 or (of_driver is not None and of_driver >= _MIN_DRIVER_GROWTH):
                driver = (
                    ""
                    if of_driver is None
                    else f" by the allocator, {format_change(of_driver, 'bytes')} by the driver"
                )
                texts.append(f"{device.name} {format_change(growth, 'bytes')}{driver}")
        return ", ".join(texts)

    def _counts(self) -> list[tuple[int, int | None]]:
        """Read both counts of each device, after `Device.settle`; empty if a device fails."""
        try:
            for device in self._devices:
                device.settle()
            return [(device.allocated(), device.driver()) for device in self._devices]
        except Exception:  # noqa: BLE001 - a driver may fail in any way
            # `read` will notice.
            return []
