"""Call a listener at each call and return of Python and C functions.

The backend is ``sys.setprofile`` on Python 3.11, and ``sys.monitoring`` on later versions. In both cases the
listener gets the same events (`trace_events.Event`), each with its frame. If tracing is too slow, the tracer leaves out
the events of deep frames, and reports a function just below the depth limit as if it were a C function. Call paths then
become shorter and stay correct. Threads that started before tracing are traced only with ``sys.monitoring``.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import is_standard
from pytest_leakcheck.attribution.tracing.throttle import Throttle
from pytest_leakcheck.attribution.tracing.trace_events import (
    OWN,
    QUIET,
    Backend,
    Event,
    Handler,
    Listener,
    is_of_the_program,
)
from pytest_leakcheck.probes.clock import monotonic


class _StandardFiles(dict[str, bool]):
    """Cache by file name: whether code is of the standard library or generated, such as that of a dataclass."""

    def __missing__(self, file: str) -> bool:
        standard = self[file] = is_standard(file) or file.startswith("<")
        return standard


_STANDARD: Final = _StandardFiles()


class Tracer:
    """Tracer of calls and returns; `interrupted` is why tracing ended early, empty if it did not.

    Call `arm` just before each iteration, `disarm` right after it, and `close` at the end, all in one thread.
    """

    def __init__(self, listener: Listener, plain_seconds: float = 0.0, longest: float = 0.0) -> None:
        """Create a tracer; raise `Unavailable` if all tool ids of ``sys.monitoring`` are in use."""
        self.interrupted = ""
        self.throttle = Throttle(plain_seconds, longest)
        self._listener = listener
        self._handler: Handler | None = None
        self._armed = False
        if sys.version_info >= (3, 12):
            from pytest_leakcheck.attribution.tracing.monitoring_backend import Monitored

            self._backend: Backend = Monitored(self)
        else:
            from pytest_leakcheck.attribution.tracing.setprofile_backend import Profiled

            self._backend = Profiled(self)

    @property
    def coarse(self) -> bool:
        return self.throttle.coarse

    def arm(self) -> None:
        """Start to report events. Does nothing if tracing was interrupted or has already started."""
        if self.interrupted or self._armed:
            return
        self._armed = True
        if self._handler is None:
            self._handler = self.new_handler()
        # The object of this frame is made before the listener reads its counter.
        outer = outer_frame(sys._getframe())
        self._backend.prepare(self._handler)
        self._listener.begin()
        self._call_handler(self._handler, "begin", outer, None)
        self.throttle.begin()
        self._backend.install()

    def disarm(self) -> None:
        """Stop reporting events, and restore what the backend replaced."""
        if not self._armed:
            return
        self._armed = False
        self.throttle.stop()
        why = self._backend.remove()
        self.interrupted = self.interrupted or why
        assert self._handler is not None
        self._call_handler(self._handler, "cut" if self.throttle.cut else "end", outer_frame(sys._getframe(1)), None)

    def close(self) -> None:
        self.disarm()
        self._backend.close()

    def new_handler(self) -> Handler:
        return self._listener.handler()

    def report(self, handler: Handler, depth: int, event: Event, frame: FrameType, called: Any) -> None:
        """Pass an event to the listener and charge its cost; skip standard library functions of the test runner."""
        if _STANDARD[frame.f_code.co_filename] and _is_called_by_runner(frame):
            return
        throttle = self.throttle
        turn = throttle.turn = throttle.turn + 1
        began = monotonic()
        self._call_handler(handler, event, frame, called)
        # If another thread ran meanwhile, this one waited, and the elapsed time is not the cost of the event.
        if throttle.spend(depth, began if turn == throttle.turn else None):
            self._listener.became_coarse()

    def _call_handler(self, handler: Handler, event: Event, frame: FrameType, called: Any) -> None:
        """Call a handler. An error of the listener itself ends tracing, and is not raised."""
        try:
            handler(event, frame, called)
        except RecursionError:
            # The program is near the recursion limit. Skip this event; the listener sees its changes at the next event.
            pass
        except BaseException as error:
            if is_of_the_program(error):
                raise
            self.interrupt(f"the listener failed: {type(error).__name__}: {error}")

    def interrupt(self, why: str) -> None:
        self.interrupted = self.interrupted or why
        self.throttle.stop()


def _is_called_by_runner(frame: FrameType) -> bool:
    """Return whether the test runner called this standard library function, with no code of the test in between."""
    caller: FrameType | None = frame
    while caller is not None and _STANDARD[caller.f_code.co_filename]:
        caller = caller.f_back
    return caller is not None and QUIET[caller.f_code.co_filename]


def outer_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame outside of this package, searching from this frame outwards."""
    while OWN[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame
