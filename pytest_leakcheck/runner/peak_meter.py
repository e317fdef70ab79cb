"""Measure peaks of a run at each call and return; for memory, also by the kernel's high-water mark.

This works only in a process started for it: a tracer is on while the test runs, and the high-water
mark is reset.
"""

from __future__ import annotations

import gc
import sys
import threading
from array import array
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import path_to
from pytest_leakcheck.attribution.inspection import name_of_called
from pytest_leakcheck.attribution.tracing.allocations import Composition, highest_at, tracing_memory
from pytest_leakcheck.attribution.tracing.backends import Tracer
from pytest_leakcheck.attribution.tracing.tracer import Event, Handler, outer_frame
from pytest_leakcheck.model.culprit import Culprit, Site
from pytest_leakcheck.model.recording import Series, UserPhase
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.memory import PeakRss
from pytest_leakcheck.probes.processes import TREE
from pytest_leakcheck.runner.readings import Instruments

# Seconds that the tracer assumes as the duration of an untraced run. Its events (calls and returns)
# may cost three times this before those of deep calls are left out, and end after six times this.
_PLAIN_SECONDS: Final = 1.0
# Seconds of the run that are traced if the composition of memory (the lines and the owners that
# hold it) is wanted. Tracing all allocations makes such a run slower. Deep calls are still left out
# when they cost too much.
_COMPOSITION_SECONDS: Final = 60.0
# After a reading for the composition of memory, the next one must wait for this many times the cost
# of the reading. The cost is CPU time, so a delay of some milliseconds by another process does not
# raise it. A look at the composition costs much more, but there are few. It delays only the next
# one at the same height: memory may rise in the meantime.
_REST_FACTOR: Final = 8.0
# CPU seconds of such readings without a rest. The peak of a short run may last for one call, so
# each of its calls is read: a reading takes 0.3 ms.
_UNRESTED_SECONDS: Final = 0.5
# If the kernel's high-water mark exceeds the highest exact reading by at most this many bytes, the
# two agree. It is two of the batches of 32 pages in which the kernel counts.
_MARK_TOLERANCE_BYTES: Final = 1 << 18


