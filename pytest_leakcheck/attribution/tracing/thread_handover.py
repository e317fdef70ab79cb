"""Attribute a change of a counter that one thread sees to the thread that caused it.

A C function that releases the GIL (``os.open``) has done its work some time before its own thread runs again. Until
then another thread may see the change first.
"""

from __future__ import annotations

from typing import Final

# C functions that only wait for another thread or wake one. They create nothing, so a change that is seen when one
# returns was caused by another thread.
_HARMLESS_FUNCTIONS: Final = frozenset(
    {
        "RLock.__enter__",
        "RLock.__exit__",
        "RLock.acquire",
        "RLock.release",
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
    }
)
# C functions that create a thread and nothing else. The new thread is the first to see that it was added. Any other
# change that is seen when one of these functions returns may have been caused by another thread.
_THREAD_STARTERS: Final = frozenset({"start_joinable_thread", "start_new_thread"})


class Handover:
    """Record of the threads that are running a C function.

    Each of them may have caused a change that another thread sees. Threads are identified by the numbers that
    `new_thread` returns.
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
        """Record that a thread has reached an event.

        Args:
            thread: The thread.
            calls: The C function that it is about to call; empty if it calls none.
        """
        self._suspects.discard(thread)
        if calls and calls not in _HARMLESS_FUNCTIONS:
            self._inside.add(thread)
        else:
            self._inside.discard(thread)

    def hold(self, thread: int) -> None:
        """Record that a thread saw a change that it probably did not cause.

        The change is attributed to the first of the other threads that returns from its C function.
        """
        self._suspects |= self._inside - {thread}

    def is_suspect(self, thread: int) -> bool:
        """Return whether this thread may have caused the changes that other threads saw."""
        return thread in self._suspects

    def is_anothers(self, thread: int, returned: str) -> bool:
        """Return whether a change was more likely caused by another thread than by this one.

        Args:
            thread: The thread that has just seen the change.
            returned: The C function that has just returned in that thread, the most likely cause; empty if none has.
        """
        if returned and returned not in _HARMLESS_FUNCTIONS and returned not in _THREAD_STARTERS:
            return False
        return any(other != thread for other in self._inside)

    def begin(self) -> None:
        self._inside.clear()
        self._suspects.clear()
