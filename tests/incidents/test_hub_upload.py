"""Incident 3, the fixed uploader: every row of every shape of dataset, once, and nothing left behind."""

from __future__ import annotations

import difflib
import fcntl
import inspect
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Image, List, concatenate_datasets, load_dataset, load_from_disk
from datasets.table import embed_table_storage
from huggingface_hub import HfApi

from leakcheck_incidents.hub_upload import fixed, leaky, leaky_commit, progress, shards
from leakcheck_incidents.hub_upload.plan import planned
from leakcheck_incidents.hub_upload.shards import cut, embedded
from leakcheck_incidents.hub_upload.workplace import workplace
from leakcheck_incidents.synthetic.hub.faults import Fault
from leakcheck_incidents.synthetic.hub.loopback import LoopbackHub
from projects import Project

if TYPE_CHECKING:
    from leakcheck_incidents.material import SyntheticArrow

pytest_plugins = "leakcheck_incidents.material"
# huggingface_hub 2.4 itself hands a body to httpx2 in a way that is going out of use there.
pytestmark = [pytest.mark.laboratory, pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")]

SHAPES: dict[str, Callable[[Dataset], Dataset]] = {
    "as it is": lambda dataset: dataset,
    "shuffled": lambda dataset: dataset.shuffle(seed=1),
    "selected": lambda dataset: dataset.select([20, 3, 3, 7, 0, 22]),
    "sliced": lambda dataset: dataset.select(range(4, 19)),
    "a slice of a shuffled one": lambda dataset: dataset.shuffle(seed=2).select(range(5, 17)),
    "concatenated": lambda dataset: concatenate_datasets([dataset.select(range(7, 12)), dataset.select(range(3, 8))]),
    "concatenated, then shuffled": lambda dataset: concatenate_datasets([dataset, dataset]).shuffle(seed=3),
    "a shard": lambda dataset: dataset.shard(3, 1, contiguous=False),
    "filtered": lambda dataset: dataset.filter(lambda row: row % 3 == 1, input_columns="id"),
    "formatted": lambda dataset: dataset.with_format("numpy", columns=["id"]),
    "columns in another order": lambda dataset: dataset.select_columns(["views", "image", "id"]),
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
def dataset(synthetic_arrow: SyntheticArrow) -> Dataset:
    return load_from_disk(str(synthetic_arrow(rows=23, shard_rows=10)))


@pytest.fixture
def within(synthetic_arrow: SyntheticArrow) -> Dataset:
    """The same with the pictures in the table."""
    return load_from_disk(str(synthetic_arrow(rows=23, shard_rows=10, embedded=True)))


def table_of(repo: str, split: str = "train") -> pa.Table:
    """What a reader gets."""
    return load_dataset(repo, split=split, download_mode="force_redownload").with_format("arrow")[:].combine_chunks()


def names_of(api: HfApi, repo: str) -> list[str]:
    return sorted(path for path in api.list_repo_files(repo, repo_type="dataset") if path.endswith(".parquet"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", ["dataset", "within"])
def test_every_row_is_what_push_to_hub_makes_of_it(  # noqa: PLR0917 - fixtures and parameters
    request: pytest.FixtureRequest, api: HfApi, repo: str, temporary: Path, shape: str, where: str
) -> None:
    made = SHAPES[shape](request.getfixturevalue(where))
    fixed.upload(made, repo, shards=3, api=api)
    assert list(temporary.iterdir()) == []
    made.push_to_hub(f"{repo}-reference", num_shards=3)
    ours, reference = table_of(repo), table_of(f"{repo}-reference")
    assert ours.num_rows == len(made) > 0
    assert ours.schema.equals(reference.schema, check_metadata=False)
    assert Features.from_arrow_schema(ours.schema) == Features.from_arrow_schema(reference.schema)
    assert ours.to_pylist() == reference.to_pylist()
    assert names_of(api, repo) == names_of(api, f"{repo}-reference")


@pytest.mark.parametrize("uploader", [leaky, leaky_commit], ids=["leaky", "leaky_commit"])
def test_the_leaky_arms_upload_the_same(api: HfApi, repo: str, dataset: Dataset, uploader: Any) -> None:
    uploader.upload(dataset, repo, shards=3, api=api)
    fixed.upload(dataset, f"{repo}-fixed", shards=3, api=api)
    assert table_of(repo).equals(table_of(f"{repo}-fixed"))


def test_more_shards_than_rows(api: HfApi, repo: str, dataset: Dataset) -> None:
    """`push_to_hub` of 5.2.0 raises IndexError here; the reference is the dataset itself, its files embedded."""
    few = dataset.select([2, 0, 7])
    fixed.upload(few, repo, shards=5, api=api)
    assert names_of(api, repo) == [f"data/train-0000{number}-of-00005.parquet" for number in range(5)]
    reference = embed_table_storage(few.with_format("arrow")[:]).to_pylist()
    assert table_of(repo).to_pylist() == reference


def test_no_rows_at_all(api: HfApi, repo: str, dataset: Dataset) -> None:
    """`load_dataset` has no way to say so ("corresponds to no data"); the files do."""
    fixed.upload(dataset.select([]), repo, shards=2, api=api)
    files = [api.hf_hub_download(repo, name, repo_type="dataset") for name in names_of(api, repo)]
    assert [pq.read_metadata(file).num_rows for file in files] == [0, 0]
    assert Features.from_arrow_schema(pq.read_schema(files[0])) == dataset.features


def test_a_split_of_its_own(api: HfApi, repo: str, dataset: Dataset) -> None:
    fixed.upload(dataset, repo, shards=2, api=api)
    fixed.upload(dataset.select(range(4)), repo, shards=1, api=api, split="test")
    assert names_of(api, repo)[0] == "data/test-00000-of-00001.parquet"
    assert table_of(repo)["id"].to_pylist() == list(range(23))
    assert table_of(repo, "test")["id"].to_pylist() == list(range(4))


def test_another_number_of_shards_replaces_the_former(api: HfApi, repo: str, dataset: Dataset) -> None:
    fixed.upload(dataset, repo, shards=5, api=api)
    fixed.upload(dataset.shuffle(seed=5), repo, shards=2, api=api)
    assert names_of(api, repo) == ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    assert sorted(table_of(repo)["id"].to_pylist()) == list(range(23))


def test_what_is_there_already_is_neither_sent_nor_committed_again(
    api: HfApi, hub: LoopbackHub, repo: str, dataset: Dataset
) -> None:
    fixed.upload(dataset, repo, shards=4, api=api)
    commit = api.repo_info(repo, repo_type="dataset").sha
    before = len(hub.requests())
    fixed.upload(dataset, repo, shards=4, api=api)
    again = [one.line for one in hub.requests()[before:]]
    assert not any(line.startswith("PUT") or "/commit/" in line for line in again)
    assert api.repo_info(repo, repo_type="dataset").sha == commit


def test_a_reader_never_finds_a_part(api: HfApi, hub: LoopbackHub, repo: str, dataset: Dataset) -> None:
    fixed.upload(dataset, repo, shards=4, api=api)
    lines = [one.line for one in hub.requests() if repo in one.line]
    assert sum("/commit/" in line for line in lines) == 1
    assert "/commit/" in lines[-1]


def test_a_server_that_takes_shards_for_regular_files(
    api: HfApi, hub: LoopbackHub, repo: str, dataset: Dataset, temporary: Path
) -> None:
    hub.fail(Fault("regular", times=1000, on="/preupload/"))
    fixed.upload(dataset, repo, shards=4, api=api)
    assert list(temporary.iterdir()) == []
    assert table_of(repo)["id"].to_pylist() == list(range(23))


def test_push_to_hub_breaks_on_such_a_server(hub: LoopbackHub, repo: str, dataset: Dataset) -> None:
    """Told in the README: it unlinks a shard before the commit reads it. Where this fails, a release has fixed it."""
    hub.fail(Fault("regular", times=1000, on="/preupload/"))
    with pytest.raises(FileNotFoundError, match=r"\.parquet"):
        dataset.push_to_hub(repo, num_shards=2)


def test_embedding_through_map_is_an_error(dataset: Dataset) -> None:
    """What the write-up tried first. Told in the README, and imitated nowhere."""
    with pytest.raises(AttributeError, match="'LazyBatch' object has no attribute 'schema'"):
        dataset.map(embed_table_storage, batched=True)
    assert dataset.with_format("arrow").map(embed_table_storage, batched=True, keep_in_memory=True).num_rows == 23


def test_embedding_works_on_a_slice_of_nested_lists(dataset: Dataset) -> None:
    table = dataset.with_format("arrow")[5:9]
    assert table["views"].chunk(0).offset or table["views"].chunk(0).offsets[0].as_py()
    rows = embedded(table).to_pylist()
    whole = embedded(dataset.with_format("arrow")[:]).to_pylist()
    assert rows == whole[5:9]
    assert all(picture is None or picture["bytes"] for row in rows for view in row["views"] for picture in view)


def test_groups_of_rows_lose_none(api: HfApi, repo: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_GROUP_SIZE", 40_000)
    fixed.upload(dataset, repo, shards=2, api=api)
    reference = embed_table_storage(dataset.with_format("arrow")[:]).to_pylist()
    assert table_of(repo).to_pylist() == reference


# The plan.


@pytest.mark.parametrize(("rows", "of"), [(0, 1), (1, 3), (10, 3), (11, 4), (902, 902), (23, 1), (5, 99_999)])
def test_shards_hold_each_row_once(rows: int, of: int) -> None:
    pieces = cut(rows, of, "train")
    assert len(pieces) == of
    assert [row for piece in pieces for row in range(piece.first, piece.last)] == list(range(rows))
    assert max(piece.rows for piece in pieces) - min(piece.rows for piece in pieces) <= 1
    assert pieces[-1].path == f"data/train-{of - 1:05d}-of-{of:05d}.parquet"


@pytest.mark.parametrize("of", [0, -1, 100_000])
def test_shards_that_names_cannot_number(of: int) -> None:
    with pytest.raises(ValueError, match="their names have room for 1 to 99999"):
        cut(10, of, "train")


def test_the_cut_is_that_of_datasets(dataset: Dataset) -> None:
    for of in (1, 2, 3, 5, 7, 23):
        theirs = [dataset.shard(of, number, contiguous=True)["id"][:] for number in range(of)]
        assert [list(range(piece.first, piece.last)) for piece in cut(23, of, "train")] == theirs


def test_a_dry_run_prints_the_plan_and_does_nothing(  # noqa: PLR0917 - fixtures
    api: HfApi, hub: LoopbackHub, repo: str, dataset: Dataset, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(hub.requests())
    plan = fixed.upload(dataset, repo, shards=3, api=api, dry_run=True)
    assert len(hub.requests()) == before
    assert list(temporary.iterdir()) == []
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{repo}, train: 23 rows in 3 shards, 0.3 MiB"
    assert said[1] == "  data/train-00000-of-00003.parquet  rows 0 to 7, 0.1 MiB"
    assert said[-1] == "one shard at a time: 0.1 MiB of disk and up to 17 MiB of memory"
    assert str(plan).splitlines() == said


def test_a_long_plan_is_cut_short(dataset: Dataset, repo: str) -> None:
    lines = str(planned(dataset, repo, "train", 40)).splitlines()
    assert len(lines) == 10
    assert lines[7:9] == ["  ...", "  data/train-00039-of-00040.parquet  no rows, 0.0 MiB"]


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_planned_sizes_are_those_of_the_files(
    synthetic_arrow: SyntheticArrow, repo: str, tmp_path: Path, shape: str, *, embedded: bool
) -> None:
    made = SHAPES[shape](load_from_disk(str(synthetic_arrow(rows=23, file_size=200_000, embedded=embedded))))
    rows = made.with_format("arrow")["id"][:].to_pylist()
    for shard in planned(made, repo, "train", 3).shards:
        with shards.written(made, shard, tmp_path) as path:
            size = path.stat().st_size
        assert size < 1.02 * shard.size + 10_000
        # Parquet has one of what is there several times.
        repeated = len(set(rows[shard.first : shard.last])) < shard.rows
        assert repeated or shard.size < 1.02 * size


def test_a_missing_file_is_found_before_anything_is_sent(
    api: HfApi, hub: LoopbackHub, repo: str, tmp_path: Path
) -> None:
    there = tmp_path / "there.png"
    there.write_bytes(b"a picture")
    paths = [[str(there), str(tmp_path / "gone.png")]]
    dataset = Dataset.from_dict({"files": paths}, features=Features({"files": List(Image())}))
    before = len(hub.requests())
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        fixed.upload(dataset, repo, shards=1, api=api)
    assert len(hub.requests()) == before


# The folder and the bar.


def test_the_workplace_goes_whatever_happens(temporary: Path) -> None:
    with workplace("here") as folder:
        (folder / "file").touch()
        assert list(temporary.iterdir()) == [folder]
    assert list(temporary.iterdir()) == []
    with pytest.raises(IsADirectoryError), workplace("here") as folder:
        folder.write_text("a folder is no file")
    assert list(temporary.iterdir()) == []


def test_what_a_killed_upload_left_is_found(temporary: Path) -> None:
    with workplace("here") as folder:
        pass
    folder.mkdir()
    (folder / "train-00000-of-00001.parquet").touch()
    with workplace("there") as other:
        assert other != folder
        assert folder.exists()
    with workplace("here") as again:
        assert again == folder
        assert list(folder.iterdir()) == []
    assert list(temporary.iterdir()) == []


def test_two_uploads_to_one_place(temporary: Path) -> None:
    with workplace("here") as folder:
        (folder / "file").touch()
        with pytest.raises(RuntimeError, match="another process is uploading to the same target"), workplace("here"):
            pass
        assert list(folder.iterdir()) == [folder / "file"]
        with workplace("there"):
            pass
    assert list(temporary.iterdir()) == []


def test_a_folder_that_goes_while_it_is_locked(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former owner removes it between the opening and the lock."""
    removed: list[str] = []
    lock = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if not removed:
            removed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
            Path(removed[0]).rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with workplace("here") as folder:
        assert str(folder) == removed[0]
        assert folder.is_dir()
    assert list(temporary.iterdir()) == []


def test_a_long_upload_has_a_bar(
    api: HfApi, repo: str, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "DELAY", 1000.0)
    fixed.upload(dataset, repo, shards=3, api=api)
    assert "3/3" not in capsys.readouterr().err
    monkeypatch.setattr(progress, "DELAY", 0.0)
    fixed.upload(dataset, f"{repo}-slow", shards=3, api=api)
    said = capsys.readouterr().err
    assert f"{repo}-slow train" in said
    assert "3/3" in said


# What users read.


def test_the_example_of_the_readme(project: Project) -> None:
    text = Path(shards.__file__).with_name("README.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def test_" in block]
    project.write("test_it.py", example)
    done = project.run("-p", "leakcheck_incidents.material", leakcheck=False)
    assert done.last_line.startswith("1 passed"), done.text


def test_the_readme_shows_the_two_lines_by_which_the_arms_differ() -> None:
    text = Path(shards.__file__).with_name("README.md").read_text(encoding="utf-8")
    ours, theirs = (inspect.getsource(arm).splitlines()[3:] for arm in (fixed, leaky))
    different = [line for line in difflib.unified_diff(ours, theirs, n=0, lineterm="") if line[0] in "+-"]
    assert "\n".join(line for line in different if not line.startswith(("---", "+++"))) in text
