"""Make a Hypothesis test repeat the same examples, without health checks.

The first iteration uses the user's settings, so a failure in it is the test's own. The others repeat fixed examples,
because new ones would be different work, without the database, a file that grows. A health check would report the new
instance of the test class of each iteration as a fault.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import pytest

# The attribute of a test function that holds the settings.
_FUNCTION_ATTRIBUTE: Final = "_hypothesis_internal_use_settings"


class Examples:
    """The Hypothesis settings of one test. For other tests, it does nothing; it never imports Hypothesis."""

    def __init__(self, item: pytest.Item) -> None:
        self._holder: Any = None
        self._attribute = _FUNCTION_ATTRIBUTE
        self._original: Any = None
        self._fixed: Any = None
        hypothesis: Any = sys.modules.get("hypothesis")
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if hypothesis is None or not getattr(function, "is_hypothesis_test", False):
            return
        holder: Any = function
        if not hasattr(function, _FUNCTION_ATTRIBUTE):
            # A state machine has its settings on the class.
            holder, self._attribute = getattr(item, "cls", None), "settings"
        own = getattr(holder, self._attribute, None)
        if isinstance(own, hypothesis.settings):
            self._holder = holder
            # Create the settings here, before the start level (the reading that later ones are compared with) is read.
            self._fixed = hypothesis.settings(
                parent=own,
                derandomize=True,
                database=None,
                deadline=None,
                # A failure of a later iteration is not investigated.
                phases=[phase for phase in own.phases if phase.name not in ("shrink", "explain")],
                suppress_health_check=list(hypothesis.HealthCheck),
            )

    def fix(self) -> None:
        """Set the fixed settings; call before each run except the first, because Hypothesis may have replaced them."""
        if self._holder is not None:
            self._original = self._original or getattr(self._holder, self._attribute)
            setattr(self._holder, self._attribute, self._fixed)

    def put_back(self) -> None:
        """Restore the user's settings after the last run."""
        if self._original is not None:
            setattr(self._holder, self._attribute, self._original)