class Meter:
    """The peaks of one run of a test.

    Use it once: call `begin` just before the run, `checkpoint` in it, and `end` right after it.
    `unavailable` says why a resource has no peak. If not `exact`, the peak of memory may be the
    kernel's mark; `at_calls` is the highest reading.
    """

    def __init__(self, wanted: Iterable[str], naming: int = 0) -> None:
        """Open the instruments.

        The composition of memory is inspected once it has risen by `naming` bytes (0: never).
        """
        names = set(wanted)
        self._gauges: dict[str, Callable[[], int]] = {}
        self._phases: dict[str, UserPhase] = {}
        self._instruments = Instruments(names - {RESIDENT}, {})
        self.unavailable = {name: str(why) for name, why in self._instruments.missing.items()}
        self._device = self._instruments.device
        self._reads: dict[str, Callable[[], int]] = {
            name: self._instruments.in_tree(name) for name in TREE if name in names
        }
        self._reads |= {probe.resource: probe.read for probe in self._instruments.probes}
        self._reads |= {name: folder.read for name, folder in self._instruments.folders.items()}
        self._rss = self._open_rss() if RESIDENT in names else None
        self._blocks = sys.getallocatedblocks()
        self._composition = Composition(RESIDENT, naming) if naming else None
        self._paths: dict[str, tuple[Site, ...]] = {}
        self._peaks = dict.fromkeys([*self._reads, *([RESIDENT] if self._rss else [])], 0)
        # The start level of each counter, and its highest reading in the current phase. In arrays,
        # because an int object kept per event would add to the peak.
        self._starts = array("q", bytes(8 * len(self._reads)))
        self._tops = array("q", bytes(8 * len(self._reads)))
        self._rss_start = self._rss_top = 0
        # Several threads may read at the same time. Under this lock, the lower reading of one does
        # not overwrite a higher one of another. The lock is never held during a reading, because a
        # gauge may take the user's locks.
        self._peaks_lock = threading.RLock()
        self._rest_until = self._look_rest_until = self._reading_seconds = 0.0
        self.exact = True
        self.at_calls = 0

    @property
    def device(self) -> str:
        """The source of device figures; empty if there is no device."""
        return self._device.name if self._device is not None else ""

    def _open_rss(self) -> PeakRss | None:
        mark = PeakRss()
        try:
            mark.open()
        except Unavailable as error:
            self.unavailable[RESIDENT] = str(error)
            return None
        return mark

    def begin(self) -> None:
        gc.collect()
        look, longest = (
            (self._read_all, 0.0)
            if self._composition is None
            else (self._read_for_composition, _COMPOSITION_SECONDS)
        )
        self._tracer = Tracer(_CallListener(look), _PLAIN_SECONDS, longest)
        if self._device is not None:
            self._device.mark()
            self._device.reset_peak()
        for at, read in enumerate(self._reads.values()):
            self._starts[at] = self._tops[at] = read()
        if self._rss is not None:
            self._rss.trim()
            self._rss_start = self._rss_top = self._rss.reset()
        self._tracer.arm()

    def end(self) -> tuple[tuple[Series, ...], dict[str, int], tuple[UserPhase, ...]]:
        """Stop tracing and close the instruments.

        Return the start and end reading of each counter, its peak above the start level, and its
        peaks in each phase.
        """
        self._tracer.close()
        self._read_all()
        self._take_phase()
        if self._tracer.interrupted:
            # Counters that are read at calls may have missed their peak; the kernel's mark has not.
            why = f"the test was not traced to its end: {self._tracer.interrupted}"
            self._discard_peaks(*(name for name in self._peaks if name != RESIDENT), why=why)
            self.exact = False
        now = [read() for read in self._reads.values()]
        if self._device is not None and self._device.lost:
            self._discard_peaks(
                self._device.resource, why=f"the device was lost: {self._device.lost}"
            )
        kinds = {self._device.resource: self._device.kind} if self._device is not None else {}
        series = tuple(
            Series(name, (start, last), kind=kinds.get(name, "measured"))
            for name, start, last in zip(self._reads, self._starts, now, strict=True)
        )
        if self._rss is not None:
            series += (Series(RESIDENT, (self._rss_start, self._rss.reset())),)
            self._rss.close()
        self._instruments.close()
        return series, dict(self._peaks), tuple(self._phases.values())

    def _discard_peaks(self, *names: str, why: str) -> None:
        for name in names:
            self.unavailable[name] = why
            self._peaks.pop(name, None)

    def checkpoint(self, label: str) -> None:
        """End the current phase of the test, and record its peaks under this label."""
        self._read_all(outer_frame(sys._getframe(1)))
        found = self._take_phase()
        known = self._phases.get(label)
        highest = {
            name: max(peak, known.amounts.get(name, peak) if known else peak)
            for name, peak in found.items()
        }
        self._phases[label] = UserPhase(label, highest, (known.count if known else 0) + 1)

    def gauge(self, name: str, read: Callable[[], int] | int, rank: int | None = None) -> None:
        """Follow a user's counter, read at each call and return; a number is a single reading.

        `rank` is the rank that it belongs to, if several ranks share a process.
        """
        key = f"{GAUGE_PREFIX}{name}" + ("" if rank is None else f"@{rank}")
        self._peaks.setdefault(key, 0)
        if callable(read):
            self._gauges[key] = read
        else:
            self._raise_peak(key, read)

    def _raise_peak(self, name: str, value: int) -> None:
        """Raise the peak of a counter to this amount above its start level, unless it is higher."""
        with self._peaks_lock:
            self._peaks[name] = max(self._peaks.get(name, 0), value)

    def _inspect_composition(self, frame: FrameType | None) -> None:
        composition, began = self._composition, clock.thread_time()
        if composition is None or frame is None or self._rss is None:
            return
        risen = self._risen(self._rss)
        wanted = composition.wants(frame, risen, rested=clock.monotonic() >= self._look_rest_until)
        self._reading_seconds += clock.thread_time() - began
        if self._reading_seconds > _UNRESTED_SECONDS:
            self._rest_until = self._rest_since(began)
        if wanted:
            self._rss.trim()
            composition.look(frame, risen, self._risen(self._rss))
            self._look_rest_until = self._rest_since(began)
            # Charge nothing for it, as if another thread had run: calls as deep as this one would
            # be left out.
            self._tracer.throttle.turn += 1

    def _rest_since(self, began: float) -> float:
        """Return until when to rest after work that this thread began at that CPU time."""
        return clock.monotonic() + _REST_FACTOR * (clock.thread_time() - began)

    def _risen(self, rss: PeakRss) -> int:
        """Return the resident memory above the start level, without that of the trace."""
        return rss.now() - self._rss_start - tracing_memory(self._blocks)

    def culprits(self) -> list[Culprit]:
        """Return where each counter peaked, and the composition of memory; call it after `end`."""
        found = [highest_at(name, path) for name, path in self._paths.items()]
        named = [self._composition.culprit()] if self._composition else []
        return [*(one for one in found if one is not None), *named]

    def _take_phase(self) -> dict[str, int]:
        """Return the peaks of this phase above the start level, and begin another phase."""
        found = {}
        for at, (name, read) in enumerate(self._reads.items()):
            mark, now = self._take_device_peak(name), read()
            with self._peaks_lock:
                found[name] = max(self._tops[at], mark, now) - self._starts[at]
                self._tops[at] = now
        if self._rss is not None:
            # The kernel's mark is coarse, but misses nothing. Readings at calls are exact, but miss
            # memory that is allocated and released within one C call. If both agree, the exact one
            # counts.
            mark, now = self._rss.read(), self._rss.reset()
            with self._peaks_lock:
                self.at_calls = max(self.at_calls, self._rss_top - self._rss_start)
                if mark - self._rss_top > _MARK_TOLERANCE_BYTES:
                    self._rss_top, self.exact = mark, False
                found[RESIDENT] = self._rss_top - self._rss_start
                self._rss_top = now
        for name, peak in found.items():
            self._raise_peak(name, peak)
        return found

    def _take_device_peak(self, name: str) -> int:
        """Return the device's peak since the last reset, and reset it; 0 if there is none."""
        if self._device is None or name != self._device.resource:
            return 0
        highest = self._device.peak() or 0
        self._device.reset_peak()
        return highest

    def _read_for_composition(self, frame: FrameType, _called: Any) -> None:
        """Inspect the composition of memory, rarely: tracing makes each reading expensive."""
        if clock.monotonic() >= self._rest_until:
            self._inspect_composition(frame)

    def _read_all(self, frame: FrameType | None = None, called: Any = None) -> None:
        """Read all counters, raise the highest values, and keep the call path of each new peak."""
        if self._rss is not None:
            resident = self._rss.now()
            with self._peaks_lock:
                self._rss_top = max(self._rss_top, resident)
            self._inspect_composition(frame)
        for at, (name, read) in enumerate(self._reads.items()):
            value = read()
            if value > self._tops[at]:
                with self._peaks_lock:
                    self._tops[at] = max(self._tops[at], value)
                if frame is not None and value - self._starts[at] > self._peaks[name]:
                    self._paths[name] = path_to(
                        frame, f"{name_of_called(called)}()" if called is not None else ""
                    )
        # Iterate over a copy, because other threads may add gauges during the loop.
        for name, gauge in list(self._gauges.items()):
            try:
                value = gauge()
            except Exception as error:  # noqa: BLE001 - the user's function may raise anything
                self._gauges.pop(name, None)
                self._peaks.pop(name, None)
                self.unavailable[name.partition("@")[0]] = (
                    f"its reading failed: {type(error).__name__}: {error}"
                )
            else:
                self._raise_peak(name, value)


class _CallListener:
    def __init__(self, look: Callable[[FrameType, Any], None]) -> None:
        self._look = look

    def begin(self) -> None:
        """Do nothing, because no state is kept between iterations."""

    def handler(self) -> Handler:
        look = self._look

        def on_event(event: Event, frame: FrameType, called: Any) -> None:
            # A C function that is about to be called has changed nothing yet.
            if event != "c_call":
                look(frame, called)

        return on_event
