"""The one exception that a user reads: a test that leaks, or overruns a budget."""

from __future__ import annotations

from typing import final

import pytest


@final
class LeakError(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # pytest makes it at run time
    """Raised in the call phase of a test whose verdict is red.

    What happened is the first line of its text; the report below names what grew, by how much, and what is held. It is
    raised by the plugin and is never the test's own failure. Ways out: mend the leak, or give the budget what the test
    is meant to keep. ``@pytest.mark.xfail(raises=LeakError)`` marks a leak as known.
    """

    # Readers of the short summary see about 60 columns; the package's name would take 17 of them.
    __module__ = "builtins"

    def __init__(self, text: str) -> None:
        super().__init__(text, pytrace=False)
