"""Read all counters of one process: each `read` adds a row to preallocated columns."""

from __future__ import annotations

import gc
import logging
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack

from pytest_leakcheck.model.resources import GAUGE_PREFIX, OBJECTS, find_resource
from pytest_leakcheck.probes.child_reports import read_reports
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folders import Folder
from pytest_leakcheck.probes.garbage_collector import ROUNDS, has_frozen
from pytest_leakcheck.probes.processes import TREE, TreeCount, descendants
from pytest_leakcheck.probes.reference_counts import Account, References
from pytest_leakcheck.runner.readings import CollectionPace, Instruments, Pace, Samples
from pytest_leakcheck.runner.settling import Settling


class _FrozenObjects:
    """The objects of the start: frozen, they do not count, but what replaces them does."""

    # To count the frozen objects takes milliseconds, so that is done only just after a freeze and
    # on suspicion.

    def __init__(self) -> None:
        # How many were frozen, and how many of these had gone before a later freeze. In an array,
        # because an int object would be a block that the harness allocates.
        self._counts = array("q", (0, 0))
        self.is_due = False

    def begin(self) -> None:
        """Count the frozen objects at the start of a series."""
        self._counts[0], self._counts[1] = gc.get_freeze_count(), 0

    def keep(self) -> None:
        """Take note of those that are gone, just before all objects are unfrozen."""
        self._counts[1] = self.gone

    def note(self) -> None:
        """Count them again after a freeze amid a series.

        Those that pytest makes in each iteration are replaced next.
        """
        self._counts[0] = gc.get_freeze_count()
        self.is_due = True

    def take(self) -> int:
        """Return how many are gone since `note`, once the next iteration has ended.

        `gone` does not count these.
        """
        earlier, self.is_due = self._counts[0], False
        self._counts[0] = gc.get_freeze_count()
        return earlier - self._counts[0]

    @property
    def gone(self) -> int:
        """How many of them no longer exist."""
        # None are frozen if the program has called `gc.unfreeze`.
        return self._counts[1] + (
            max(0, self._counts[0] - gc.get_freeze_count()) if has_frozen() else 0
        )


