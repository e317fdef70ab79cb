"""Find the call that created each live handle."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import Any, Final, Generic, TypeVar

from pytest_leakcheck.attribution.call_paths import (
    PACKAGE_FOLDER,
    innermost_suspended,
    is_own,
    is_standard,
    iter_outwards,
    path_to,
)
from pytest_leakcheck.attribution.inspection import name_of_called
from pytest_leakcheck.attribution.tracing.tracer import (
    HARMLESS_FUNCTIONS,
    OWN,
    Event,
    Handler,
    Handover,
    is_left_out,
)
from pytest_leakcheck.model.culprit import Site

Key = TypeVar("Key", bound=Hashable)
# A lock that was held during a fork stays locked forever in the child process, so waiting for it
# needs a limit.
_LOCK_TIMEOUT_SECONDS: Final = 0.1
# The torch dispatch mode in this file (`probes.torch_storages`) runs tensor operations on behalf of
# the program.
_DISPATCH_MODE_FILE: Final = str(Path(PACKAGE_FOLDER, "probes", "torch_storages.py"))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A handle that was created in a traced iteration.

    `path`, `code` and `lasti` are as in `Creation`, `ends_early` is as in `TracedCall`.
    """

    path: tuple[Site, ...]
    what: str
    # Whether the last line created it. If not, its function did, there or earlier; `LineTracer`
    # then finds the line.
    exact: bool
    code: CodeType | None = None
    lasti: int = -1
    ends_early: bool = False
    # Whether the last line is that of the only coroutine that waits. It is the wrong one if the
    # frames of the coroutine that created the handle were left out.
    waits: bool = False


