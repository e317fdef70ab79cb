"""What one thread sees of another's doings, handed over to the one that did it.

A function that lets other threads run (``os.open``) has done its work some time before its own thread runs again, and
until then another thread sees the change first.
"""

from __future__ import annotations

from typing import Final

# What only waits for another thread or wakes it makes nothing: a change that is seen when it returns is another's.
_HARMLESS: Final = frozenset(
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
# These make a thread and nothing else, which sees itself first.
_STARTS: Final = frozenset({"start_joinable_thread", "start_new_thread"})


class Handover:
    """Which threads are in a function of C that may have made what another one sees. Threads are known by numbers."""

    def __init__(self) -> None:
        self._threads = 0
        self._inside: set[int] = set()
        self._suspects: set[int] = set()

    @property
    def many(self) -> bool:
        """Whether more than one thread was seen at all; nothing else needs to be asked before that."""
        return self._threads > 1

    def new_thread(self) -> int:
        self._threads += 1
        return self._threads

    def note(self, thread: int, calls: str) -> None:
        """This thread is at an event now; ``calls`` is the function of C that it calls, if it does."""
        self._suspects.discard(thread)
        if calls and calls not in _HARMLESS:
            self._inside.add(thread)
        else:
            self._inside.discard(thread)

    def hold(self, thread: int) -> None:
        """This thread saw what it has not made: it belongs to the first of the others that comes back."""
        self._suspects |= self._inside - {thread}

    def is_suspect(self, thread: int) -> bool:
        """Whether what was held may be this thread's."""
        return thread in self._suspects

    def is_anothers(self, thread: int, returned: str) -> bool:
        """Whether what this thread has just seen is more likely another's.

        Args:
            thread: Who sees it.
            returned: The function of C that has just returned, if one has; it is the first to be suspected.
        """
        if returned and returned not in _HARMLESS and returned not in _STARTS:
            return False
        return any(other != thread for other in self._inside)

    def begin(self) -> None:
        self._inside.clear()
        self._suspects.clear()
