"""Find the descriptors that processes have opened since the watch first saw each process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from pytest_leakcheck.attribution.live_handles import describe_target
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.watch.events import Reading

# Maximum number of targets (what descriptors refer to) listed per process. The others are counted together as `REST`,
# because files may have ever new names.
_MAX_TARGETS: Final = 20
REST: Final = "others"


class Newcomers:
    """The descriptors that each process has opened since it was first seen."""

    def __init__(self) -> None:
        self._initial_targets: dict[int, Counter[str]] = {}
        self._last_counts: dict[int, int] = {}

    def meet(self, processes: Mapping[int, Reading]) -> None:
        """Record the initial descriptors of processes that are seen for the first time."""
        for pid, reading in processes.items():
            if reading.fds >= 0:
                self._initial_targets[pid], self._last_counts[pid] = _count_targets(pid), reading.fds

    def look(self, processes: Mapping[int, Reading]) -> dict[int, dict[str, int]]:
        """Return the new descriptors by PID and target, of processes whose number has changed since the last call."""
        self._remove_ended(processes.keys())
        found = {}
        for pid, reading in processes.items():
            if pid in self._initial_targets and self._last_counts[pid] != reading.fds:
                self._last_counts[pid] = reading.fds
                found[pid] = _keep_most_common(_count_targets(pid) - self._initial_targets[pid])
        return found

    def _remove_ended(self, alive: Collection[int]) -> None:
        for pid in self._initial_targets.keys() - set(alive):
            del self._initial_targets[pid], self._last_counts[pid]


def _count_targets(pid: int) -> Counter[str]:
    return Counter(map(describe_target, open_targets(str(pid)).values()))


def _keep_most_common(targets: Counter[str]) -> dict[str, int]:
    most = dict(targets.most_common(_MAX_TARGETS))
    rest = targets.total() - sum(most.values())
    return {**most, REST: rest} if rest else most
