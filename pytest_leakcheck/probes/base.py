"""Define the interface of instruments and the exceptions that they raise."""

from __future__ import annotations

from typing import Protocol


class Unavailable(Exception):
    """The error that a counter cannot be read, or a limit cannot be set, on this machine.

    The message says why and, where possible, what would help.
    """


class NotInUse(Unavailable):
    """The error that this process does not use the resource yet.

    There is then nothing to judge, unless a budget names the resource.
    """


class Instrument(Protocol):
    """The interface of an object that reads one counter.

    What `open` takes is part of the level at the start of the measurement; `read` must retain nothing more.

    The docstrings of instruments use these labels: Resolution (the smallest visible change), Noise (changes without a
    leak), Cost (of one reading), Scope (the processes that count), Fallback (what is read where the source is missing).

    Attributes:
        resource: The name of the counter, a key of `resources.RESOURCES`.
    """

    @property
    def resource(self) -> str: ...

    def open(self) -> None:
        """Prepare for reading.

        Raises:
            Unavailable: The counter does not exist here.
        """
        ...

    def read(self) -> int:
        """Return the counter's current value, in the unit of its resource."""
        ...

    def close(self) -> None:
        """Release what `open` took."""
        ...


class Stateless:
    """Base class for an instrument that opens nothing."""

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
