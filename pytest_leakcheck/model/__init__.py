"""Value types that all packages of the plugin share, with their JSON form.

This package imports no other package of the plugin.
"""

from __future__ import annotations

from typing import Final

# Exit statuses of the shell commands; each command defines its own meaning of 0 and 1.
# The arguments are invalid, or they name something that does not exist or cannot be used.
WRONG_USE: Final = 2
# The command cannot do its work here: something that it needs is missing, such as a package or the
# process to watch.
CANNOT: Final = 3
# 128 + 2, the number of SIGINT: the status that a shell reports for a process that SIGINT ended.
INTERRUPTED: Final = 130
# The most characters of an error's message in a report: a message may be megabytes long.
_MAX_MESSAGE: Final = 500


class LeakcheckError(Exception):
    """Wrong use of the plugin.

    The message states what was seen and where, what is valid, and what to do. `LeakError`, which
    reports a leak, is a `pytest.fail.Exception` instead, so that ``except Exception`` cannot hide
    it.
    """


class InputError(LeakcheckError, ValueError):
    """An invalid value: the message gives it and what is valid, and callers prepend its place."""


class invalid_at:  # noqa: N801 - a context manager is used like a function
    """Prepend where a value was written to the message of an `InputError`."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # In a test, the report on an error ends with the user's own line.
        __tracebackhide__ = True
        if isinstance(error, InputError):
            raise InputError(f"{self.place}: {error}") from None


def describe_error(error: BaseException) -> str:
    """Return the type and the first line of the message of an error."""
    return f"{type(error).__name__}: {str(error)[:_MAX_MESSAGE]}".splitlines()[0]
