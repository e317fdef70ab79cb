"""Define the interface of instruments and the exceptions that they raise."""

from __future__ import annotations

from typing import Protocol


class Unavailable(Exception):
    """This machine cannot read the counter; the message says why, and what would help."""


class NotInUse(Unavailable):
    """This process does not use the resource yet.

    There is nothing to judge then, unless a budget names the resource.
    """


class Instrument(Protocol):
    """The interface of an object that reads one counter.

    Resources that `open` takes belong to the start level; `read` must not add to them.

    Attributes:
        resource: A key of `resources.RESOURCES`.
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
