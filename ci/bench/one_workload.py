"""Repeat the workload that CENSUS_WORKLOAD names; `census.run` runs this file in a separate pytest process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workloads import find_workloads

WORKLOAD = find_workloads()[os.environ["CENSUS_WORKLOAD"]]
# The workload may write to the working directory, which exists for this process only.
STEP = WORKLOAD.step(int(os.environ["CENSUS_SEED"]), Path.cwd())

pytestmark = [pytest.mark.leakcheck]
if WORKLOAD.heap:
    pytestmark.append(pytest.mark.heap_budget(per_iteration=WORKLOAD.heap, reason=WORKLOAD.reason))


def test_workload() -> None:
    """Run one step of the workload."""
    STEP()