class Arrivals(Generic[Key]):
    """A tracer's listener that records the call path of each new handle.

    It reads a cheap count at each event. Only if that has changed, or if another thread may have
    created a handle, it lists the handles, of which it reads the new ones; at the end of an
    iteration, it reads all. `handed_in`: the lines that handed work to untraced threads, one of
    which may have created a handle; that handle has no path.
    """

    def __init__(
        self,
        count: Callable[[], int],
        list_now: Callable[[], Mapping[Key, str]],
        list_more: Callable[[Mapping[Key, str]], Mapping[Key, str]] | None = None,
    ) -> None:
        """Follow these handles; the functions are as in `handles.HandleKind`."""
        self._count = count
        self._list_now = list_now
        self._list_more = list_more or (lambda _known: list_now())
        self._known: dict[Key, str] = {}
        self._arrived: dict[Key, Arrival] = {}
        self._last = 0
        self._lock = threading.Lock()
        # Handles that one thread saw while another thread was in a call that may have created them.
        self._held: list[Key] = []
        self._handover = Handover()
        self._untraced = UntracedThreads()
        self._entered: set[CodeType] = set()
        # Functions of libraries that call the program, such as those of an event loop.
        self._calling_back: set[CodeType] = set()
        self.handed_in: list[str] = []

    def begin(self) -> None:
        """Begin an iteration. Handles created since the previous one ended are not recorded."""
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
        changed = event in ("end", "cut") or now != self._last
        # The count may not show what another thread has done.
        changed = changed or self._untraced.has_waited(event, frame, called)
        # Listing lets other threads run, and the one that created the handle may reach its own
        # event in that time.
        if (changed or self._held) and self._lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS):
            try:
                self._record_new(
                    thread, event, frame, called, self._list(event) if changed else self._known
                )
                # Update the count only now: until then, the other thread must see the change and
                # wait for the lock.
                self._last = now
            finally:
                self._lock.release()
        self._untraced.note(event, frame, called)
        if event == "call" and frame.f_code not in self._entered:
            self._note_entered(frame)
        if self._handover.many:
            self._handover.note(thread, name_of_called(called) if event == "c_call" else "")

    def _note_entered(self, frame: FrameType) -> None:
        self._entered.add(frame.f_code)
        if is_own(frame.f_code.co_filename):
            self._calling_back.update(one.f_code for one in _iter_foreign(frame.f_back))

    def _list(self, event: Event) -> dict[Key, str]:
        now = self._list_now() if event in ("end", "cut") else self._list_more(self._known)
        return now if type(now) is dict else dict(now)

    def _record_new(
        self, thread: int, event: Event, frame: FrameType, called: Any, now: dict[Key, str]
    ) -> None:
        gone = self._drop_gone(now)
        fresh = [key for key, what in now.items() if self._known.get(key) != what]
        self._known = now
        returned = name_of_called(called) if event == "c_return" else ""
        exact = bool(returned) and not self._handover.is_anothers(thread, "")
        exact &= not (self._handover.many and self._is_anothers(thread, returned, fresh))
        at_end = event in ("end", "cut")
        if at_end and len(gone) == len(fresh) and all(type(key) is str for key in fresh):
            # The count did not change, so these files were renamed.
            for key, arrival in zip(fresh, gone, strict=True):
                self._arrived[key] = replace(arrival, what=now[key])
        elif fresh and event != "cut":
            # At "cut", new handles were created in a part of the iteration that was not traced.
            arrival = self._arrival_at(thread, event, frame, called, exact=exact)
            for key in fresh:
                self._arrived[key] = replace(arrival, what=now[key])

    def _is_anothers(self, thread: int, returned: str, fresh: list[Key]) -> bool:
        """Return whether another thread created what is new, after adding what others saw first."""
        if self._handover.is_suspect(thread):
            fresh += [key for key in self._held if key in self._known]
            self._held = []
            return False
        if not fresh or not self._handover.is_anothers(thread, returned):
            return False
        self._held += fresh
        self._handover.hold(thread)
        return True

    def _arrival_at(
        self, thread: int, event: Event, frame: FrameType, called: Any, *, exact: bool
    ) -> Arrival:
        """Return an arrival, without its description, of what is new at an event."""
        returned = name_of_called(called) if event == "c_return" else ""
        # A handle that first appears on entry to a function was created before the call, by the
        # caller.
        at: FrameType | None = frame.f_back if event == "call" else frame
        path = path_to(at, f"{returned}()" if returned else "")
        inferred = None if at is None else self._infer(thread, event, at, called, frame)
        if inferred is not None:
            return inferred
        mode = [number for number, site in enumerate(path) if site.file == _DISPATCH_MODE_FILE]
        if mode and mode[0]:
            # The line of the program that runs a tensor operation.
            line = replace(path[mode[0] - 1], call="")
            return Arrival(_without_own((*path[: mode[0] - 1], line)), "", exact=True)
        # A function of ctypes, which has no hash from Python 3.14 on, is no code object.
        calls_back = type(called) is CodeType and called in self._calling_back
        return Arrival(
            _without_own(path),
            "",
            exact,
            code=None if at is None else at.f_code,
            # At "c_call" the called function has not run yet, so it cannot be the creator.
            lasti=at.f_lasti if at is not None and event in ("c_return", "call") else -1,
            ends_early=bool(returned) and (is_left_out(called) or calls_back),
        )

    def _infer(
        self, thread: int, event: Event, frame: FrameType, called: Any, entered: FrameType
    ) -> Arrival | None:
        """Return the arrival if its line is not that of the frame; without a path if unknown."""
        # The arguments are as in `UntracedThreads.path_of`.
        if thread > 1 and not any(is_own(one.f_code.co_filename) for one in iter_outwards(frame)):
            work = self._untraced.path_of_work()
            return Arrival(_without_own(work), "", exact=True) if work else None
        path = self._untraced.path_of(event, frame, called, entered)
        if path is not None:
            if not path:
                self.handed_in = self._untraced.lines
            return Arrival(_without_own(path), "", exact=True)
        inner = list(_iter_foreign(frame))
        if self._calling_back.isdisjoint(one.f_code for one in inner):
            return None
        # An event loop has done it for a coroutine that waits.
        waiting = list(innermost_suspended())
        if len(waiting) != 1:
            return None
        path = (*path_to(inner[-1].f_back), *waiting)
        return Arrival(_without_own(path), "", exact=True, waits=True)

    def _drop_gone(self, now: Mapping[Key, str]) -> list[Arrival]:
        """Forget the handles that do not exist any more, and return their arrivals."""
        gone = [key for key, arrival in self._arrived.items() if now.get(key) != arrival.what]
        return [self._arrived.pop(key) for key in gone]


def _without_own(path: tuple[Site, ...]) -> tuple[Site, ...]:
    return tuple(site for site in path if not OWN[site.file])


# Functions of the standard library that hand work to a thread that already runs. Their callers are
# among them, because a tracer that leaves deep frames out reports only these.
_HANDING_FUNCTIONS: Final = frozenset(
    {
        "_map_async",
        "apply",
        "apply_async",
        "call_soon_threadsafe",
        "imap",
        "imap_unordered",
        "map",
        "map_async",
        "put",
        "run_coroutine_threadsafe",
        "run_in_executor",
        "starmap",
        "starmap_async",
        "submit",
    }
)
# The code of a frame of the program, and its line.
_Line = tuple[CodeType, int]
_WAIT: Final = threading.Condition.wait.__code__
# Functions of the standard library that wait in `_WAIT`, and are reported in its place if deep
# frames are left out.
_WAITING_FUNCTIONS: Final = frozenset({"exception", "get", "join", "result", "wait"})


