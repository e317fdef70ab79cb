"""Open and close the instruments that read the counters of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from pytest_leakcheck.model.resources import DESCRIPTORS, GAUGE_PREFIX
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.catalog import open_instruments
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folders import Folder, watched_folders
from pytest_leakcheck.probes.garbage_collector import CollectorWatch
from pytest_leakcheck.probes.memory import Rss
from pytest_leakcheck.probes.native_heap import Heap
from pytest_leakcheck.probes.own_descriptors import count_overwritten
from pytest_leakcheck.probes.processes import TREE, Tree, process_tree


class Instruments:
    """The instruments that read the counters of one process; `device`, `resident` and `heap` are None if not read.

    `reads` has the reading functions of `probes`, by resource; `missing` says why a wanted resource cannot be read
    here. The caller opens `watch`, on the garbage collector, last.
    """

    def __init__(self, wanted: Iterable[str], gauges: Mapping[str, Callable[[], int]]) -> None:
        """Open the instruments; the caller may add `gauges` until the start level is read.

        Raises:
            Unavailable: Not even the process tree can be read here.
        """
        self.gauges = gauges
        self._overwritten = count_overwritten()
        self.tree: Tree = process_tree()
        self.tree.open()
        names = set(wanted)
        self.folders: dict[str, Folder] = {}
        self.probes, self.missing = open_instruments(names)
        self.reads = {probe.resource: probe.read for probe in self.probes}
        self.device = next((one for one in self.probes if isinstance(one, Vram)), None)
        self.resident = next((one for one in self.probes if isinstance(one, Rss)), None)
        self.heap = next((one for one in self.probes if isinstance(one, Heap)), None)
        if self.heap is not None:
            self.reads[self.heap.resource] = self.heap.read_in_series
        self.watch = CollectorWatch(self.tree.own, self.device.read if self.device is not None else None)
        try:
            self._open_folders(names)
        except BaseException:
            self.close()
            raise

    def _open_folders(self, names: set[str]) -> None:
        for folder in watched_folders():
            if folder.resource in names:
                try:
                    folder.open()
                except Unavailable as error:
                    self.missing[folder.resource] = error
                else:
                    self.folders[folder.resource] = folder

    def start(self, seconds: float) -> None:
        """Prepare the probes just before the start level is read; `seconds` is the duration of a short iteration."""
        if self.device is not None:
            self.device.mark()
        if self.heap is not None:
            self.heap.start(seconds)

    def close(self) -> None:
        """Close all but the watch on the garbage collector."""
        with ExitStack() as closing:
            # If one raises an exception, the others are closed nevertheless.
            closing.callback(self.tree.close)
            for probe in self.probes:
                closing.callback(probe.close)
            for folder in self.folders.values():
                closing.callback(folder.close)

    def reasons(self) -> dict[str, str]:
        """Return why wanted resources cannot be read, by resource, without those that this process does not use yet."""
        return {name: str(why) for name, why in self.missing.items() if not isinstance(why, NotInUse)}

    def device_for(self, resource: str) -> Vram | None:
        return self.device if self.device is not None and self.device.resource == resource else None

    def miscounted(self, verdict: Verdict) -> str:
        """Return why the count behind a verdict is wrong, if the program has disturbed what is counted."""
        outcome = verdict.outcome
        if verdict.resource == DESCRIPTORS:
            taken = count_overwritten() - self._overwritten
            if outcome in ("leak", "over_budget") and 0 < verdict.level <= taken:
                return "the test has put other files over descriptors of the plugin, which had to be opened again"
            return ""
        if verdict.traits.made_of != "objects":
            return ""
        if outcome == "ok" and self.watch.hides_objects():
            return "the test calls gc.freeze(), which hides new objects from the collector"
        if outcome == "over_budget" and self.watch.shows_old_objects():
            return "the test calls gc.unfreeze(), so older objects are counted as well"
        return ""

    def counter(self, resource: str) -> Callable[[], int]:
        """Return a reader of one counter, cheap enough for every traced call."""
        if resource in TREE:
            of_tree: tuple[Callable[[], int], ...] = (
                self.tree.own_fds,
                lambda: self.tree.own()[1],
                lambda: self.tree.read()[2],
            )
            return of_tree[TREE.index(resource)]
        if resource in self.folders:
            return self.folders[resource].read
        if self.heap is not None and resource == self.heap.resource:
            return self.heap.read
        return self.reads.get(resource) or self.gauges[resource.removeprefix(GAUGE_PREFIX)]
