"""Tests on Ray, which takes 283 MB: `./ci/ray` runs them, in an environment of their own."""

from __future__ import annotations

import pytest

from pytest_leakcheck.runner.processes.ray_cluster import is_installed

NEEDS_RAY = pytest.mark.skipif(not is_installed(), reason="Ray is not installed: ./ci/ray runs these tests")
