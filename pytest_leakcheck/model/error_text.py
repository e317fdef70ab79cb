"""Describe an error on one line."""

from __future__ import annotations

from typing import Final

# The most characters of an error's message in a report: a message may be megabytes long.
_MAX_MESSAGE: Final = 500


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of the message of an error."""
    return f"{type(error).__name__}: {str(error)[:_MAX_MESSAGE]}".splitlines()[0]
