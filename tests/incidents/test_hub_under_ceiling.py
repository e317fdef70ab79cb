"""The uploaders under a ceiling of memory: that which retains the shards runs out, and the fixed one does not."""

from __future__ import annotations

import pytest

from projects import UNNAMED, Project

pytestmark = pytest.mark.laboratory

# 8 shards of 40 MiB. Python, the libraries and a group of rows take about 250 MiB of the ceiling.
UPLOAD = """
    import pytest
    from datasets import load_from_disk
    from leakcheck_incidents.hub_upload.test_hub_upload import _without_bars, pytestmark, upload, warm

    @pytest.fixture(scope="module")
    def dataset(synthetic_arrow):
        return load_from_disk(str(synthetic_arrow(rows=32, files=8, file_size=10 << 20, nested=False, nulls=0)))

    @pytest.mark.parametrize("upload", ["leaky", "fixed"], indirect=True)
    @pytest.mark.leakcheck_ceiling(rss="480 MiB")
    def test_upload(warm, dataset):
        warm(dataset, "user/upload", 8)
"""


def test_the_leaky_uploader_runs_out_of_memory_and_the_fixed_one_does_not(project: Project) -> None:
    project.write("conftest.py", UNNAMED)
    options = ("-p", "leakcheck_incidents.material", "--leakcheck-iterations=3", "--leakcheck-max-time=600")
    # The ceiling is one of addresses, and an arena for each thread of the clients reserves 64 MiB of these.
    ran = project.run_test(UPLOAD, *options, limit=1200, MALLOC_ARENA_MAX="1")
    assert ran.last_line == "1 failed, 1 passed", ran.text
    assert "FAILED test_it.py::test_upload[leaky]" in ran.text
    assert "MemoryError" in ran.text
    assert not [one for one in ran.findings if one["colour"] == "red"], ran.text
