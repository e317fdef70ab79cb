"""Read all counters of one process: each `read` adds a row to preallocated columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping

from pytest_leakcheck.model.resources import GAUGE_PREFIX, find_resource
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.catalog import open_instruments
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folder_changes import Changes, follow
from pytest_leakcheck.probes.folders import Folder, watched_folders
from pytest_leakcheck.probes.garbage_collector import ROUNDS, CollectorWatch
from pytest_leakcheck.probes.processes import TREE, Tree, process_tree
from pytest_leakcheck.runner.pacing import Pace
from pytest_leakcheck.runner.settling import IN_VAIN, Settling


class Panel(Settling):
    """The counters of one process, read a row at a time.

    Attributes:
        missing: Why a wanted resource cannot be read here, by resource.
        watch: The watch on the garbage collector.
        folders: The folders of shared memory and temporary files, by resource.
        device: The accelerators; None if they are not read.
        patient: Whether to wait after each row for what is about to end by itself.
    """

    def __init__(self, wanted: Iterable[str], gauges: Mapping[str, Callable[[], int]], capacity: int) -> None:
        """Open the instruments.

        Args:
            wanted: The resources to read.
            gauges: The user's own counters, by name; those added before `start` are read too.
            capacity: The maximum number of rows.

        Raises:
            Unavailable: Not even the process tree can be read here.
        """
        super().__init__(capacity)
        self.patient = False
        self._gauges = gauges
        self._tree: Tree = process_tree()
        self._tree.open()
        names = set(wanted)
        for name in TREE:
            self._columns[name], self._released[name] = self._new_column(), self._new_column()
        self._fds, self._threads, self._processes = self._columns.values()
        self.folders: dict[str, Folder] = {}
        self._changes: Changes | None = None
        self._instruments, self.missing = open_instruments(names)
        self.device = next((one for one in self._instruments if isinstance(one, Vram)), None)
        self.watch = CollectorWatch(self._tree.own, self.device.read if self.device is not None else None)
        try:
            self._open_folders(names)
            self._make_columns()
            self.watch.open()
        except BaseException:
            self._close_instruments()
            raise

    def _open_folders(self, names: set[str]) -> None:
        for folder in watched_folders():
            if folder.resource in names:
                try:
                    folder.open()
                except Unavailable as error:
                    self.missing[folder.resource] = error
                else:
                    folder.follow_makers()
                    self.folders[folder.resource] = folder
        try:
            self._changes = follow([folder.path for folder in self.folders.values()])
        except OSError as error:
            for name, folder in self.folders.items():
                folder.close()
                self.missing[name] = Unavailable(f"folders cannot be watched here ({error})")
            self.folders.clear()

    def _make_columns(self) -> None:
        # The part of each counter that the harness itself has allocated. Only for exact counters of memory: resident
        # memory varies by more than that.
        self._own: dict[str, array[int]] = {}
        self._reads: dict[str, Callable[[], int]] = {}
        self._quick: list[tuple[Callable[[], int], array[int], array[int]]] = []
        self._due = array("q", (0,))
        for instrument in self._instruments:
            name, own = instrument.resource, array("q", (0,))
            resource = find_resource(name)
            column = self._columns[name] = self._new_column()
            self._reads[name] = instrument.read
            if resource.includes_harness:
                self._own[name] = own
            if isinstance(instrument, Vram):
                self._kinds[name], self._released[name] = instrument.kind, self._new_column()
            if resource.paced:
                self._paced.append(Pace(instrument.read, column, own, resource.tolerance))
            else:
                self._quick.append((instrument.read, column, own))
        for name in self.folders:
            self._columns[name] = self._new_column()
        self._folder_columns = [(folder, self._columns[name]) for name, folder in self.folders.items()]

    def close(self) -> None:
        """Close the instruments; the rows stay."""
        self.watch.close()
        self._close_instruments()

    def _close_instruments(self) -> None:
        self._tree.close()
        for instrument in self._instruments:
            instrument.close()
        for folder in self.folders.values():
            folder.close()
        if self._changes is not None:
            self._changes.close()

    def start(self) -> None:
        """Read row 0, the start level, and discard earlier rows."""
        for name in self._gauges:
            self._columns.setdefault(GAUGE_PREFIX + name, self._new_column())
        for folder in self.folders.values():
            folder.restart()
        for released in self._released.values():
            released[:] = self._new_column()
        self.n = self._joins_in_vain = 0
        if self.device is not None:
            self.device.mark()
        # A collection also untracks tuples and dicts that hold only atomic values, one nesting level at a time. This
        # must be complete before the start level is read.
        for _ in range(ROUNDS):
            self.watch.collect()
        self._start_clocks()
        self._read_into(0, True)

    # `whole` is passed by position, here and to `_read_into`: Python 3.10 creates a bound method for a call with a
    # keyword, and that object would be counted.
    def read(self, whole: bool = True) -> None:  # noqa: FBT002
        """Collect garbage and add the row of an iteration; with ``whole``, read all counters, due or not (`Pace`)."""
        row = self.n + 1
        self._read_into(row, whole)
        self.n = row
        if self.patient:
            self.settle()

    def reasons(self) -> dict[str, str]:
        """Return why resources cannot be read, except those that nothing in this process uses."""
        return {name: str(why) for name, why in self.missing.items() if not isinstance(why, NotInUse)}

    def device_for(self, resource: str) -> Vram | None:
        """Return the accelerators if the resource counts their memory, else None."""
        return self.device if self.device is not None and self.device.resource == resource else None

    @property
    def children(self) -> int:
        """The number of child processes in the last row."""
        return self._processes[self.n]

    def counter(self, resource: str) -> Callable[[], int]:
        """Return a function that reads one counter, cheap enough to be called at each traced call of any thread."""
        if resource in TREE:
            of_tree: tuple[Callable[[], int], ...] = (
                self._tree.own_fds,
                lambda: self._tree.own()[1],
                lambda: self._tree.read()[2],
            )
            return of_tree[TREE.index(resource)]
        if resource in self.folders:
            return self._change_counter(self.folders[resource].path)
        return self._reads.get(resource) or self._gauges[resource.removeprefix(GAUGE_PREFIX)]

    def _change_counter(self, path: str) -> Callable[[], int]:
        """Return a function that counts how often the folder was found changed."""
        changes, ticks = self._changes, 0
        assert changes is not None

        def count() -> int:
            nonlocal ticks
            ticks += path in changes.take()
            return ticks

        return count

    def thaw(self, resource: str) -> int:
        """Unfreeze all objects and collect garbage.

        Returns:
            How much of the resource was held by garbage that had been alive when it was frozen.
        """
        if not self.watch.enabled:
            return 0
        found = self.watch.thaw()
        if find_resource(resource).made_of == "objects":
            # Once unfrozen, they cannot be distinguished from the program's other objects, so no level can be compared:
            # the collected garbage is counted instead.
            return found
        return self.level(resource) - self._read_one(resource)

    def refreeze(self) -> None:
        """Freeze again; collected garbage still counts as memory, as if it existed, so that the series continues."""
        self.watch.refreeze()
        tree = self._tree.read()
        for name, value in zip(TREE, tree, strict=True):
            self._columns[name][self.n] = value
        self.subtract_own_work()

    def stay_thawed(self) -> None:
        """Reset the harness's part, since nothing is frozen any more; the caller must restart the series."""
        for own in self._own.values():
            own[0] = 0

    def came_down(self, resource: str) -> int:
        """Return how far a counter has fallen since the last row."""
        return self._columns[resource][self.n] - self._read_collected(resource)

    def subtract_own_work(self) -> None:
        """Subtract from later rows all memory allocated since the last row: the harness has allocated it."""
        # Read in the same way as a row, into the next row: another way of reading would differ by a temporary object.
        scratch = self.n + 1
        self._read_into(scratch, True)
        for name, own in self._own.items():
            own[0] += self._columns[name][scratch] - self._columns[name][self.n]
        for paced in self._paced:
            paced.go_back_to(self.n)
        self._due[0] = self.n + 1

    def _read_into(self, row: int, whole: bool) -> None:
        self._read_tree(row)
        self._note_changes()
        for folder, column in self._folder_columns:
            if folder.changed and folder.is_due(whole=whole):
                self._list_folder(folder, row)
            column[row] = folder.count
        for read, column, own in self._quick:
            column[row] = read() - own[0]
        if whole or row >= self._due[0]:
            self._read_paced(row, whole=whole)
        for name, gauge in self._gauges.items():
            self._columns[GAUGE_PREFIX + name][row] = gauge()

    def _note_changes(self) -> None:
        # In a separate frame, as `_read_tree`: the set of changed folders is an object, and exists only after a change.
        if self._changes is not None and (changed := self._changes.take()):
            for folder in self.folders.values():
                folder.changed |= folder.path in changed

    def _read_paced(self, row: int, *, whole: bool) -> None:
        due = self._capacity
        for paced in self._paced:
            if whole or row >= paced.due:
                paced.read_into(row)
            due = min(due, paced.due)
        self._due[0] = due

    def _list_folder(self, folder: Folder, row: int) -> None:
        # Memory that a folder allocates to remember a change is the harness's own.
        self._shift_own_part(-1)
        folder.relist(row)
        self._shift_own_part(1)

    def _shift_own_part(self, sign: int) -> None:
        """Add the current readings of memory to the harness's part (`sign` is 1), or subtract them (-1)."""
        if self.watch.enabled:
            # A collection empties the interpreter's free lists and untracks tuples; so both readings are comparable.
            self.watch.collect()
        for name, own in self._own.items():
            # Read before the addition: a large int on the evaluation stack would be one more block.
            now = self._reads[name]()
            own[0] += sign * now

    def _read_tree(self, row: int) -> None:
        # In a separate frame: its tuples are objects too, and are released before the objects are counted.
        before = self._tree.read()
        if row and before[1] > self._threads[row - 1] and self._joins_in_vain < IN_VAIN:
            before = self._await_joined(self._threads[row - 1])
        fds, threads, processes = before
        on_device = self.device.read() if self.device is not None else 0
        watch = self.watch
        if (watch.enabled and watch.collect()) or watch.has_released:
            self._note_released(row, before, on_device)
            return
        self._fds[row] = fds
        self._threads[row] = threads
        self._processes[row] = processes

    def _note_released(self, row: int, before: tuple[int, int, int], on_device: int) -> None:
        after = self._tree.read()
        *automatic, of_device = self.watch.take_released()
        for name, first, last, earlier in zip(TREE, before, after, automatic, strict=True):
            self._columns[name][row] = last
            if row:
                self._released[name][row - 1] = earlier + max(0, first - last)
        if self.device is not None and row:
            self._released[self.device.resource][row - 1] = of_device + max(0, on_device - self.device.read())

    def _read_collected(self, resource: str) -> int:
        # A collection also empties the interpreter's free lists, whose blocks count.
        if self.watch.enabled:
            self.watch.collect()
        return self._read_one(resource)

    def _read_one(self, resource: str) -> int:
        if resource in self._reads:
            own = self._own.get(resource)
            return self._reads[resource]() - (own[0] if own else 0)
        if resource in TREE:
            return self._tree.read()[TREE.index(resource)]
        if resource in self.folders:
            return self.folders[resource].count
        return self._columns[resource][self.n]
