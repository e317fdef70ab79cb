"""The upload of the write-up, and the loop that its author published as the fix, judged as the docs teach."""

from __future__ import annotations

import pytest

from projects import UNNAMED, Outcome, Project, line_of

pytestmark = pytest.mark.laboratory

# The dataset as a fixture, and what both uploads have in common.
COMMON = """
    import os
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from pathlib import Path

    import pyarrow.parquet as pq
    import pytest
    from datasets import load_from_disk
    from datasets.table import embed_table_storage
    from huggingface_hub import CommitOperationAdd, HfApi

    pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
    FILES, SIZES = 5, [2, 4, 8]

    @pytest.fixture(scope="module")
    def dataset(synthetic_arrow):
        rows = FILES * SIZES[-1]
        return load_from_disk(str(synthetic_arrow(rows=rows, files=FILES, file_size=2 << 20, nested=False, nulls=0)))

    @pytest.fixture
    def api(loopback_hub):
        api = HfApi(endpoint=loopback_hub.url, token=loopback_hub.token)
        api.create_repo("user/isles", repo_type="dataset", exist_ok=True)
        return api

    def write(dataset, index, shards, folder):
        shard = dataset.shard(num_shards=shards, index=index, contiguous=True)
        path = folder / f"train-{index:05d}-of-{shards:05d}.parquet"
        pq.write_table(embed_table_storage(shard.with_format("arrow")[:]), path)
        return path
"""
ACCUMULATED = """
    def push(dataset, api, shards, folder):
        additions = []
        for index in range(shards):
            path = write(dataset, index, shards, folder)
            addition = CommitOperationAdd(f"data/{path.name}", path.read_bytes())  # of the bytes
            api.preupload_lfs_files("user/isles", [addition], repo_type="dataset", free_memory=False)
            additions.append(addition)
        api.create_commit("user/isles", additions, commit_message="Upload", repo_type="dataset")
"""
ONE_BY_ONE = """
    def push(dataset, api, shards, folder):
        for index in range(shards):
            path = write(dataset, index, shards, folder)
            api.upload_file(
                path_or_fileobj=path, path_in_repo=f"data/{path.name}", repo_id="user/isles", repo_type="dataset"
            )
            path.unlink()
"""
TEST = """
    @pytest.mark.scaling_budget("shards", SIZES, rss="O(1)")
    def test_push(dataset, api, tmp_path, shards):
        push(dataset.select(range(FILES * shards)), api, shards, tmp_path)
"""
# With an upload before the body: what the clients import and set up at their first use is no part of any size.
WARMED = """
    @pytest.fixture
    def warm(dataset, api, tmp_path):
        push(dataset.select(range(FILES)), api, 1, tmp_path)

    @pytest.mark.scaling_budget("shards", SIZES, rss="O(1)")
    def test_push(warm, dataset, api, tmp_path, shards):
        push(dataset.select(range(FILES * shards)), api, shards, tmp_path)
"""


def judge(project: Project, *parts: str) -> Outcome:
    return project.run_test("".join((COMMON, *parts)), "-p", "leakcheck_incidents.material", limit=900, CI="1")


def test_three_small_sizes_tell_the_two_apart(project: Project) -> None:
    project.write("conftest.py", UNNAMED)
    small = COMMON.replace("[2, 4, 8]", "[1, 2, 4]").replace("2 << 20", "1 << 20")
    for push, verdict in ((ACCUMULATED, "over_budget"), (ONE_BY_ONE, "ok")):
        ran = project.run_test(small + push + WARMED, "-p", "leakcheck_incidents.material", limit=900, CI="1")
        assert ran.verdicts == {("test_push", "rss"): verdict}, ran.text
        assert ran.status == int(verdict != "ok")


@pytest.mark.parametrize("test", [TEST, WARMED], ids=["plain", "warmed"])
def test_the_list_of_operations_is_red_and_named(project: Project, test: str) -> None:
    ran = judge(project, ACCUMULATED, test)
    found = ran.finding("test_push", "rss")
    assert found["verdict"] == "over_budget", ran.text
    assert found["site"]["line"] == line_of("the bytes", (project.folder / "test_it.py").read_text()), ran.text
    assert found["owner"]["name"] == "push() local 'additions'", ran.text


def test_the_published_loop_is_green_after_a_warm_up(project: Project) -> None:
    ran = judge(project, ONE_BY_ONE, WARMED)
    assert ran.verdicts == {("test_push", "rss"): "ok"}, ran.text
    assert ran.status == 0
