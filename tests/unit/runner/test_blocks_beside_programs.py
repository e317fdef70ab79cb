"""What other programs change in shared folders costs memory to read, and that must not show in the counts of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.runner.sampler import Sampler

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watches /dev/shm")


@pytest.fixture(params=["shared", "private", "nested"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An entry that comes and goes."""
    entry = Path("/dev/shm", f"leakcheck-blocks-{os.getpid()}")
    if request.param != "shared":
        folder = tmp_path / "leakcheck-12345678" / "t"
        (folder / "inner").mkdir(parents=True)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        entry = folder / ("inner/entry" if request.param == "nested" else "entry")
    yield entry
    entry.unlink(missing_ok=True)


def test_blocks_are_the_same_in_rows_with_changes_and_without(path: Path) -> None:
    sampler = Sampler({"shm", "disk", "block", "object", "heap"}, {}, 60)
    try:
        sampler.start()
        for row in range(40):
            if row % 4 == 0:
                path.touch()
            elif row % 4 == 2:
                path.unlink()
            sampler.read(True)
        blocks, objects = (sampler.samples.columns[name][4:41] for name in ("block", "object"))
        entries = [*sampler.samples.columns["shm" if path.parent == Path("/dev/shm") else "disk"][1:41]]
    finally:
        sampler.close()
    assert len(set(blocks)) == len(set(objects)) == 1, (list(blocks), list(objects))
    assert entries == [1, 1, 0, 0] * 10
