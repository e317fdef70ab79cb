"""The test that `fresh.run` repeats in a process of its own. What it does is named in the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workloads import find_workloads

WORKLOAD = find_workloads()[os.environ["CENSUS_WORKLOAD"]]
# In the working directory, which is made for this process and goes with it.
STEP = WORKLOAD.step(int(os.environ["CENSUS_SEED"]), Path.cwd())

pytestmark = [pytest.mark.leakcheck]
if WORKLOAD.heap:
    pytestmark.append(pytest.mark.heap_budget(per_iteration=WORKLOAD.heap, reason=WORKLOAD.reason))


def test_workload() -> None:
    STEP()
