"""Tell errors of the measurement, which cost no more than the verdict on one test, from those of others."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

import _pytest
import pluggy
import pytest

from pytest_leakcheck.attribution.call_paths import is_standard
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.not_judged import measurement_failed
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.error_text import describe_error
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.probes.base import Unavailable

_OURS: Final = str(Path(__file__).parents[1])
_PYTEST: Final = tuple(str(Path(module.__file__).parent) for module in (_pytest, pluggy, pytest) if module.__file__)


def why_failed(error: Exception) -> str:
    """Describe an error of the measurement, with its innermost line in this package; raise any other error again.

    Code of this package raised it, or called what did, and not by way of pytest. The cause may lie in the test, which
    may have closed our descriptors. Wrong use (`LeakcheckError`) does not count.
    """
    if isinstance(error, Unavailable):
        return str(error)
    file, line = next((one for one in reversed(_places_of(error)) if one[0].startswith((_OURS, *_PYTEST))), ("", 0))
    if isinstance(error, LeakcheckError) or not file.startswith(_OURS):
        raise error
    return f"the measurement failed: {describe_error(error)} ({Path(file).relative_to(_OURS)}:{line})"


def unmeasured(plan: Plan, error: Exception, *, of_test: bool = True) -> Result:
    """Return the result for a test whose measurement failed with this error; raise any other error again.

    With `of_test`, an error that a function of the project raised counts as well, for example a gauge.
    """
    innermost, _line = _places_of(error)[-1]
    if not (of_test or innermost.startswith(_OURS) or is_standard(innermost)):
        raise error
    budget = next((one for one in plan.budgets if one.explicit), plan.budgets[0])
    verdict = measurement_failed(budget.resource, why_failed(error), explicit=budget.explicit)
    return Result(plan, Recording(plan.test, (), stopped="failed"), (verdict,), {})


def _places_of(error: Exception) -> list[tuple[str, int]]:
    """List the files and lines that an error passed through, the innermost last."""
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
