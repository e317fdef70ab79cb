"""Define the interface of instruments and the exceptions that they raise."""

from __future__ import annotations

from typing import Protocol, Self


class Unavailable(Exception):
    """The error that a counter cannot be read, or a limit set; it says why and what may help."""

    def released(self) -> Self:
        """Return this error without the frames of its traceback, which hold whatever keeps it."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class NotInUse(Unavailable):
    """The error that this process does not use a resource yet: judged only if a budget names it."""


class Instrument(Protocol):
    """The interface of an object that reads one counter, named by a key of `resources.RESOURCES`.

    What `open` takes is part of the level at the start of the measurement; `read` must retain
    nothing more. Docstrings give Resolution (the smallest visible change), Noise (changes without a
    leak), Cost (of one reading), Scope (the processes that count), Fallback (what is read where the
    source is missing).
    """

    @property
    def resource(self) -> str: ...

    def open(self) -> None:
        """Prepare for reading; raise `Unavailable` if the counter does not exist here."""

    def read(self) -> int:
        """Return the counter's current value, in the unit of its resource."""

    def close(self) -> None:
        """Release what `open` took."""


class Stateless:
    """Base class for an instrument that keeps nothing open."""

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
