"""Define the base of all errors that tell a user what to change: an option, a marker, an argument, a file."""

from __future__ import annotations


class LeakcheckError(Exception):
    """Wrong use of this package. The message says what was seen and where, what is valid, and what to do.

    `LeakError`, a leak that was found, is not one: it is a `pytest.fail.Exception`, so that no ``except Exception`` of a
    test hides it.
    """