class UntracedThreads:
    """Record of the lines that hand work to threads that are not traced.

    Before Python 3.12, these are the threads that started before the tracer: what they create is
    attributed to the line that handed the work to them.
    """

    def __init__(self) -> None:
        own = threading.get_ident()
        # From Python 3.12 on, all threads are traced.
        before = (
            set() if sys.version_info >= (3, 12) else {one.ident for one in threading.enumerate()}
        )
        self._threads = before - {own}
        self._handed: dict[_Line, tuple[Site, ...]] = {}
        # Those whose work may not have ended: nothing was waited for since.
        self._pending: set[_Line] = set()

    def begin(self) -> None:
        self._handed.clear()
        self._pending.clear()
        self._threads &= {one.ident for one in threading.enumerate()}

    @property
    def lines(self) -> list[str]:
        """The lines of this iteration, as ``file:line``."""
        return [f"{PurePath(code.co_filename).name}:{line}" for code, line in self._handed]

    def note(self, event: Event, frame: FrameType, called: Any) -> None:
        if self.has_waited(event, frame, called):
            if len(self._pending) == 1:
                # Of several, it is not known which has been waited for.
                self._pending.clear()
        elif event == "call" and frame.f_back is not None:
            self._note_call(frame.f_code, frame.f_back)
        elif event == "c_call" and type(called) is CodeType:
            self._note_call(called, frame)

    def _note_call(self, code: CodeType, caller: FrameType) -> None:
        if code.co_name not in _HANDING_FUNCTIONS or not is_standard(code.co_filename):
            return
        # Of the calls that lead there, only the program's own: what the others do has created
        # nothing.
        while is_standard(caller.f_code.co_filename) and caller.f_back is not None:
            code, caller = caller.f_code, caller.f_back
        line = (caller.f_code, caller.f_lineno or 0)
        self._handed[line] = path_to(caller, f"{code.co_qualname}()")
        self._pending.add(line)

    def has_waited(self, event: Event, frame: FrameType, called: Any) -> bool:
        """Return whether a thread has waited for another one, which has probably ended its work."""
        return bool(self._threads and self._handed) and (
            (event == "return" and frame.f_code is _WAIT)
            or (event == "c_return" and _is_waiting(called))
        )

    def path_of_work(self) -> tuple[Site, ...]:
        """Return the call path that handed over what another thread does; empty if unknown."""
        lines = self._pending if len(self._pending) == 1 else self._handed
        return self._handed[next(iter(lines))] if len(lines) == 1 else ()

    def path_of(
        self, event: Event, frame: FrameType, called: Any, entered: FrameType
    ) -> tuple[Site, ...] | None:
        """Return the call path at which an untraced thread caused a change; empty if it is unknown.

        None if the thread that sees the change has caused it. At "call", `frame` calls the one that
        is `entered`.
        """
        returned = name_of_called(called) if event == "c_return" else ""
        creates = returned and not _is_waiting(called) and returned not in HARMLESS_FUNCTIONS
        if not self._threads or creates:
            return None
        if not self._handed:
            return () if returned else None
        inner: FrameType | None = frame
        while inner is not None and is_standard(inner.f_code.co_filename):
            inner = inner.f_back
        line = None if inner is None else (inner.f_code, inner.f_lineno or 0)
        if line in self._handed:
            return self._handed[line]
        # What only waits, the beginning of a thread and what comes after the last event has caused
        # nothing, nor has an event loop that resumes a coroutine.
        idle = returned or line is None or event == "end" or self.has_waited(event, frame, called)
        idle = idle or (event == "call" and _is_resumed(entered))
        return self.path_of_work() if idle else ()


def _iter_foreign(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers up to the first of the program."""
    return takewhile(lambda one: not is_own(one.f_code.co_filename), iter_outwards(frame))


def _is_resumed(frame: FrameType) -> bool:
    """Return whether a frame that is entered was suspended, such as that of a coroutine."""
    return frame.f_lineno != frame.f_code.co_firstlineno


def _is_waiting(called: Any) -> bool:
    return (
        type(called) is CodeType
        and called.co_name in _WAITING_FUNCTIONS
        and is_standard(called.co_filename)
    )
