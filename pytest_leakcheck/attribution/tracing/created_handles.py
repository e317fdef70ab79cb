"""Find the call that created each live handle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Generic, TypeVar

from pytest_leakcheck.attribution.call_paths import path_to
from pytest_leakcheck.attribution.object_inspection import name_of_called
from pytest_leakcheck.attribution.tracing.thread_handover import Handover, UntracedThreads
from pytest_leakcheck.attribution.tracing.tracer import OWN, Event, Handler, is_left_out
from pytest_leakcheck.model.culprit import Site

Key = TypeVar("Key", bound=Hashable)
# A lock that was held during a fork stays locked forever in the child process, so waiting for it needs a limit.
_LOCK_TIMEOUT_SECONDS: Final = 0.1
# The torch dispatch mode in this file (`probes.torch_storages`) runs tensor operations on behalf of the program.
_DISPATCH_MODE_FILE: Final = str(Path(__file__).parents[2] / "probes" / "torch_storages.py")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A handle that was created in a traced iteration; `path`, `code`, `lasti` and `ends_early` are as in `Made`."""

    path: tuple[Site, ...]
    what: str
    # Whether the last line created it. If not, its function did, there or earlier; `LineTracer` then finds the line.
    exact: bool
    code: CodeType | None = None
    lasti: int = -1
    ends_early: bool = False


class Arrivals(Generic[Key]):
    """A tracer's listener that records the call path of each new handle.

    It reads a cheap count at each event, and lists the handles only if that has changed, if another thread may have
    created one, and at the end. `handed_in`: the lines that handed work to untraced threads, one of which may have created
    a handle; that handle has no path.
    """

    def __init__(self, count: Callable[[], int], list_now: Callable[[], Mapping[Key, str]]) -> None:
        """Follow these handles; the functions are as in `handles.Things`."""
        self._count = count
        self._list_now = list_now
        self._known: dict[Key, str] = {}
        self._arrived: dict[Key, Arrival] = {}
        self._last = 0
        self._lock = threading.Lock()
        # Handles that one thread saw while another thread was in a call that may have created them.
        self._held: list[Key] = []
        self._handover = Handover()
        self._untraced = UntracedThreads()
        self.handed_in: list[str] = []

    def begin(self) -> None:
        """Begin an iteration. Handles created between the previous iteration and this one are not recorded."""
        now = dict(self._list_now())
        self._drop_gone(now)
        self._known = now
        self._held = []
        self._handover.begin()
        self._untraced.begin()
        self._last = self._count()

    def handler(self) -> Handler:
        return partial(self._on_event, self._handover.new_thread())

    def survivors(self) -> dict[Key, Arrival]:
        """Return the arrival of each live handle that a traced iteration created."""
        self._drop_gone(self._list_now())
        return dict(self._arrived)

    def _on_event(self, thread: int, event: Event, frame: FrameType, called: Any) -> None:
        now = self._count()
        changed = event in ("end", "cut") or now != self._last or bool(self._held)
        # The count may not show what another thread has done.
        changed = changed or self._untraced.has_waited(event, frame, called)
        # Listing lets other threads run, and the one that created the handle may reach its own event in that time.
        if changed and self._lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
            try:
                self._record_new(thread, event, frame, called)
                # Update the count only now: until then, the other thread must see the change and wait for the lock.
                self._last = now
            finally:
                self._lock.release()
        self._untraced.note(event, frame, called)
        if self._handover.many:
            self._handover.note(thread, name_of_called(called) if event == "c_call" else "")

    def _record_new(self, thread: int, event: Event, frame: FrameType, called: Any) -> None:
        now = dict(self._list_now())
        gone = self._drop_gone(now)
        fresh = [key for key, what in now.items() if self._known.get(key) != what]
        self._known = now
        returned = name_of_called(called) if event == "c_return" else ""
        # If another thread is in a C function too, this thread is only the more likely creator of the handle.
        ends_early = bool(returned) and is_left_out(called)
        exact = bool(returned) and not self._handover.is_anothers(thread, "")
        if self._handover.many:
            if self._handover.is_suspect(thread):
                # Another thread was the first to see what this thread created.
                fresh += [key for key in self._held if key in now]
                self._held = []
            elif fresh and self._handover.is_anothers(thread, returned):
                self._held += fresh
                self._handover.hold(thread)
                exact = False
        if event in ("end", "cut") and len(gone) == len(fresh) and all(type(key) is str for key in fresh):
            # The count did not change, so these files were renamed.
            self._arrived |= {key: replace(one, what=now[key]) for key, one in zip(fresh, gone, strict=True)}
            return
        if not fresh or event == "cut":
            # At "cut", new handles were created in a part of the iteration that was not traced.
            return
        # A handle that first appears on entry to a function was created before the call, by the caller.
        at: FrameType | None = frame.f_back if event == "call" else frame
        path, code = path_to(at, f"{returned}()" if returned else ""), None if at is None else at.f_code
        # At "c_call" the called function has not run yet, so it cannot be the creator.
        lasti = at.f_lasti if at is not None and event in ("c_return", "call") else -1
        above = _path_above_dispatch_mode(path)
        if above is not None:
            path, code, lasti, exact, ends_early = above, None, -1, True, False
        elsewhere = self._untraced.path_of(event, at, called) if at is not None else None
        if elsewhere is not None:
            path, code, lasti, exact, ends_early = elsewhere, None, -1, True, False
            if not path:
                self.handed_in = self._untraced.lines
        path = tuple(site for site in path if not OWN[site.file])
        for key in fresh:
            self._arrived[key] = Arrival(path, now[key], exact, code, lasti, ends_early)

    def _drop_gone(self, now: Mapping[Key, str]) -> list[Arrival]:
        """Forget the handles that do not exist any more, and return their arrivals."""
        gone = [key for key, arrival in self._arrived.items() if now.get(key) != arrival.what]
        return [self._arrived.pop(key) for key in gone]


def _path_above_dispatch_mode(path: tuple[Site, ...]) -> tuple[Site, ...] | None:
    """Cut a call path at the tensor operation that the package's dispatch mode runs; None if there is none in it."""
    at = next((at for at, site in enumerate(path) if site.file == _DISPATCH_MODE_FILE), None)
    if at is None:
        return None
    return (*path[: at - 1], replace(path[at - 1], call="")) if at else ()
