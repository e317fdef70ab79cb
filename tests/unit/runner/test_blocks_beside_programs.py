"""What other programs change in shared folders costs memory to read, and that must not show in the counts of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_leakcheck.runner.sampler import Sampler

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watches /dev/shm")


def test_blocks_are_the_same_in_rows_with_changes_and_without() -> None:
    path = Path("/dev/shm", f"leakcheck-blocks-{os.getpid()}")
    sampler = Sampler({"shm", "block", "object"}, {}, 60)
    try:
        sampler.start()
        for row in range(40):
            if row % 4 == 0:
                path.touch()
            elif row % 4 == 2:
                path.unlink()
            sampler.read(True)
        blocks, objects = (sampler.samples.columns[name][4:41] for name in ("block", "object"))
    finally:
        path.unlink(missing_ok=True)
        sampler.close()
    assert len(set(blocks)) == len(set(objects)) == 1, (list(blocks), list(objects))
