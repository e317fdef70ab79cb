"""What every instrument is, and what it may raise."""

from __future__ import annotations

from typing import Protocol


class Unavailable(Exception):
    """This machine cannot read the counter; the message says why, and what would."""


class NotInUse(Unavailable):
    """Nothing in this process has such a thing yet: there is nothing to judge, unless a budget asks for it."""


class Instrument(Protocol):
    """Reads one counter. Whatever it opens or allocates in `open` is part of the start and grows no further in `read`.

    Attributes:
        resource: A key of `resources.RESOURCES`.
    """

    @property
    def resource(self) -> str: ...

    def open(self) -> None:
        """Get ready; raises `Unavailable` where the counter does not exist."""
        ...

    def read(self) -> int:
        """The counter now, in the unit of its resource."""
        ...

    def close(self) -> None:
        """Give back what `open` took."""
        ...


class Stateless:
    """For an instrument that opens nothing."""

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        """Nothing was opened."""
