"""Tests of Hypothesis, which look alike from one iteration to the next: the same examples, and no check on how they are run.

The first iteration is plain: it has the user's settings, the database and new examples, and a failure in it is the test's own.
The others repeat fixed examples. New ones would be new work each time; the database is a file that grows; and that a class
has a new instance in each iteration is not a fault of the test (``HealthCheck.differing_executors``).
"""

from __future__ import annotations

import sys
from typing import Any, Final

import pytest

_OF_A_FUNCTION: Final = "_hypothesis_internal_use_settings"
_OF_A_MACHINE: Final = "settings"
# A failure of a later iteration is not looked into.
_WITHOUT: Final = ("shrink", "explain")


class Examples:
    """The settings of one test; does nothing for a test that is none of Hypothesis, and imports nothing."""

    def __init__(self, item: pytest.Item) -> None:
        self._holder: Any = None
        self._name = _OF_A_FUNCTION
        self._own: Any = None
        self._fixed: Any = None
        hypothesis: Any = sys.modules.get("hypothesis")
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if hypothesis is None or not getattr(function, "is_hypothesis_test", False):
            return
        holder: Any = function
        if not hasattr(function, _OF_A_FUNCTION):
            # A state machine's, which has them on its class.
            holder, self._name = getattr(item, "cls", None), _OF_A_MACHINE
        own = getattr(holder, self._name, None)
        if isinstance(own, hypothesis.settings):
            self._holder = holder
            # Made before the start is read.
            self._fixed = hypothesis.settings(
                parent=own,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[phase for phase in own.phases if phase.name not in _WITHOUT],
                suppress_health_check=list(hypothesis.HealthCheck),
            )

    def fix(self) -> None:
        """Before each run but the first: Hypothesis may have put settings of its own over ours."""
        if self._holder is None:
            return
        if self._own is None:
            self._own = getattr(self._holder, self._name)
        setattr(self._holder, self._name, self._fixed)

    def put_back(self) -> None:
        """After the last run."""
        if self._own is not None:
            setattr(self._holder, self._name, self._own)
