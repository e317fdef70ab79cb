"""Descriptors that were not there when a process was first seen, by what they point to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from pytest_leakcheck.attribution.live_handles import describe_target
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.watch.events import Reading

# Per process; of files with ever new names the rest would be a list without end.
_MOST: Final = 20
REST: Final = "others"


class Newcomers:
    """What came since, per process."""

    def __init__(self) -> None:
        self._at_first: dict[int, Counter[str]] = {}
        self._counted: dict[int, int] = {}

    def meet(self, processes: Mapping[int, Reading]) -> None:
        """These are seen for the first time: what they have is what they began with."""
        for pid, reading in processes.items():
            if reading.fds >= 0:
                self._at_first[pid], self._counted[pid] = _targets(pid), reading.fds

    def look(self, processes: Mapping[int, Reading]) -> dict[int, dict[str, int]]:
        """The new descriptors of those processes whose number has changed since the last look, by target."""
        self._forget(processes.keys())
        found = {}
        for pid, reading in processes.items():
            if pid in self._at_first and self._counted[pid] != reading.fds:
                self._counted[pid] = reading.fds
                found[pid] = _shortened(_targets(pid) - self._at_first[pid])
        return found

    def _forget(self, alive: Collection[int]) -> None:
        for pid in self._at_first.keys() - set(alive):
            del self._at_first[pid], self._counted[pid]


def _targets(pid: int) -> Counter[str]:
    return Counter(map(describe_target, open_targets(str(pid)).values()))


def _shortened(targets: Counter[str]) -> dict[str, int]:
    most = dict(targets.most_common(_MOST))
    rest = targets.total() - sum(most.values())
    return {**most, REST: rest} if rest else most
