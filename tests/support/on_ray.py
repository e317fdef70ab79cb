"""Tests on Ray, which takes 283 MB: `./ci/ray` runs them, in an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

# The folder tests/ray has the name too, but no file of its own.
_FOUND = find_spec("ray")
NEEDS_RAY = pytest.mark.skipif(
    _FOUND is None or _FOUND.origin is None, reason="Ray is not installed: ./ci/ray runs these tests"
)
