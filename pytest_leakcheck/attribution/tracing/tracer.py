"""Call a listener at each call and return, or read a counter at each line of one function.

Calls are those of Python and C functions. If tracing is too slow, the events of deep frames are
left out, and a function just below the depth limit is reported as if it were a C function. Call
paths then become shorter and stay correct.
"""

from __future__ import annotations

import signal
import sys
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Literal, Protocol

from pytest_leakcheck.attribution.call_paths import PACKAGE_FOLDER, is_harness, is_own, is_standard
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.probes.clock import monotonic, process_time

# "begin" and "end" come once per iteration, with the innermost frame outside of this package. "cut"
# comes in place of "end" if the last part of the iteration was not traced.
Event = Literal["begin", "call", "return", "c_call", "c_return", "end", "cut"]
# Arguments: the event; the frame that is entered or left, or that calls a C function; that
# function, or the code object that is reported in its place.
Handler = Callable[[Event, FrameType, Any], None]
# Values of `Throttle.limit`: all events are reported, or none.
UNLIMITED: Final = 1 << 30
STOPPED: Final = -UNLIMITED
# What the events may cost, and how long they are reported, as multiples of the duration of an
# untraced iteration.
_MAX_COST: Final = 3.0
_MAX_DURATION: Final = 6.0
# Seconds. A shorter iteration gets the budget of one that takes this long.
_MIN_PLAIN_SECONDS: Final = 0.02
# Seconds for which other processes may have the processor meanwhile.
_MAX_HELD_UP_SECONDS: Final = 0.5
# When more than this many events have been left out, the throttle checks whether the iteration is
# late.
_SKIPPED: Final = 1000
# Number of depths whose costs are summed separately; deeper frames count at the last of them.
_TRACKED_DEPTHS: Final = 128


