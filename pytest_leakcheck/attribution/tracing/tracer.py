"""A listener is called at each call and return, of Python and of C functions, in all threads, while an iteration runs.

Python 3.10 and 3.11 have ``sys.setprofile`` for it, later ones ``sys.monitoring``. A listener sees no difference: it gets
the events of ``sys.setprofile``, with the frame that they are in. Where that becomes too slow, what happens deep down is
left out, and a function at the limit looks as if it were one of C: the path becomes shorter and stays true.
"""

from __future__ import annotations

import sys
from time import perf_counter
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


class _Standard(dict[str, bool]):
    """Whether a file is of the standard library, or code is made up by it (that of a dataclass), by its name."""

    def __missing__(self, file: str) -> bool:
        standard = self[file] = is_standard(file) or file.startswith("<")
        return standard


_STANDARD: Final = _Standard()


class Tracer:
    """Arm it just before an iteration, disarm it right after; close it in the end. One thread does all three.

    Attributes:
        interrupted: Why there was nothing more to hear from some moment on; empty where nothing came between.
        throttle: What is left out.
    """

    def __init__(self, listener: Listener, plain_seconds: float = 0.0, longest: float = 0.0) -> None:
        """
        Args:
            listener: What is told.
            plain_seconds: How long an iteration takes that is not traced.
            longest: As for `Throttle`.

        Raises:
            Unavailable: Other tools have taken all places that there are.
        """
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
        """Whether anything was left out, since it would have taken too long."""
        return self.throttle.coarse

    def arm(self) -> None:
        """From now on the listener is told. Does nothing once it was interrupted."""
        if self.interrupted or self._armed:
            return
        self._armed = True
        if self._handler is None:
            self._handler = self.new_handler()
        outer = outer_frame(sys._getframe(1))
        self._backend.prepare(self._handler, outer)
        self._listener.begin()
        self._tell(self._handler, "begin", outer, None)
        self.throttle.begin()
        self._backend.install()

    def disarm(self) -> None:
        """No more events, and what was in force before is again."""
        if not self._armed:
            return
        self._armed = False
        self.throttle.stop()
        why = self._backend.remove()
        self.interrupted = self.interrupted or why
        assert self._handler is not None
        self._tell(self._handler, "cut" if self.throttle.cut else "end", outer_frame(sys._getframe(1)), None)

    def close(self) -> None:
        """Give back what the interpreter has lent."""
        self.disarm()
        self._backend.close()

    def new_handler(self) -> Handler:
        return self._listener.handler()

    def report(self, handler: Handler, depth: int, event: Event, frame: FrameType, called: Any) -> None:
        """Tell the listener, and charge what that costs."""
        if _STANDARD[frame.f_code.co_filename] and _is_for_the_runner(frame):
            return
        throttle = self.throttle
        turn = throttle.turn = throttle.turn + 1
        began = perf_counter()
        self._tell(handler, event, frame, called)
        # While another thread had its turn, this one waited, which is no cost.
        if throttle.spend(depth, began if turn == throttle.turn else None):
            self._listener.became_coarse()

    def _tell(self, handler: Handler, event: Event, frame: FrameType, called: Any) -> None:
        """No exception of the listener's own gets out of here."""
        try:
            handler(event, frame, called)
        except RecursionError:
            # The program is near its limit: what is missed here is seen at the next event.
            pass
        except BaseException as error:
            if is_of_the_program(error):
                raise
            self.interrupt(f"the listener failed: {type(error).__name__}: {error}")

    def is_late(self) -> bool:
        """Whether the iteration has taken so long that nothing more is reported."""
        late = self.throttle.is_late()
        if late:
            self._listener.became_coarse()
        return late

    def interrupt(self, why: str) -> None:
        """Report nothing more, in this iteration and in later ones."""
        self.interrupted = self.interrupted or why
        self.throttle.stop()


def _is_for_the_runner(frame: FrameType) -> bool:
    """Whether the test runner uses the standard library here, and no code of the test is in between."""
    caller: FrameType | None = frame
    while caller is not None and _STANDARD[caller.f_code.co_filename]:
        caller = caller.f_back
    return caller is not None and QUIET[caller.f_code.co_filename]


def outer_frame(frame: FrameType) -> FrameType:
    """The innermost frame that is not of this package, from this one outwards."""
    while OWN[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame
