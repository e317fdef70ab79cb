"""Which call made each thing that is still there: descriptors, threads, children, files, whatever has an identity."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Generic, TypeVar

from pytest_leakcheck.attribution.object_inspection import name_of_called
from pytest_leakcheck.attribution.tracing.frames import path_to
from pytest_leakcheck.attribution.tracing.thread_handover import Handover
from pytest_leakcheck.attribution.tracing.trace_events import OWN, Event, Handler
from pytest_leakcheck.model.culprit import Site

Key = TypeVar("Key", bound=Hashable)
# A lock that a fork has copied while it was held is never released.
_PATIENCE: Final = 0.1
# It runs the operations of tensors itself (`probes.torch_storages`).
_STANDS_IN: Final = str(Path(__file__).parents[2] / "probes" / "torch_storages.py")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something that came while it was traced.

    Attributes:
        path: The call path at the moment when it was first seen, outermost first.
        what: Its description.
        exact: Whether the last line of the path made it. If not, something in that function did, up to that line or in
            a call that goes unreported; `Lines` tells.
        code: The function of the last line.
        lasti: The call in it that made it, or was under way; -1 where it came before.
    """

    path: tuple[Site, ...]
    what: str
    exact: bool
    code: CodeType | None = None
    lasti: int = -1


class Arrivals(Generic[Key]):
    """Listens to a tracer: when a cheap count has changed, what is new is listed and the call path remembered."""

    def __init__(self, count: Callable[[], int], list_now: Callable[[], Mapping[Key, str]]) -> None:
        """
        Args:
            count: How many there are; read at each event.
            list_now: Which there are, with a description each; a number that is used again is another thing if its
                description is another.
        """
        self._count = count
        self._list_now = list_now
        self._known: dict[Key, str] = {}
        self._arrived: dict[Key, Arrival] = {}
        self._last = 0
        self._lock = threading.Lock()
        # Seen by one thread while another was at what may have made them.
        self._held: list[Key] = []
        self._handover = Handover()
        self.coarse = False

    def begin(self) -> None:
        """An iteration begins; what came since the last one did not come from it."""
        now = dict(self._list_now())
        self._drop_gone(now)
        self._known = now
        self._held = []
        self._handover.begin()
        self._last = self._count()

    def became_coarse(self) -> None:
        self.coarse = True

    def handler(self) -> Handler:
        thread = self._handover.new_thread()

        def on_event(event: Event, frame: FrameType, called: Any) -> None:
            self._on_event(thread, event, frame, called)

        return on_event

    def survivors(self) -> dict[Key, Arrival]:
        """Where each thing that is there now, and came in an iteration, came from."""
        self._drop_gone(self._list_now())
        return dict(self._arrived)

    def _on_event(self, thread: int, event: Event, frame: FrameType, called: Any) -> None:
        now = self._count()
        changed = event in ("end", "cut") or now != self._last or self._held
        # Listing lets other threads run, of which one may come back with what this one sees.
        if changed and self._lock.acquire(timeout=_PATIENCE):
            try:
                self._compare(thread, event, frame, called)
                # Not before: the other thread must come here as well.
                self._last = now
            finally:
                self._lock.release()
        if self._handover.many:
            self._handover.note(thread, name_of_called(called) if event == "c_call" else "")

    def _compare(self, thread: int, event: Event, frame: FrameType, called: Any) -> None:
        now = dict(self._list_now())
        self._drop_gone(now)
        fresh = [key for key, what in now.items() if self._known.get(key) != what]
        self._known = now
        returned = name_of_called(called) if event == "c_return" else ""
        # Two threads at once: the one that sees it is only the likelier one.
        exact = bool(returned) and not self._handover.is_anothers(thread, "")
        if self._handover.many:
            if self._handover.is_suspect(thread):
                # Another thread saw first what this one has made.
                fresh += [key for key in self._held if key in now]
                self._held = []
            elif fresh and self._handover.is_anothers(thread, returned):
                self._held += fresh
                self._handover.hold(thread)
                exact = False
        if not fresh or event == "cut":
            # Where it came from was not looked at, if any has.
            return
        # When a function is entered, what has come came before: in its caller.
        at: FrameType | None = frame.f_back if event == "call" else frame
        path, code = path_to(at, f"{returned}()" if returned else ""), None if at is None else at.f_code
        # What is only about to be called has made nothing.
        lasti = at.f_lasti if at is not None and event in ("c_return", "call") else -1
        above = _above_instrument(path)
        if above is not None:
            path, code, lasti, exact = above, None, -1, True
        path = tuple(site for site in path if not OWN[site.file])
        for key in fresh:
            self._arrived[key] = Arrival(path, now[key], exact, code, lasti)

    def _drop_gone(self, now: Mapping[Key, str]) -> None:
        for key in [key for key, arrival in self._arrived.items() if now.get(key) != arrival.what]:
            del self._arrived[key]


def _above_instrument(path: tuple[Site, ...]) -> tuple[Site, ...] | None:
    """The part of a call path down to the operation that an instrument stands in for; None where it does not lead through one."""
    at = next((at for at, site in enumerate(path) if site.file == _STANDS_IN), None)
    if at is None:
        return None
    return (*path[: at - 1], replace(path[at - 1], call="")) if at else ()
