"""Incident 3, the fixed uploader: every row of every shape of dataset, once, and nothing left behind."""

from __future__ import annotations

import difflib
import inspect
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from datasets import Dataset, concatenate_datasets, load_dataset, load_from_disk
from datasets.table import embed_table_storage
from huggingface_hub import HfApi

from leakcheck_incidents import MemorySafeUploader
from leakcheck_incidents.hub_upload import fixed, leaky, leaky_commit, published, shards
from projects import Project

if TYPE_CHECKING:
    from leakcheck_incidents.material import SyntheticArrow

pytest_plugins = "leakcheck_incidents.material"
# huggingface_hub 2.4 itself hands a body to httpx2 in a way that is going out of use there.
pytestmark = [pytest.mark.laboratory, pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")]

SHAPES: dict[str, Callable[[Dataset], Dataset]] = {
    "as it is": lambda dataset: dataset,
    "selected": lambda dataset: dataset.select([20, 3, 3, 7, 0, 22]),
    "a slice of a shuffled one": lambda dataset: dataset.shuffle(seed=2).select(range(5, 17)),
    "concatenated, then shuffled": lambda dataset: concatenate_datasets([dataset, dataset]).shuffle(seed=3),
    "formatted": lambda dataset: dataset.with_format("numpy", columns=["id"]),
}


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> str:
    return f"user/{re.sub('[^a-z0-9]', '-', tmp_path.name)}"


@pytest.fixture
def folder(synthetic_arrow: SyntheticArrow) -> Path:
    return synthetic_arrow(rows=23)


@pytest.fixture
def dataset(folder: Path) -> Dataset:
    return load_from_disk(str(folder))


def table_of(repo: str) -> pa.Table:
    """What a reader gets."""
    return load_dataset(repo, split="train", download_mode="force_redownload").with_format("arrow")[:].combine_chunks()


def names_of(api: HfApi, repo: str) -> list[str]:
    return sorted(path for path in api.list_repo_files(repo, repo_type="dataset") if path.endswith(".parquet"))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_is_what_push_to_hub_makes_of_it(  # noqa: PLR0917 - fixtures and a parameter
    api: HfApi, repo: str, temporary: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    # Small enough that a shard has several groups.
    monkeypatch.setattr(shards, "_GROUP_SIZE", 40_000)
    made = SHAPES[shape](dataset)
    MemorySafeUploader(made, repo, shards=3, api=api).upload()
    assert list(temporary.iterdir()) == []
    made.push_to_hub(f"{repo}-reference", num_shards=3)
    ours, reference = table_of(repo), table_of(f"{repo}-reference")
    assert ours.num_rows == len(made) > 0
    assert ours.schema.equals(reference.schema, check_metadata=False)
    assert ours.to_pylist() == reference.to_pylist()
    assert names_of(api, repo) == names_of(api, f"{repo}-reference")


@pytest.mark.parametrize("uploader", [leaky.RetainingUploader, leaky_commit.CommitUploader])
def test_the_leaky_arms_upload_the_same(
    api: HfApi, repo: str, dataset: Dataset, uploader: type[MemorySafeUploader]
) -> None:
    uploader(dataset, repo, shards=3, api=api).upload()
    MemorySafeUploader(dataset, f"{repo}-fixed", shards=3, api=api).upload()
    assert table_of(repo).equals(table_of(f"{repo}-fixed"))


def test_the_published_loop_uploads_the_same_in_a_commit_per_shard(
    api: HfApi, repo: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = dataset.shuffle(seed=4)
    commits: list[str] = []
    send = api.upload_file
    monkeypatch.setattr(api, "upload_file", lambda **named: commits.append(send(**named).oid))
    published.upload(shuffled, repo, shards=3, api=api)
    MemorySafeUploader(shuffled, f"{repo}-fixed", shards=3, api=api).upload()
    assert len(commits) == 3
    assert table_of(repo).equals(table_of(f"{repo}-fixed"))


def test_more_shards_than_rows(api: HfApi, repo: str, dataset: Dataset) -> None:
    """`push_to_hub` of 5.2.0 raises IndexError here; the reference is the dataset itself, its files embedded."""
    few = dataset.select([2, 0, 7])
    MemorySafeUploader(few, repo, shards=5, api=api).upload()
    assert names_of(api, repo) == [f"data/train-0000{number}-of-00005.parquet" for number in range(5)]
    assert table_of(repo).to_pylist() == embed_table_storage(few.with_format("arrow")[:]).to_pylist()


def test_another_number_of_shards_replaces_the_former_in_one_commit(
    api: HfApi, repo: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    MemorySafeUploader(dataset, repo, shards=5, api=api).upload()
    commits: list[str] = []
    commit = api.create_commit
    monkeypatch.setattr(api, "create_commit", lambda *given, **named: commits.append(commit(*given, **named).oid))
    MemorySafeUploader(dataset.shuffle(seed=5), repo, shards=2, api=api).upload()
    assert commits == [api.repo_info(repo, repo_type="dataset").sha]
    assert names_of(api, repo) == ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    assert sorted(table_of(repo)["id"].to_pylist()) == list(range(23))


def test_an_upload_that_failed_is_repeated(
    api: HfApi, repo: str, dataset: Dataset, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is found before that, nothing is left, and what is there already is not committed again."""
    sent: list[str] = []
    send = api.preupload_lfs_files

    def fail_later(repo: str, additions: Any, **named: Any) -> None:
        if len(sent) == 2:
            raise ConnectionError("the server is gone")
        sent.append(additions[0].path_in_repo)
        send(repo, additions, **named)

    with monkeypatch.context() as patched:
        patched.setattr(api, "preupload_lfs_files", fail_later)
        with pytest.raises(ConnectionError):
            MemorySafeUploader(dataset, repo, shards=4, api=api).upload()
    assert names_of(api, repo) == []
    for _ in range(2):
        MemorySafeUploader(dataset, repo, shards=4, api=api).upload()
        assert table_of(repo)["id"].to_pylist() == list(range(23))
    assert list(temporary.iterdir()) == []


def test_the_example_of_the_readme(project: Project) -> None:
    text = Path(shards.__file__).with_name("README.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def test_" in block]
    done = project.run_test(example, "-p", "leakcheck_incidents.material", leakcheck=False)
    assert done.last_line.startswith("1 passed"), done.text


def test_the_readme_shows_the_two_lines_by_which_the_arms_differ() -> None:
    text = Path(shards.__file__).with_name("README.md").read_text(encoding="utf-8")
    ours, theirs = (inspect.getsource(arm).splitlines() for arm in (fixed, leaky))
    # Those of the body, beside the names and the docstrings of the classes.
    different = [line for line in difflib.unified_diff(ours, theirs, n=0, lineterm="") if line[1:9] == " " * 8]
    assert len(different) == 4
    assert "\n".join(different) in text
