"""Define the exception that fails a test which leaks or exceeds a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import pytest

if TYPE_CHECKING:
    # Not imported at run time, because a plain run with ``xfail(raises=LeakError)`` stays light.
    from pytest_leakcheck.report.finding_text import Line


@final
class LeakError(pytest.fail.Exception):  # type: ignore[name-defined,misc]  # pytest makes it at run time
    """A red (failing) verdict, raised in the call phase of the test.

    The first line of the text states what happened; the report below it names what grew, by how much, and what is
    retained. Only the plugin raises this exception, so it is never the test's own failure. To resolve it, fix the leak,
    or raise the budget to what the test is meant to retain. ``@pytest.mark.xfail(raises=LeakError)`` marks a leak as
    known.
    """

    # pytest shows no module name before the name of a built-in exception. The short summary shows about 60 columns, and
    # the package's name would take 17 of them.
    __module__ = "builtins"

    def __init__(self, text: str, lines: tuple[Line, ...] = ()) -> None:
        """Take the text, and if it has styles, its lines with them."""
        super().__init__(text, pytrace=False)
        self.lines = lines
