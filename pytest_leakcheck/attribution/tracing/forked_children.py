"""Trace forked child processes, such as the workers of a pool or of a DataLoader, and collect what they find.

`prepare_children` runs before the program forks. It installs a signal handler, which forked children inherit. During
the search, each child that has the handler gets the signal, and `child_tracer` records in it which lines open
descriptors.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from pytest_leakcheck.attribution.live_handles import open_files, read_process_name
from pytest_leakcheck.attribution.tracing.child_tracer import ChildTracer
from pytest_leakcheck.attribution.tracing.created_handles import Arrival
from pytest_leakcheck.attribution.tracing.shared_log import SLOTS, SharedLog
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.probes.command_lines import read_command_line
from pytest_leakcheck.probes.processes import descendants

_NOT_FORKED: Final = "it was not forked from this process, or has changed its command line"
# What the command lines of some processes contain that Python starts.
_STARTED_BY: Final = {
    "multiprocessing.spawn": "it was spawned, and only processes that this one forks are traced",
    "multiprocessing.forkserver": "the fork server forked it, and only processes that this one forks are traced",
}
_NO_HANDLER: Final = "it was forked before the measurement began, or does not handle the tracer's signal"
_BLOCKED: Final = "it blocks the tracer's signal"
_TOO_MANY: Final = f"more than {SLOTS} child processes"
_GONE: Final = "it has ended"
_NO_ANSWER: Final = "its main thread ran no Python code during the search"
_NOT_SEEN_TWICE: Final = "it started during the last iteration of the search"
_OTHER_THREADS: Final = "another of its threads was running too, and only the main thread is traced"
_FULL: Final = "it has opened more descriptors than the tracer can record"
_IN_NO_LINE: Final = "no single line opened half of them"


@dataclass
class _Prepared:
    """What `prepare_children` has installed; in a child, also the tracer that runs in it."""

    log: SharedLog | None = None
    number: int = 0
    tracer: ChildTracer | None = None


_PREPARED: Final = _Prepared()


def prepare_children() -> bool:
    """Make the children that this process forks from now on traceable; return whether this call has done so.

    Do nothing if they are already, without /proc, or outside of the main thread, which alone can handle signals.
    """
    if _PREPARED.log is not None or not sys.platform.startswith("linux"):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    # Programs take the lowest of the real-time signals first.
    free = (one for one in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if signal.getsignal(one) is signal.SIG_DFL)
    number = next(free, 0)
    if not number:
        return False
    _PREPARED.log, _PREPARED.number = SharedLog(), number
    signal.signal(number, _start_tracer)
    # Functions of C that wait in the kernel are not interrupted.
    signal.siginterrupt(number, False)
    return True


def release_children() -> None:
    """Undo `prepare_children` in this process."""
    if _PREPARED.log is None:
        return
    if signal.getsignal(_PREPARED.number) is _start_tracer:
        signal.signal(_PREPARED.number, signal.SIG_DFL)
    _PREPARED.log = None


def _start_tracer(_number: int, frame: FrameType | None) -> None:
    try:
        writer = _PREPARED.log.writer() if _PREPARED.log is not None else None
        if writer is not None and (_PREPARED.tracer is None or _PREPARED.tracer.is_over):
            _PREPARED.tracer = ChildTracer(writer)
            _PREPARED.tracer.start(frame)
    except Exception:  # noqa: BLE001 - the program must not see an error of the tracer
        sys.settrace(None)


@dataclass(frozen=True, slots=True)
class ChildGrowth:
    """What the child processes have opened during a round, and not closed.

    Attributes:
        found: Where it was opened, by process and descriptor, as far as it is known.
        names: The name of each process with new descriptors. The first has the most whose line is not known.
        why: Why the first process has descriptors whose line is not known.
    """

    found: Mapping[tuple[int, int], Arrival] = field(default_factory=dict)
    count: int = 0
    names: Mapping[int, str] = field(default_factory=dict)
    why: str = ""

    def describe(self, pids: Collection[int] = ()) -> str:
        """Describe some of the processes, by default all of them."""
        names = [name for pid, name in self.names.items() if not pids or pid in pids]
        if len(names) > 1:
            return f"{len(names)} child processes, such as {names[0]}"
        return "".join(f"child process {name}" for name in names)


class ForkedChildren:
    """The child processes during one round. Call `begin_iteration` before each iteration, and `close` at the end."""

    def __init__(self) -> None:
        self._before: dict[int, Mapping[int, str]] = {}
        self._why: dict[int, str] = {}
        if _PREPARED.log is not None:
            _PREPARED.log.begin_round()

    def begin_iteration(self) -> None:
        """Start the tracer in children that have not been asked yet.

        A child that has been forked a moment ago may be about to execute another program, which the signal would end.
        So a child is asked in the iteration after the first that it was seen in.
        """
        for pid in descendants(os.getpid()):
            if pid not in self._before:
                self._before[pid] = open_files(str(pid))
                self._why[pid] = _NOT_SEEN_TWICE
            elif self._why[pid] is _NOT_SEEN_TWICE:
                self._why[pid] = _ask(pid)

    def close(self) -> ChildGrowth:
        """End the round, and return what the children have opened."""
        log = _PREPARED.log
        if log is not None:
            log.end_round()
        found: dict[tuple[int, int], Arrival] = {}
        grown: dict[int, int] = {}
        for pid, before in self._before.items():
            new = {fd: what for fd, what in open_files(str(pid)).items() if before.get(fd) != what}
            if new:
                grown[pid] = len(new)
                arrivals = self._read(log, pid) if log is not None and not self._why[pid] else {}
                found |= {(pid, fd): one for fd, one in arrivals.items() if new.get(fd) == one.what}
        known = Counter(pid for pid, _fd in found)
        pids = sorted(grown, key=lambda pid: known[pid] - grown[pid])
        names = {pid: read_process_name(str(pid)) for pid in pids}
        return ChildGrowth(found, sum(grown.values()), names, self._why[pids[0]] or _IN_NO_LINE if pids else "")

    def _read(self, log: SharedLog, pid: int) -> dict[int, Arrival]:
        """Return where a child opened each of its descriptors; keep the reason for those that are missing."""
        paths: list[tuple[Site, ...]] = []
        found: dict[int, Arrival] = {}
        why = _NO_ANSWER
        for kind, *values in log.records(pid):
            if kind == "started":
                why = ""
            elif kind == "path":
                paths.append(tuple(Site(*site) for site in values[0]))
            elif kind == "new":
                fd, what, at = values
                found[fd] = Arrival(paths[at], what, exact=True)
            elif kind == "doubt":
                why = why or _OTHER_THREADS
            else:
                why = values[0]
        self._why[pid] = _FULL if log.is_full(pid) else why
        return found


def _ask(pid: int) -> str:
    """Have a child start the tracer; return why that is not possible, empty if it is."""
    log, number = _PREPARED.log, _PREPARED.number
    if log is None:
        return _NO_HANDLER
    try:
        why = _find_obstacle(pid, number)
        if not why and not log.assign(pid):
            why = _TOO_MANY
        if not why:
            os.kill(pid, number)
    except OSError:
        return _GONE
    return why


def _find_obstacle(pid: int, number: int) -> str:
    """Return why a signal would not start the tracer in a process; empty if it would."""
    words = read_command_line(str(pid))
    if not words:
        return _GONE
    if words != read_command_line("self"):
        return next((why for name, why in _STARTED_BY.items() if name in " ".join(words)), _NOT_FORKED)
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    caught, blocked = (int(fields.get(name, "0"), 16) >> (number - 1) & 1 for name in ("SigCgt", "SigBlk"))
    # Without a handler, the signal would end the process. A child that is about to execute a program blocks all signals.
    if not caught:
        return _NO_HANDLER
    return _BLOCKED if blocked else ""