class Sampler:
    """Reads the counters of one process, a row at a time.

    If `patient`, it waits after each row for what will end soon.
    """

    def __init__(
        self,
        wanted: Iterable[str],
        gauges: Mapping[str, Callable[[], int]],
        capacity: int,
        allowed: Mapping[str, float] | None = None,
        *,
        walk_now: bool = True,
    ) -> None:
        """Open the instruments.

        Gauges that are added before `start` are read too. Growth per row of up to `allowed` beyond
        the tolerance is no reason to read an expensive counter more often. For `walk_now`, see
        `CollectorWatch.open`.

        Raises:
            Unavailable: Not even the process tree can be read here.
        """
        self.patient = False
        # In an array, because a reference to the float would retain it.
        self._seconds = array("d", (0.0,))
        self.samples = Samples(capacity)
        self.instruments = Instruments(wanted, gauges)
        try:
            self._make_columns(allowed or {})
            self.instruments.watch.open(walk_now=walk_now)
        except BaseException:
            self.instruments.close()
            raise
        _renew_handlers()
        self._collection = CollectionPace(self.instruments.watch)
        # The garbage that thawing has found after row `_thawed_at`, by resource. It exists only
        # until the first asks.
        self._garbage: Counter[str] = Counter()
        self._thawed_at = 0
        self.frozen = _FrozenObjects()
        self.settling = Settling(self.samples, self.instruments)

    def _make_columns(self, allowed: Mapping[str, float]) -> None:
        samples, instruments = self.samples, self.instruments
        for name in TREE:
            samples.columns[name], samples.released[name] = (
                samples.new_column(),
                samples.new_column(),
            )
        self._fds, self._threads, self._processes = samples.columns.values()
        self._quick: list[tuple[Callable[[], int], array[int], array[int]]] = []
        self._due = array("q", (0,))
        for probe in instruments.probes:
            name, own = probe.resource, array("q", (0,))
            resource = find_resource(name)
            column = samples.columns[name] = samples.new_column()
            if resource.counts_python:
                self.samples.own[name] = own
            if isinstance(probe, Vram):
                samples.kinds[name], samples.released[name] = probe.kind, samples.new_column()
            if resource.paced:
                tolerance = resource.tolerance + allowed.get(name, 0.0)
                samples.paced.append(Pace(instruments.reads[name], column, own, tolerance))
            else:
                self._quick.append((instruments.reads[name], column, own))
        self._folders: list[tuple[Folder, array[int]]] = []
        for name, folder in instruments.folders.items():
            samples.columns[name] = samples.new_column()
            self._folders.append((folder, samples.columns[name]))

    def close(self) -> None:
        """Close the instruments; the rows stay."""
        with ExitStack() as closing:
            closing.callback(self.instruments.close)
            closing.callback(self.instruments.watch.close)

    def start(self, seconds: float = 0.0, *, walks_frozen: bool = True) -> None:
        """Read row 0, the start level, and discard earlier rows.

        `seconds` is the duration of a short iteration. Without `walks_frozen`, frozen objects are
        not counted, and `frozen` tells nothing.
        """
        self._seconds[0] = seconds
        # It would be a block at the start level alone.
        del seconds
        for name in self.instruments.gauges:
            self.samples.columns.setdefault(GAUGE_PREFIX + name, self.samples.new_column())
        for folder in self.instruments.folders.values():
            folder.restart()
        for released in self.samples.released.values():
            released[:] = self.samples.new_column()
        self.samples.restart()
        self.settling.joins_in_vain = 0
        self._garbage.clear()
        # A collection also untracks tuples and dicts that hold only atomic values, one nesting
        # level at a time. This must be complete before the start level is read.
        for _ in range(ROUNDS):
            self.instruments.watch.collect()
        self._collection.restart()
        resident = self.instruments.resident
        if resident is not None and resident.named:
            self.samples.follow_children(
                descendants(os.getpid()) if self.instruments.tree.read().process else ()
            )
        self.instruments.start(self._seconds[0])
        # What the children of earlier tests have released counts for none.
        read_reports()
        self.settling.start_clocks()
        # What the first reading of the folders allocates is then part of the start level.
        self._read_folders(0)
        if walks_frozen:
            self.frozen.begin()
        self._read_into(0, True)

    def read(self, whole: bool = True) -> None:  # noqa: FBT002 - by position, because it is called in each iteration
        """Collect garbage and add the row of an iteration.

        With ``whole``, all garbage is collected and all counters are read, even those that are not
        due yet (`Pace`).
        """
        row = self.samples.n + 1
        if self.frozen.is_due and OBJECTS in self.samples.own:
            self.samples.leave_out(OBJECTS, self.frozen.take())
        self._read_into(row, whole)
        self.samples.n = row
        if self.patient:
            self.settling.settle()
        self.settling.pace()

    def fill(self) -> None:
        """Take as long as for a row, so that iterations follow each other as fast as they will."""
        self._read_into(self.samples.n + 1, True)
        self.settling.pace()

    @property
    def children(self) -> int:
        return self._processes[self.samples.n]

    def thaw(self, resource: str) -> int:
        """Unfreeze all objects; return how much of a resource was held by garbage frozen alive."""
        if not self.instruments.watch.enabled:
            return 0
        self.frozen.keep()
        found = self.instruments.watch.thaw()
        if self._thawed_at != self.samples.n:
            self._thawed_at = self.samples.n
            self._garbage.clear()
        for name in {resource, *self.samples.own}:
            # Unfrozen objects cannot be told from the program's other ones, so the collected
            # garbage is counted.
            objects = find_resource(name).made_of == "objects"
            self._garbage[name] += (
                found
                if objects
                else self.samples.level(name) - self.instruments.read_one(name, self.samples)
            )
        return self._garbage[resource]

    def account(self, references: References, at: int) -> Account:
        """Look who holds an object, as `References.account`, with nothing frozen meanwhile."""
        self.thaw(references.resource)
        account = references.account(at)
        self.refreeze()
        return account

    def refreeze(self) -> None:
        """Freeze again and go on with the series; collected garbage still counts as memory."""
        self.instruments.watch.refreeze()
        for name, value in zip(TREE, self.instruments.tree.read(), strict=True):
            self.samples.correct_last(name, value, "garbage")
        self.subtract_own_work()
        self.frozen.note()

    def collect_earlier_garbage(self) -> None:
        """Collect the garbage of earlier tests once a counter rises steadily.

        It does nothing if that was done before the freeze. Frozen garbage can explain only growth,
        so a test without growth is spared the walk over all objects. Call it after each row,
        because little that the test itself has turned into garbage since the start may be part of
        it.
        """
        watch = self.instruments.watch
        if watch.owes_walk and watch.enabled and self.samples.rises_steadily():
            watch.thaw()
            self.refreeze()

    def forget_own_work(self) -> None:
        """Reset the harness's part: nothing is frozen now; the caller must restart the series."""
        for own in self.samples.own.values():
            own[0] = 0

    def came_down(self, resource: str) -> int:
        """Collect garbage, and return how far a counter has fallen since the last row."""
        return self.samples.level(resource) - self.instruments.read_collected(
            resource, self.samples
        )

    def subtract_own_work(self) -> None:
        """Subtract memory allocated since the last row, which is the harness's, from later rows."""
        # Use the same code as for a row, with the next row as scratch space: the result of other
        # code would differ by a temporary object.
        scratch = self.samples.n + 1
        self._read_into(scratch, True)
        for name in self.samples.own:
            self.samples.leave_out(
                name,
                self.samples.columns[name][scratch] - self.samples.columns[name][self.samples.n],
            )
        for paced in self.samples.paced:
            paced.go_back_to(self.samples.n)
        self._due[0] = self.samples.n + 1

    def _read_into(self, row: int, whole: bool) -> None:
        self._read_tree(row, whole)
        for read, column, own in self._quick:
            column[row] = read() - own[0]
        if whole or row >= self._due[0]:
            self._read_paced(row, whole=whole)
        # After the memory, because the changes that other programs make there would be counted: the
        # interpreter keeps what was freed in its free lists until the next collection.
        self._read_folders(row)
        for name, gauge in self.instruments.gauges.items():
            self.samples.columns[GAUGE_PREFIX + name][row] = gauge()

    def _read_folders(self, row: int) -> None:
        for folder, column in self._folders:
            if folder.is_due():
                self._list_folder(folder, row)
            column[row] = folder.count

    def _read_paced(self, row: int, *, whole: bool) -> None:
        due = self.samples.capacity
        for paced in self.samples.paced:
            if whole or row >= paced.due:
                paced.read_into(row)
            due = min(due, paced.due)
        self._due[0] = due

    def _list_folder(self, folder: Folder, row: int) -> None:
        if folder.private:
            folder.relist(row)
            return
        # Memory that a shared folder allocates to remember entries of unknown origin is the
        # harness's own.
        _shift(self.samples.own, self.instruments, -1)
        folder.relist(row)
        _shift(self.samples.own, self.instruments, 1)

    def _read_tree(self, row: int, whole: bool) -> None:
        # In a separate frame: its tuples are objects too, and are released before the objects are
        # counted.
        before = self.instruments.tree.read()
        if row and before.thread > self._threads[row - 1] and self.settling.awaits_joined:
            before = self.settling.await_joined(self._threads[row - 1])
        device, watch = self.instruments.device, self.instruments.watch
        on_device = device.read() if device is not None else 0
        own = self.instruments.tree.own()
        objects = (
            self.samples.columns[OBJECTS][row - 1] if row and OBJECTS in self.samples.columns else 0
        )
        collected = watch.enabled and self._collection.collect(row, objects, whole=whole)
        # The garbage of most tests holds no handle of this process. The collector does not tell:
        # the finalizer of an event loop, for example, breaks its own cycle.
        now = self.instruments.tree.own()
        watch.note_threads(now[1])
        fell = watch.enabled and now != own
        in_children = read_reports() if before.process else (0, 0)
        elsewhere = before.process or device is not None
        if fell or (collected and elsewhere) or watch.has_released or any(in_children):
            self._note_released(row, before, on_device, in_children)
        else:
            self._fds[row], self._threads[row], self._processes[row] = before
        if elsewhere and watch.enabled:
            # Rows with garbage and without leave other amounts there.
            self._collection.empty_free_lists(objects)

    def _note_released(
        self, row: int, before: TreeCount, on_device: int, in_children: tuple[int, int]
    ) -> None:
        after = self.instruments.tree.read()
        fds, threads, of_device = self.instruments.watch.take_released()
        released = (fds + in_children[0], threads + in_children[1], 0)
        for name, first, last, earlier in zip(TREE, before, after, released, strict=True):
            self.samples.columns[name][row] = last
            if row:
                self.samples.released[name][row - 1] = earlier + max(0, first - last)
        if self.instruments.device is not None and row:
            self.samples.released[self.instruments.device.resource][row - 1] = of_device + max(
                0, on_device - self.instruments.device.read()
            )


def _shift(own: Mapping[str, array[int]], instruments: Instruments, sign: int) -> None:
    """Add current memory readings to the harness's part, or subtract them (`sign`: 1 or -1)."""
    if instruments.watch.enabled:
        # A collection empties the interpreter's free lists and untracks tuples. So the readings
        # before and after the listing of a folder are comparable.
        instruments.watch.collect()
    # Read all before the first addition: from Python 3.14 on, an int that was freed stays in a free
    # list, and counts as a block until the next collection.
    now = [instruments.reads[name]() for name in own]
    for part, reading in zip(own.values(), now, strict=True):
        part[0] += sign * reading


def _renew_handlers() -> None:
    # pytest removes its handlers after each run, and from Python 3.14 on that replaces this list:
    # if it were frozen, its successor would count as an object more.
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    logging.root.removeHandler(handler)
