"""Value types shared by all packages of the plugin, with their JSON form. Imports no other package of the plugin."""

from __future__ import annotations


class LeakcheckError(Exception):
    """Wrong use of the plugin. The message states what was seen and where, what is valid, and what to do.

    `LeakError`, which reports a leak, is a `pytest.fail.Exception` instead, so that ``except Exception`` cannot hide
    it.
    """


class InputError(LeakcheckError, ValueError):
    """An invalid value; the message gives it and what is valid. Callers prepend where it was written."""


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