class _Files(dict[str, bool]):
    """Cache by file name."""

    def __init__(self, decide: Callable[[str], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, file: str) -> bool:
        decided = self[file] = self._decide(file)
        return decided


# Files of this package; files whose events are not reported, also those of pytest and plugins; and
# those of the standard library, with generated code, such as that of a dataclass.
OWN: Final = _Files(lambda file: file.startswith(PACKAGE_FOLDER))
QUIET: Final = _Files(is_harness)
_STANDARD: Final = _Files(lambda file: is_standard(file) or file.startswith("<"))


class Listener(Protocol):
    """Receiver of a tracer's events."""

    def begin(self) -> None:
        """Begin an iteration. What happened since the previous one was not traced."""

    def handler(self) -> Handler:
        """Return the function to call at each event of one thread; called once per thread."""


class TracedThread:
    """The state of one thread. Its first traced frame has depth 1."""

    __slots__ = ("depth", "handler")

    def __init__(self, handler: Handler) -> None:
        self.depth = 0
        self.handler = handler


class Throttle:
    """Budget of traced iterations.

    When it is used up, the frames are left out that took the deeper half of the cost. Events of
    frames deeper than `limit` are not reported. `coarse`: some event was left out so far. `cut`:
    the rest of this iteration is not traced. `turn` counts events: if it changes while one is
    handled, another thread ran.
    """

    def __init__(self, plain_seconds: float, longest: float = 0.0) -> None:
        """Begin without a depth limit; report for `longest` seconds (0: six plain iterations)."""
        self.limit = self._depth = UNLIMITED
        self.coarse = self.cut = False
        self.turn = 0
        plain = max(plain_seconds, _MIN_PLAIN_SECONDS)
        self._budget = _MAX_COST * plain
        self._longest = longest or _MAX_DURATION * plain
        self._skipped = 0
        # Cost in seconds by depth. An array: a Python float per depth would be a memory block that
        # the tracer leaks.
        self._by_depth = array("d", bytes(8 * _TRACKED_DEPTHS))
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, with the depth limit that earlier iterations required."""
        self.limit, self.cut = self._depth, False
        self._stop_at, self._cpu_stop_at = (
            monotonic() + self._longest,
            process_time() + self._longest,
        )
        self._begin_budget()

    def _begin_budget(self) -> None:
        for depth in range(_TRACKED_DEPTHS):
            self._by_depth[depth] = 0.0
        self._spent, self._cpu_before = 0.0, process_time()

    def spend(self, depth: int, began: float | None) -> None:
        """Charge an event's cost; if it is the last that is allowed, lower the limit.

        The cost is 0 if `began` is None (unknown).
        """
        now = monotonic()
        if began is not None:
            cost = now - began
            self._by_depth[min(max(depth, 0), _TRACKED_DEPTHS - 1)] += cost
            self._spent += cost
        late = self._is_late(now)
        # An event that waits for a processor does not use it.
        expensive = self._spent > self._budget and process_time() - self._cpu_before > self._budget
        if late or expensive:
            if not self._lower_depth() or late:
                self._cut_off()
            self._begin_budget()
            self.coarse = True

    def skip(self) -> None:
        """Note an event that is too deep to be reported; many of these make an iteration late."""
        self._skipped += 1
        if self._skipped > _SKIPPED:
            self._skipped = 0
            if self._is_late(monotonic()):
                self._cut_off()

    def _is_late(self, now: float) -> bool:
        """Return whether this iteration took too long, without the time of other processes."""
        held_up = now - self._stop_at
        return held_up > 0 and (
            held_up > _MAX_HELD_UP_SECONDS or process_time() > self._cpu_stop_at
        )

    def _cut_off(self) -> None:
        self.cut = True
        self.stop()

    def stop(self) -> None:
        """Report nothing more in this iteration."""
        self.limit = STOPPED

    def _lower_depth(self) -> bool:
        """Leave out the frames with the deeper half of the cost; return False if those are all."""
        depths = [depth for depth in range(_TRACKED_DEPTHS) if self._by_depth[depth]]
        spent, last = 0.0, 0
        for depth in depths:
            spent += self._by_depth[depth]
            if spent > self._spent / 2:
                break
            last = depth
        # A frame just below the limit is still reported, as a C call.
        lower = max(last - 1, min(depths, default=0))
        if lower >= min(self._depth, max(depths, default=0)):
            return False
        self.limit = self._depth = lower
        return True


class _Tracer(ABC):
    """Base class of tracers; `interrupted` is why tracing ended early, empty if it did not."""

    # Call `arm` just before each iteration, `disarm` right after it, and `close` at the end, all in
    # one thread.

    def __init__(self, plain_seconds: float, longest: float = 0.0) -> None:
        self.interrupted = ""
        self.throttle = Throttle(plain_seconds, longest)
        self._armed = False

    @abstractmethod
    def disarm(self) -> None:
        """Stop reporting events, and restore what the backend replaced."""

    @abstractmethod
    def _remove(self) -> str:
        """Stop reporting, and return why some events may have been missed; empty if none were."""

    def close(self) -> None:
        self.disarm()

    def interrupt(self, why: str) -> None:
        """Report nothing more, in this iteration and in later ones."""
        self.interrupted = self.interrupted or why
        self.throttle.stop()


class CallTracer(_Tracer):
    """Tracer of calls and returns."""

    def __init__(self, listener: Listener, plain_seconds: float, longest: float = 0.0) -> None:
        super().__init__(plain_seconds, longest)
        self.listener = listener
        self._handler: Handler | None = None

    @abstractmethod
    def _prepare(self, handler: Handler) -> None:
        """Allocate what the backend needs, before the listener first reads its counter."""

    @abstractmethod
    def _install(self) -> None: ...

    def arm(self) -> None:
        """Start to report events, unless tracing was interrupted or has already started."""
        if self.interrupted or self._armed:
            return
        self._armed = True
        if self._handler is None:
            self._handler = self.listener.handler()
        outer = outer_frame(sys._getframe(1))
        self._prepare(self._handler)
        self.listener.begin()
        self._call_handler(self._handler, "begin", outer, None)
        self.throttle.begin()
        self._install()

    def disarm(self) -> None:
        if not self._armed:
            return
        self._armed = False
        self.throttle.stop()
        why = self._remove()
        self.interrupted = self.interrupted or why
        assert self._handler is not None
        self._call_handler(
            self._handler,
            "cut" if self.throttle.cut else "end",
            outer_frame(sys._getframe(1)),
            None,
        )

    def enter(self, thread: TracedThread, frame: FrameType) -> None:
        """Report that a frame is entered or resumed, unless it is too deep."""
        thread.depth += 1
        self._report_frame(thread.handler, thread.depth, "call", frame)

    def leave(self, thread: TracedThread, frame: FrameType) -> None:
        """Report that a frame is left or suspended, unless it is too deep."""
        thread.depth -= 1
        self._report_frame(thread.handler, thread.depth + 1, "return", frame)

    def report_c(self, thread: TracedThread, event: Event, frame: FrameType, called: Any) -> None:
        """Report that a C function is called or returns, unless its caller's frame is too deep."""
        if thread.depth <= self.throttle.limit:
            self._report(thread.handler, thread.depth, event, frame, called)
        else:
            self.throttle.skip()

    def _report_frame(self, handler: Handler, depth: int, event: Event, frame: FrameType) -> None:
        limit = self.throttle.limit
        if depth <= limit:
            self._report(handler, depth, event, frame, None)
        elif depth > limit + 1:
            self.throttle.skip()
        else:
            # Report a frame just below the limit as if its caller called a C function.
            caller = frame.f_back
            if caller is not None and not QUIET[caller.f_code.co_filename]:
                self._report(
                    handler,
                    depth,
                    "c_call" if event == "call" else "c_return",
                    caller,
                    frame.f_code,
                )

    def _report(
        self, handler: Handler, depth: int, event: Event, frame: FrameType, called: Any
    ) -> None:
        """Report an event and charge its cost; skip the runner's standard library functions."""
        if _STANDARD[frame.f_code.co_filename] and _is_called_by_runner(frame):
            return
        throttle = self.throttle
        turn = throttle.turn = throttle.turn + 1
        began = monotonic()
        self._call_handler(handler, event, frame, called)
        # If another thread ran meanwhile, this one waited, and the elapsed time is not the cost of
        # the event.
        throttle.spend(depth, began if turn == throttle.turn else None)

    def _call_handler(self, handler: Handler, event: Event, frame: FrameType, called: Any) -> None:
        """Call a handler. An error of the listener itself ends tracing, and is not raised."""
        try:
            handler(event, frame, called)
        except RecursionError:
            # The program is near the recursion limit. Skip this event; the listener sees its
            # changes at the next event.
            pass
        except BaseException as error:
            if is_of_the_program(error):
                raise
            self.interrupt(f"the listener failed: {type(error).__name__}: {error}")


def _is_called_by_runner(frame: FrameType) -> bool:
    """Return whether the test runner called this library function, without the test in between."""
    caller: FrameType | None = frame
    while caller is not None and _STANDARD[caller.f_code.co_filename]:
        caller = caller.f_back
    return caller is not None and QUIET[caller.f_code.co_filename]


def outer_frame(frame: FrameType) -> FrameType:
    """Return the innermost frame outside of this package, searching from this frame outwards."""
    while OWN[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_left_out(called: object) -> bool:
    """Return whether a function reported as C is the program's, whose own events are left out."""
    return type(called) is CodeType and is_own(called.co_filename)


def is_of_the_program(error: BaseException) -> bool:
    """Return whether `error` is KeyboardInterrupt or of a signal handler that ran in a listener."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [
        getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers
    ]
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if any(traceback.tb_frame.f_code is code for code in codes):
            return True
        traceback = traceback.tb_next
    return False


# C functions that only wait for another thread or wake one. They create nothing.
HARMLESS_FUNCTIONS: Final = frozenset(
    {
        "EpollSelector.select",
        "PollSelector.select",
        "RLock.__enter__",
        "RLock.__exit__",
        "RLock.acquire",
        "RLock.release",
        "SelectSelector.select",
        "SimpleQueue.get",
        "SimpleQueue.put",
        "_ThreadHandle.join",
        "epoll.poll",
        "lock.__enter__",
        "lock.__exit__",
        "lock.acquire",
        "lock.release",
        "poll",
        "poll.poll",
        "select",
        "sleep",
        # The signal with which a thread wakes an event loop.
        "socket.send",
    }
)
# C functions that create a thread, which is the first to see that it was added, and nothing else.
_THREAD_STARTERS: Final = frozenset({"start_joinable_thread", "start_new_thread"})


class Handover:
    """Record of the threads (numbers) in C functions that may have caused a change others see.

    A C function that releases the GIL (``os.open``) has done its work some time before its own
    thread runs again; until then, another thread may see the change.
    """

    def __init__(self) -> None:
        self._threads = 0
        self._inside: set[int] = set()
        self._suspects: set[int] = set()

    @property
    def many(self) -> bool:
        """Whether several threads were seen; until then the other methods are not needed."""
        return self._threads > 1

    def new_thread(self) -> int:
        self._threads += 1
        return self._threads

    def note(self, thread: int, calls: str) -> None:
        """Record an event of a thread; `calls`: the C function that it will call next, or empty."""
        self._suspects.discard(thread)
        if calls and calls not in HARMLESS_FUNCTIONS:
            self._inside.add(thread)
        else:
            self._inside.discard(thread)

    def hold(self, thread: int) -> None:
        """Attribute a change that a thread saw to the first other to return from a C function."""
        self._suspects |= self._inside - {thread}

    def is_suspect(self, thread: int) -> bool:
        """Return whether this thread may have caused the changes that other threads saw."""
        return thread in self._suspects

    def is_anothers(self, thread: int, returned: str) -> bool:
        """Return whether another thread more likely caused a change than this one's C function."""
        if returned and returned not in HARMLESS_FUNCTIONS and returned not in _THREAD_STARTERS:
            return False
        return any(other != thread for other in self._inside)

    def begin(self) -> None:
        self._inside.clear()
        self._suspects.clear()


def is_wait(path: Sequence[Site]) -> bool:
    """Return whether a path ends in a function that only waits; another thread is the cause."""
    return bool(path) and path[-1].call.removesuffix("()") in HARMLESS_FUNCTIONS


# A call or a line explains a growth if it retains between these multiples of it; the excess is
# released elsewhere.
LEAST_OF_GROWTH: Final = 0.9
MOST_OF_GROWTH: Final = 1.5
# Beside one that retains or releases more than this multiple of the growth,
_LARGE_SIBLING_RATIO: Final = 0.5
# another one explains the growth only if it differs from it by at most this share.
_MAX_DEVIATION_RATIO: Final = 0.03
# A line that grows alone explains a growth of which it retains at least this share. It does so if
# what the other lines retain and release adds up to at most this share of its own.
_MIN_LONE_RATIO: Final = 0.25
_MAX_OTHERS_RATIO: Final = 0.1
# A frame is entered or resumed, reaches a line, or is left or suspended.
Step = Literal["enter", "line", "leave"]
_STEPS: Final[tuple[Step, ...]] = ("enter", "line", "leave")


def explains(amount: float, growth: float) -> bool:
    """Return whether one call or line that retains an amount may be all that retains a growth."""
    return LEAST_OF_GROWTH * growth <= amount <= MOST_OF_GROWTH * growth


def is_by_chance(kept: float, others: Iterable[float], total: float) -> bool:
    """Return whether a growth may match by chance, as others retain or release (negative) much."""
    # It may if it does not match closely, or if another one matches too: one of the two is then
    # released elsewhere.
    large = [amount for amount in others if abs(amount) > _LARGE_SIBLING_RATIO * total]
    rivals = any(explains(amount, total) for amount in large)
    return rivals or (bool(large) and abs(kept - total) > _MAX_DEVIATION_RATIO * total)


class LineTracer(_Tracer):
    """Tracer of the lines of one function.

    This is the second round, for a growth that the first traced to a function but to no call in it:
    operators (``a @ b``), attributes and ``with`` make no call events, nor do `ctypes` functions
    before Python 3.12.

    The counter's growth while a line runs, calls included, is charged to that line; other growth is
    not charged.
    """

    def __init__(self, code: CodeType, read: Callable[[], int], plain_seconds: float) -> None:
        super().__init__(plain_seconds)
        self._code = code
        self._read = read
        self._first = code.co_firstlineno
        last = max((line for _start, _end, line in code.co_lines() if line), default=self._first)
        # An array: a Python int per line would be a memory block that the tracer leaks.
        self._kept = array("q", bytes(8 * (max(last, self._first) - self._first + 1)))
        self._last = 0
        self._stacks = threading.local()

    @abstractmethod
    def _install(self, running: list[FrameType]) -> None:
        """Begin to report lines; `running` are the function's running frames, innermost first."""

    def arm(self) -> None:
        if self.interrupted or self._armed:
            return
        self._armed = True
        # `lines` of this object: the current line of each frame of the function in this thread,
        # outermost first, after a 0. An empty array would allocate a block in the function's first
        # line, and free it after the last one; a list would keep a block for each number above 256.
        self._stacks = threading.local()
        running = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._code:
                running.append(frame)
            frame = frame.f_back
        self.throttle.begin()
        # A step keeps numbers, and needs more while it replaces those of the last one. After some
        # steps, Python has enough objects in its free lists, which a collection empties.
        self._stacks.lines, kept = array("q", (0,)), self._kept[0]
        for kind in _STEPS * 2:
            self.step(kind, self._code.co_firstlineno)
        self._kept[0] = kept
        self._stacks.lines.extend(one.f_lineno for one in reversed(running))
        self._last = self._read()
        self._install(running)

    def disarm(self) -> None:
        if not self._armed:
            return
        self._armed = False
        # If a frame of the function still runs, charge the growth since the last step to its
        # current line.
        if self._stacks.lines[-1]:
            self.step("leave", self._code.co_firstlineno)
        self.throttle.stop()
        self.interrupted = self._remove() or self.interrupted

    def forget(self) -> None:
        """Reset all sums; for use after the first iteration, which fills caches."""
        for at in range(len(self._kept)):
            self._kept[at] = 0

    def explains(self, line: int, total: float) -> bool:
        """Return whether a growth was charged to this line, whatever other lines hold."""
        at = line - self._first
        return at in range(len(self._kept)) and explains(self._kept[at], total)

    def line(self, total: int | None = None) -> int:
        """Return the line that explains a growth (default: all charged); 0 if none does alone."""
        total = sum(self._kept) if total is None else total
        if total <= 0:
            return 0
        at = min(range(len(self._kept)), key=lambda at: abs(self._kept[at] - total))
        if explains(self._kept[at], total):
            others = [*self._kept[:at], *self._kept[at + 1 :]]
            return 0 if is_by_chance(self._kept[at], others, total) else self._first + at
        alone, beside = self._kept[at], sum(map(abs, self._kept)) - self._kept[at]
        if (
            _MIN_LONE_RATIO * total <= alone <= MOST_OF_GROWTH * total
            and beside <= _MAX_OTHERS_RATIO * alone
        ):
            # Only this line grows. malloc's own cache may hide a part of what small blocks take.
            return self._first + at
        most = max(range(len(self._kept)), key=self._kept.__getitem__)
        other_gains = sum(amount for amount in self._kept if amount > 0) - self._kept[most]
        # The other lines may only release a part of that again.
        is_only_gain = (
            LEAST_OF_GROWTH * total <= sum(self._kept) and other_gains <= _MAX_OTHERS_RATIO * total
        )
        return self._first + most if is_only_gain else 0

    def step(self, kind: Step, line: int) -> None:
        """Charge the growth since the last step, and update the line.

        Give any line of the function where none is reached, as a new object: above 256, the number
        is a block, which the readings count at each step or at none.
        """
        if self.throttle.limit == STOPPED:
            return
        began = monotonic()
        try:
            self._charge_step(kind, line)
        except RecursionError:
            return
        except BaseException as error:
            if is_of_the_program(error):
                raise
            self.interrupt(f"reading the counter failed: {type(error).__name__}: {error}")
            return
        self.throttle.spend(0, began)

    def _charge_step(self, kind: Step, line: int) -> None:
        try:
            lines: array[int] = self._stacks.lines
        except AttributeError:
            lines = self._stacks.lines = array("q", (0,))
        now = self._read()
        if lines[-1]:
            self._kept[lines[-1] - self._first] += now - self._last
        self._last = now
        if kind == "leave":
            if lines[-1]:
                lines.pop()
        elif kind == "enter":
            lines.append(self._first)
        elif not lines[-1]:
            lines.append(line)
        else:
            lines[-1] = line
