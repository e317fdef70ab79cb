"""Takes the peaks of one run: memory from the kernel's high-water mark, what can be counted at each call and return.

Only in a process that was started for it: a tracer is on while the test runs, and the mark is set back.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.object_inspection import name_of_called
from pytest_leakcheck.attribution.tracing.frames import path_to
from pytest_leakcheck.attribution.tracing.peak_composition import Composition, highest_at
from pytest_leakcheck.attribution.tracing.trace_events import Event, Handler
from pytest_leakcheck.attribution.tracing.tracer import Tracer, outer_frame
from pytest_leakcheck.model.culprit import Culprit, Site
from pytest_leakcheck.model.recording import Phase, Series
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT
from pytest_leakcheck.probes.base import Instrument, Unavailable
from pytest_leakcheck.probes.catalog import CATALOG, open_instruments
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folder_changes import Changes, follow
from pytest_leakcheck.probes.folders import watched_folders
from pytest_leakcheck.probes.memory import PeakRss
from pytest_leakcheck.probes.processes import TREE, Tree, process_tree

# Events may cost four times this, in seconds, before the deep ones are left out.
_PLAIN: Final = 1.0
# Where it is looked into what memory is made of, the run is slower by itself, since allocations are followed: so many
# seconds of it are watched, the deep calls left out as they cost too much.
_WHILE_NAMING: Final = 60.0
# Of the time between two readings of memory that is to be looked into, they take one part in so many. What they take is
# counted in time of the processor: a reading that another process holds up for some milliseconds costs no more than any.
_REST: Final = 8.0
# How far the kernel's mark and an exact reading may lie apart: two batches of 32 pages.
_COARSE: Final = 1 << 18


class Meter:
    """Use once: `begin` just before, `checkpoint` meanwhile, `end` right after.

    Attributes:
        unavailable: Why there is no peak of a wanted resource.
        exact: The peak of memory is that of one moment between two calls; if not, it is the kernel's own mark.
    """

    def __init__(self, wanted: Iterable[str], naming: int = 0) -> None:
        """
        Args:
            wanted: Resources; gauges come by `gauge`.
            naming: Bytes of memory above the start at which to look what it is made of; 0 for never.
        """
        names = set(wanted)
        self.unavailable: dict[str, str] = {}
        self._reads: dict[str, Callable[[], int]] = {}
        self._closing: list[Callable[[], None]] = []
        self._gauges: dict[str, Callable[[], int]] = {}
        self._phases: dict[str, Phase] = {}
        self._rss = self._open_rss() if RESIDENT in names else None
        self._open_tree(names)
        self._open_instruments(names)
        self._open_folders(names)
        self._composition = Composition(RESIDENT, naming) if naming else None
        self._paths: dict[str, tuple[Site, ...]] = {}
        self._peaks = dict.fromkeys([*self._reads, *([RESIDENT] if self._rss else [])], 0)
        # Numbers in place: an int kept per event would be memory of ours in the peak.
        self._starts = array("q", bytes(8 * len(self._reads)))
        self._tops = array("q", bytes(8 * len(self._reads)))
        self._rss_start = self._rss_top = 0
        # The ranks of a world of threads look side by side: what one has read must not overwrite what another has seen
        # stand higher meanwhile. No reading is made with it held, since a gauge may take locks of the user's.
        self._raising = threading.RLock()
        self._rest_until = 0.0
        self.exact = True

    @property
    def device(self) -> str:
        """Where figures of devices come from; empty where there are none."""
        return self._device.name if self._device is not None else ""

    def _open_rss(self) -> PeakRss | None:
        mark = PeakRss()
        try:
            mark.open()
        except Unavailable as error:
            self.unavailable[RESIDENT] = str(error)
            return None
        self._closing.append(mark.close)
        return mark

    def _open_tree(self, names: set[str]) -> None:
        if names.isdisjoint(TREE):
            return
        tree: Tree = process_tree()
        tree.open()
        self._closing.append(tree.close)
        reads = [lambda at=at: tree.read()[at] for at in range(len(TREE))]
        self._reads |= {name: read for name, read in zip(TREE, reads, strict=True) if name in names}

    def _open_instruments(self, names: set[str]) -> None:
        instruments: list[Instrument]
        instruments, missing = open_instruments((names & CATALOG.keys()) - {RESIDENT})
        self.unavailable |= {name: str(why) for name, why in missing.items()}
        for instrument in instruments:
            self._reads[instrument.resource] = instrument.read
            self._closing.append(instrument.close)
        self._device = next((one for one in instruments if isinstance(one, Vram)), None)

    def _open_folders(self, names: set[str]) -> None:
        for folder in watched_folders():
            if folder.resource in names:
                try:
                    entries = _Entries(folder.path)
                except OSError as error:
                    self.unavailable[folder.resource] = f"{folder.path}: {error.strerror}"
                else:
                    self._reads[folder.resource] = entries.read
                    self._closing.append(entries.close)

    def begin(self) -> None:
        """From here on."""
        gc.collect()
        look, longest = (self._look, 0.0) if self._composition is None else (self._seek, _WHILE_NAMING)
        self._tracer = Tracer(_AtEachCall(look), _PLAIN, longest)
        if self._device is not None:
            self._device.mark()
            self._device.reset_peak()
        for at, read in enumerate(self._reads.values()):
            self._starts[at] = self._tops[at] = read()
        if self._rss is not None:
            self._rss.trim()
            self._rss_start = self._rss_top = self._rss.reset()
        self._tracer.arm()

    def end(self) -> tuple[tuple[Series, ...], dict[str, int], tuple[Phase, ...]]:
        """Give everything back.

        Returns:
            Start and end of each counter, how far each stood above its start at its highest, and the same for phases.
        """
        self._tracer.close()
        self._look()
        self._take_phase()
        if self._tracer.interrupted:
            # What was counted at calls is no peak then. The kernel's mark still is one.
            why = f"the test was not followed to its end: {self._tracer.interrupted}"
            self._distrust(*(name for name in self._peaks if name != RESIDENT), why=why)
            self.exact = False
        now = [read() for read in self._reads.values()]
        if self._device is not None and self._device.lost:
            self._distrust(self._device.resource, why=f"the device was lost: {self._device.lost}")
        kinds = {self._device.resource: self._device.kind} if self._device is not None else {}
        series = tuple(
            Series(name, (start, last), kind=kinds.get(name, "measured"))
            for name, start, last in zip(self._reads, self._starts, now, strict=True)
        )
        if self._rss is not None:
            series += (Series(RESIDENT, (self._rss_start, self._rss.reset())),)
        for close in self._closing:
            close()
        return series, dict(self._peaks), tuple(self._phases.values())

    def _distrust(self, *names: str, why: str) -> None:
        for name in names:
            self.unavailable[name] = why
            self._peaks.pop(name, None)

    def checkpoint(self, label: str) -> None:
        """A phase of the test ends here."""
        self._look(outer_frame(sys._getframe(1)))
        found = self._take_phase()
        known = self._phases.get(label)
        highest = {name: max(peak, known.amounts.get(name, peak) if known else peak) for name, peak in found.items()}
        self._phases[label] = Phase(label, highest, (known.count if known else 0) + 1)

    def gauge(self, name: str, read: Callable[[], int] | int, rank: int | None = None) -> None:
        """Follow a counter of the user's own; a number is one reading of it.

        Args:
            name: As it was given.
            read: At each call and return, or the reading itself.
            rank: Whose it is, where several ranks share a process.
        """
        key = f"{GAUGE_PREFIX}{name}" + ("" if rank is None else f"@{rank}")
        self._peaks.setdefault(key, 0)
        if callable(read):
            self._gauges[key] = read
        else:
            self._reach(key, read)

    def _reach(self, name: str, value: int) -> None:
        """A counter stands as far as this above its start."""
        with self._raising:
            self._peaks[name] = max(self._peaks.get(name, 0), value)

    def _look_into(self, risen: int, frame: FrameType | None) -> None:
        if self._composition is not None and frame is not None and self._composition.wants(frame, risen):
            self._composition.look(frame, risen)

    def culprits(self) -> list[Culprit]:
        """After the end: where each counter was highest, and what memory was made of."""
        found = [highest_at(name, path) for name, path in self._paths.items()]
        named = [self._composition.culprit()] if self._composition else []
        return [*(one for one in found if one is not None), *named]

    def _take_phase(self) -> dict[str, int]:
        """What the counters stood at at their highest since the last phase began; another begins."""
        found = {}
        for at, (name, read) in enumerate(self._reads.items()):
            mark, now = self._mark_of(name), read()
            with self._raising:
                found[name] = max(self._tops[at], mark, now) - self._starts[at]
                self._tops[at] = now
        if self._rss is not None:
            # The mark is coarse and misses nothing; what was read at each call is exact, and misses what comes and goes in
            # one call of C. Where the two agree, the exact one counts.
            mark, now = self._rss.read(), self._rss.reset()
            with self._raising:
                if mark - self._rss_top > _COARSE:
                    self._rss_top, self.exact = mark, False
                found[RESIDENT] = self._rss_top - self._rss_start
                self._rss_top = now
        for name, peak in found.items():
            self._reach(name, peak)
        return found

    def _mark_of(self, name: str) -> int:
        """What a device has kept as its highest since this was last asked; nothing is hidden from that."""
        if self._device is None or name != self._device.resource:
            return 0
        highest = self._device.peak() or 0
        self._device.reset_peak()
        return highest

    def _seek(self, frame: FrameType, _called: Any) -> None:
        """Where memory is to be looked into, nothing else is wanted; and each reading costs more, since it is followed."""
        if time.perf_counter() < self._rest_until or self._rss is None:
            return
        began = time.thread_time()
        # What the trace itself takes is none of the test's.
        self._look_into(self._rss.now() - self._rss_start - tracemalloc.get_tracemalloc_memory(), frame)
        self._rest_until = time.perf_counter() + _REST * (time.thread_time() - began)

    def _look(self, frame: FrameType | None = None, called: Any = None) -> None:
        if self._rss is not None:
            resident = self._rss.now()
            with self._raising:
                self._rss_top = max(self._rss_top, resident)
            self._look_into(resident - self._rss_start, frame)
        for at, (name, read) in enumerate(self._reads.items()):
            value = read()
            if value > self._tops[at]:
                with self._raising:
                    self._tops[at] = max(self._tops[at], value)
                if frame is not None and value - self._starts[at] > self._peaks[name]:
                    self._paths[name] = path_to(frame, f"{name_of_called(called)}()" if called is not None else "")
        # Several threads may add to them meanwhile.
        for name, gauge in list(self._gauges.items()):
            try:
                value = gauge()
            except Exception as error:  # noqa: BLE001, PERF203 - the user's own; what went wrong is said in its place
                self._gauges.pop(name, None)
                self._peaks.pop(name, None)
                self.unavailable[name.partition("@")[0]] = f"its reading failed: {type(error).__name__}: {error}"
            else:
                self._reach(name, value)


class _AtEachCall:
    """Listens to a tracer."""

    def __init__(self, look: Callable[[FrameType, Any], None]) -> None:
        self._look = look

    def begin(self) -> None:
        """Nothing is remembered."""

    def handler(self) -> Handler:
        look = self._look

        def on_event(event: Event, frame: FrameType, called: Any) -> None:
            # What is only about to be called has changed nothing yet.
            if event != "c_call":
                look(frame, called)

        return on_event

    def became_coarse(self) -> None:
        """What comes and goes deep down is then seen only if it is still there further out."""


class _Entries:
    """How many entries a folder has gained: listed only when something has changed.

    What was there before does not count, so another process that removes its files hides none of the test's.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._changes: Changes = follow([path])
        self._lock = threading.Lock()
        self._before = frozenset(os.listdir(path))  # noqa: PTH208 - as below
        self._count = 0

    def read(self) -> int:
        # Threads look at their calls side by side: one of them is enough.
        if self._lock.acquire(blocking=False):
            try:
                if self._changes.take():
                    self._count = self._list()
            finally:
                self._lock.release()
        return self._count

    def _list(self) -> int:
        # At every change: a Path would make an object for each.
        return sum(name not in self._before for name in os.listdir(self._path))  # noqa: PTH208

    def close(self) -> None:
        self._changes.close()
